"""The worker of examples/python-worker with an engine that does what the lines on its standard input say: how the suites of
the request plane drive a worker of another language. See foreign.rs."""

import asyncio
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[5] / "examples/python-worker"))
import worker  # noqa: E402


class Engine:
    """Says in each stream, which is known by its first token, what it is told to."""

    def __init__(self):
        self.words, self.cancelled, self.stored = {}, set(), []

    async def generate(self, request):
        if not request["tokens"]:
            raise ValueError("empty prompt")
        first = request["tokens"][0]
        words = self.words[first] = asyncio.Queue()
        try:
            while (delta := await words.get()) is not None:
                yield delta
                if "finish" in delta:
                    return
        except asyncio.CancelledError:
            if self.words.get(first) is words:
                self.cancelled.add(first)
            raise

    def snapshot(self):
        return ["cleared", *self.stored]


class Stage:
    """Each method is a command; what it returns is the answer. Only `push` is not answered."""

    def __init__(self, worker, engine):
        self.worker, self.engine = worker, engine

    def serve(self):
        self.drop_all()
        self.engine.words, self.engine.cancelled = {}, set()
        self.worker.instance = 1

    def withdraw(self):
        self.worker.instance = 0

    def push(self, stream, delta):
        self.engine.words[stream].put_nowait(delta)

    def drop_all(self):
        for words in self.engine.words.values():
            words.put_nowait(None)

    def held(self):
        return len(self.engine.words)

    def is_cancelled(self, stream):
        return stream in self.engine.cancelled

    def in_flight(self):
        return sum(len(connection.streams) for connection in self.worker.connections)

    def report(self, hash):
        block = {"block_hash": hash, "tokens_hash": hash}
        self.engine.stored.append({"stored": {"parent": None, "blocks": [block], "tier": "device"}})
        self.engine.report(self.engine.stored[-1:])


async def main(max_streams, dead_s):
    worker.MAX_STREAMS, worker.DEAD_S = int(max_streams), float(dead_s)
    engine = Engine()
    served = worker.Worker(engine)
    stage = Stage(served, engine)
    server = await asyncio.start_server(served.accept, "127.0.0.1", 0)
    print("127.0.0.1:%d" % server.sockets[0].getsockname()[1], flush=True)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command, *arguments = json.loads(line)
        answer = getattr(stage, command)(*arguments)
        if command != "push":
            print(json.dumps(answer), flush=True)


asyncio.run(main(*sys.argv[1:]))
