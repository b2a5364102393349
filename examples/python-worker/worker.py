"""A worker in Python: serves a toy engine to Dynamo frontends on the same host.

The wire format is docs/request-plane.md, the registration docs/discovery.md. Needs `msgpack`.

    python worker.py --store DIR [--model toy] [--delay-ms 5]

The engine answers with the tokens of the prompt backwards; the tokenizer is one token per byte.
"""

import argparse, asyncio, contextlib, json, os, random, signal, struct, time
import msgpack

HELLO, OPEN, BATCH, CANCEL, PING, PONG, GOAWAY, SUBSCRIBE, EVENTS = range(1, 10)
MAX_FRAME_BYTES = 64 << 20
BEAT_S, DEAD_S = 1.0, 5.0


def frame(kind, body):
    packed = msgpack.packb(body)
    return struct.pack(">IB", len(packed) + 1, kind) + packed


async def read_frame(reader):
    """The next (kind, body); raises at the end of the connection or after DEAD_S of silence."""
    (length,) = struct.unpack(">I", await asyncio.wait_for(reader.readexactly(4), DEAD_S))
    if not 1 <= length <= MAX_FRAME_BYTES:
        raise ConnectionError(f"a frame of {length} bytes, limit {MAX_FRAME_BYTES}")
    data = await asyncio.wait_for(reader.readexactly(length), DEAD_S)
    return data[0], msgpack.unpackb(data[1:], strict_map_key=False)


class Connection:
    """One caller. Everything that waits for it is merged and leaves as one batch."""

    def __init__(self, engine, reader, writer):
        self.engine, self.reader, self.writer = engine, reader, writer
        self.waiting, self.streams, self.ready = {}, {}, asyncio.Event()

    async def run(self):
        kind, hello = await read_frame(self.reader)
        wrong = "hello expected" if kind != HELLO else None
        if not wrong and hello["version"] != 1:
            wrong = f"the caller speaks version {hello['version']}, this worker version 1"
        if wrong:
            self.writer.write(frame(GOAWAY, {"reason": wrong}))
            return await self.writer.drain()
        mine = {"version": 1, "agent": "python-example", "max_frame_bytes": MAX_FRAME_BYTES}
        self.writer.write(frame(HELLO, mine))
        speaking = asyncio.create_task(self.speak())
        try:
            while True:
                self.take(*await read_frame(self.reader))
        finally:
            speaking.cancel()
            for task in self.streams.values():
                task.cancel()

    def take(self, kind, body):
        if kind == OPEN:
            self.streams[body["stream"]] = asyncio.create_task(self.answer(body))
        elif kind == CANCEL:
            for stream in body["streams"]:
                if task := self.streams.pop(stream, None):
                    task.cancel()
        elif kind == PING:
            self.writer.write(frame(PONG, {"number": body["number"]}))
        elif kind == GOAWAY:
            raise ConnectionError(body["reason"])
        # This engine has no cache, so there is nothing to say to a subscriber.

    async def answer(self, body):
        stream, request = body["stream"], body["request"]
        if body["instance"] != self.engine.instance:
            return self.fail(stream, "unavailable", "network", True, "the chosen worker is gone")
        if not request["tokens"]:
            return self.fail(stream, "invalid", "client", False, "the prompt is empty")
        async for delta in self.engine.generate(request):
            self.say(stream, delta)
        self.streams.pop(stream, None)

    def fail(self, stream, error_class, side, retryable, message):
        error = {"class": error_class, "side": side, "retryable": retryable, "message": message}
        self.waiting.setdefault(stream, {"stream": stream})["error"] = error
        self.streams.pop(stream, None)
        self.ready.set()

    def say(self, stream, delta):
        item = self.waiting.setdefault(stream, {"stream": stream})
        old = item.get("delta")
        if old:
            delta = {**old, **delta, "tokens": old["tokens"] + delta["tokens"]}
        item["delta"] = delta
        self.ready.set()

    async def speak(self):
        while True:
            try:
                await asyncio.wait_for(self.ready.wait(), BEAT_S)
            except asyncio.TimeoutError:
                self.writer.write(frame(PONG, {"number": 0}))
            self.ready.clear()
            items, self.waiting = list(self.waiting.values()), {}
            if items:
                self.writer.write(frame(BATCH, {"items": items}))
            await self.writer.drain()


class Engine:
    def __init__(self, instance, delay_s):
        self.instance, self.delay_s = instance, delay_s

    async def generate(self, request):
        """The prompt backwards. What another worker generated before counts as said already."""
        prompt = request["tokens"][: len(request["tokens"]) - request.get("resumed", 0)]
        rest = prompt[::-1][request.get("resumed", 0) :]
        limit = request["stopping"]["max_tokens"]
        for index, token in enumerate(rest[:limit] or [10]):
            await asyncio.sleep(self.delay_s)
            last = index + 1 >= min(len(rest), limit)
            end = {"finish": "length" if len(rest) > limit else "stop"} if last else {}
            yield {"tokens": [token], **end}


def card(model):
    """The least a frontend must know; one token per byte."""
    return {
        "name": model, "architecture": "toy", "context_length": 4096, "vocab_size": 256,
        "tokenizer": {"kind": "bytes", "pieces": []},
        "blocks": {"block_size": 16, "algorithm": "xxh3-64-seed-1337", "version": 1},
        "total_kv_blocks": 256, "max_num_seqs": 64, "max_num_batched_tokens": 4096,
        "kv_events": False, "created_s": int(time.time()),
    }  # fmt: skip


async def register(store, instance, model, address):
    """Writes the two entries, keeps them alive, and writes them again if somebody empties the store."""
    names = {"namespace": "dynamo", "component": "backend", "endpoint": "generate", "instance_id": instance}
    values = {
        "v1/instances": {"type": "Endpoint", **names, "transport": {"tcp": address}, "draining": False},
        "v1/mdc": {"type": "Model", **names, "card_json": card(model)},
    }
    entries = {}
    for prefix, value in values.items():
        key = f"{prefix}/dynamo/backend/generate/{instance:x}"
        name = "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in key)
        entries[os.path.join(store, name)] = json.dumps(value)
    try:
        while True:
            for path, text in entries.items():
                try:
                    os.utime(path)
                except FileNotFoundError:
                    os.makedirs(store, mode=0o700, exist_ok=True)
                    with open(path + ".tmp", "w") as file:
                        file.write(text)
                    os.rename(path + ".tmp", path)
            await asyncio.sleep(3)
    finally:
        for path in reversed(entries):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--model", default="toy")
    parser.add_argument("--delay-ms", type=float, default=5)
    args = parser.parse_args()
    engine = Engine(random.getrandbits(63), args.delay_ms / 1000)

    async def serve(reader, writer):
        try:
            await Connection(engine, reader, writer).run()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(f"serving {args.model} at 127.0.0.1:{port}", flush=True)
    registered = asyncio.create_task(register(args.store, engine.instance, args.model, f"127.0.0.1:{port}"))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, registered.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await registered


if __name__ == "__main__":
    asyncio.run(main())
