"""A worker in Python: serves a toy engine to Dynamo frontends on the same host, until SIGTERM. Needs `msgpack`.

    python examples/python-worker --store DIR [--model toy] [--delay-ms 5]
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import time

import toy
import worker

# Entries die 10 s after they were touched last; streams that run get this long to end.
TOUCH_S, DRAIN_S = 3.0, 30.0


class Record:
    """The two entries by which frontends find a worker (docs/discovery.md)."""

    def __init__(self, store, instance, address, card):
        names = {"namespace": "dynamo", "component": "backend", "endpoint": "generate", "instance_id": instance}
        self.store, self.path = store, f"dynamo/backend/generate/{instance:x}"
        # The model's entry is written last and removed first.
        self.entries = {
            "v1/instances": {"type": "Endpoint", **names, "transport": {"tcp": address}, "draining": False},
            "v1/mdc": {"type": "Model", **names, "card_json": card},
        }

    def file(self, prefix):
        key = f"{prefix}/{self.path}"
        return os.path.join(self.store, "".join(c if c.isalnum() else f"%{ord(c):02X}" for c in key))

    def write(self, draining=False):
        self.entries["v1/instances"]["draining"] = draining
        os.makedirs(self.store, mode=0o700, exist_ok=True)
        for prefix, value in self.entries.items():
            with open(self.file(prefix) + ".tmp", "w") as file:
                json.dump(value, file)
            os.rename(self.file(prefix) + ".tmp", self.file(prefix))

    async def keep(self):
        """Keeps the entries alive, and writes them again if somebody emptied the store."""
        while True:
            await asyncio.sleep(TOUCH_S)
            try:
                for prefix in self.entries:
                    os.utime(self.file(prefix))
            except FileNotFoundError:
                self.write(self.entries["v1/instances"]["draining"])

    def remove(self):
        for prefix in reversed(self.entries):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.file(prefix))


async def idle(served):
    """Completes when nothing runs and what was said is with the kernel."""
    while any(c.streams or c.items or c.writer.transport.get_write_buffer_size() for c in served.connections):
        await asyncio.sleep(0.01)


async def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", required=True)
    parser.add_argument("--model", default="toy")
    parser.add_argument("--delay-ms", type=float, default=5)
    args = parser.parse_args()
    served = worker.Worker(toy.Engine(args.delay_ms / 1000))
    server = await asyncio.start_server(served.accept, "127.0.0.1", 0)
    address = "127.0.0.1:%d" % server.sockets[0].getsockname()[1]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    record = Record(args.store, served.instance, address, toy.card(args.model, int(time.time())))
    record.write()
    keeping = asyncio.create_task(record.keep())
    print(f"serving {args.model} at {address}", flush=True)
    try:
        await stop.wait()
        served.draining = True
        record.write(draining=True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(idle(served), DRAIN_S)
    finally:
        keeping.cancel()
        record.remove()


if __name__ == "__main__":
    asyncio.run(main())
