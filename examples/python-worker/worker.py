"""A worker's side of the request plane (docs/request-plane.md): serves an engine to whoever connects."""

import asyncio, random, struct, sys, time  # fmt: skip
import msgpack

HELLO, OPEN, BATCH, CANCEL, PING, PONG, GOAWAY, SUBSCRIBE, EVENTS = range(1, 10)
MAX_FRAME_BYTES, MAX_HELLO_BYTES, MAX_STREAMS, MAX_EVENTS = 64 << 20, 16 << 10, 256, 1024
BEAT_S, DEAD_S = 1.0, 5.0


def fault(error_class, side, retryable, message, **more):
    return {"error": {"class": error_class, "side": side, "retryable": retryable, "message": message, **more}}


class Connection:
    """One caller. What waits for it is merged, and leaves as one batch."""

    def __init__(self, worker, reader, writer):
        self.worker, self.reader, self.writer = worker, reader, writer
        self.items, self.streams, self.events, self.ready = {}, {}, None, asyncio.Event()

    async def read(self, limit=MAX_FRAME_BYTES):
        (length,) = struct.unpack(">I", await asyncio.wait_for(self.reader.readexactly(4), DEAD_S))
        if not 1 <= length <= limit:
            raise ConnectionError(f"a frame of {length} bytes, limit {limit}")
        data = await asyncio.wait_for(self.reader.readexactly(length), DEAD_S)
        return data[0], msgpack.unpackb(data[1:], strict_map_key=False) if data[0] <= EVENTS else None

    def send(self, kind, body):
        packed = msgpack.packb(body)
        self.writer.write(struct.pack(">IB", len(packed) + 1, kind) + packed)

    def send_rows(self, kind, name, rows):
        """As one frame, or as several if the caller takes no larger ones."""
        if len(msgpack.packb({name: rows})) < self.limit:
            self.send(kind, {name: rows})
        elif len(rows) > 1:
            self.send_rows(kind, name, rows[: len(rows) // 2])
            self.send_rows(kind, name, rows[len(rows) // 2 :])
        elif kind == BATCH:
            why = {"message": "the answer is larger than the caller takes", "detail": f"limit {self.limit} bytes"}
            self.send(kind, {name: [{"stream": rows[0]["stream"], **fault("internal", "worker", False, **why)}]})

    async def run(self):
        kind, hello = await self.read(MAX_HELLO_BYTES)
        if kind != HELLO or hello["version"] != 1:
            return self.send(GOAWAY, {"reason": f"this worker speaks version 1, the caller version {hello['version']}"})
        self.limit = hello["max_frame_bytes"]
        self.send(HELLO, {"version": 1, "agent": "python-example", "max_frame_bytes": MAX_FRAME_BYTES})
        self.worker.connections.add(self)
        speaking = asyncio.create_task(self.speak())
        try:
            while True:
                self.take(*await self.read())
        finally:
            self.worker.connections.remove(self)
            for task in [speaking, *self.streams.values()]:
                task.cancel()

    def take(self, kind, body):
        if kind == OPEN:
            stream = body["stream"]
            if stream in self.streams:
                raise ConnectionError("a stream was begun twice")
            self.streams[stream] = asyncio.create_task(self.answer(stream, body))
            self.streams[stream].add_done_callback(lambda _: self.streams.pop(stream))
        elif kind == CANCEL:
            for task in filter(None, map(self.streams.get, body["streams"])):
                task.cancel()
        elif kind == PING:
            self.send(PONG, body)
        elif kind == SUBSCRIBE:
            self.worker.catch_up(self)

    async def answer(self, stream, body):
        def say(news):
            self.items.setdefault(stream, {"stream": stream}).update(news)
            self.ready.set()

        delta = {}
        try:
            if refusal := self.worker.refusal(body["instance"]):
                return say(refusal)
            async for delta in self.worker.engine.generate(body["request"]):
                before = self.items.get(stream, {}).get("delta", {"tokens": []})
                say({"delta": {**before, **delta, "tokens": before["tokens"] + delta["tokens"]}})
            if "finish" not in delta:
                say(fault("unavailable", "network", True, "the worker broke off the answer"))
        except ValueError as refused:
            say(fault("invalid", "client", False, str(refused), param="prompt"))
        except Exception as error:
            say(fault("internal", "worker", False, "the worker cannot answer this request", detail=repr(error)))

    async def speak(self):
        self.writer.transport.set_write_buffer_limits(0)  # after drain() all is with the kernel
        while True:
            try:
                await asyncio.wait_for(self.ready.wait(), BEAT_S)
            except asyncio.TimeoutError:
                self.send(PONG, {"number": 0})
            self.ready.clear()
            if self.items:
                items, self.items = list(self.items.values()), {}
                self.send_rows(BATCH, "items", items)
            if self.events:
                events, self.events = self.events, []
                self.send_rows(EVENTS, "events", events)
            await self.writer.drain()


class Worker:
    def __init__(self, engine):
        self.engine, self.connections, self.draining = engine, set(), False
        self.instance, self.epoch, self.sequence = random.getrandbits(63), time.time_ns(), 0
        engine.report = self.publish

    def batch(self, events):
        source = {"worker": self.instance, "rank": 0}
        return {"source": source, "epoch": self.epoch, "sequence": self.sequence, "events": events}

    def publish(self, events):
        """What the engine stored or forgot."""
        self.sequence += 1
        for connection in self.connections:
            if connection.events is not None:
                connection.events.append({"kv": self.batch(events)})
                connection.ready.set()
                if len(connection.events) > MAX_EVENTS:
                    self.catch_up(connection)

    def catch_up(self, connection):
        """A snapshot stands for all that was said before."""
        connection.events = [{"snapshot": self.batch(self.engine.snapshot())}]
        connection.ready.set()

    def refusal(self, instance):
        if instance != self.instance:
            return fault("unavailable", "network", True, "the chosen worker is gone")
        if self.draining:
            return fault("unavailable", "worker", True, "the worker is shutting down", retry_after_s=2)
        if sum(len(connection.streams) for connection in self.connections) > MAX_STREAMS:
            return fault("overloaded", "worker", True, "the chosen worker has no room for another request")

    async def accept(self, reader, writer):
        try:
            await Connection(self, reader, writer).run()
        except Exception as error:
            print(f"the connection of a caller ended: {error!r}", file=sys.stderr)
        finally:
            writer.close()
