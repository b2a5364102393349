#!/usr/bin/env python3
"""How long an engine works for a client that has left, by the stage its request was in.

A frontend and a worker with the mock engine, as processes over TCP. A client leaves; the worker's own `/metrics` says when the
engine let go. Printed: median and worst of all rounds, in milliseconds, with the time that one look takes.

prefill   a long prompt, before the first token
decode    in the middle of a stream
slow      the client has read nothing for a while, and what waits for it fills the sockets
"""

import argparse
import json
import socket
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sdk"))
from system import MODEL, Process, eventually, http  # noqa: E402

STAGES = ("prefill", "decode", "slow")
IN_FLIGHT = "dynamo_component_inflight_requests"


def in_flight(system):
    lines = http(system + "/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(IN_FLIGHT + "{"))


def send(url, stage):
    """A connection with a request in this stage."""
    host, port = url.split("//")[1].split(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect((host, int(port)))
    words = 7_000 if stage == "prefill" else 10
    body = {"model": "mock", "prompt": "word " * words, "max_tokens": 8_000, "ignore_eos": True, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
    client.sendall(head.encode() + data)
    if stage == "decode":
        seen = b""
        while seen.count(b"data: ") < 10:
            seen += client.recv(4096)
    return client


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as store:
        slow = ("--set=worker.mock_speedup_ratio=0.2", "--set=system.port=0", "--set=system.host=127.0.0.1", "--json")
        frontend = Process("frontend", store, "--port", "0")
        worker = Process("worker", store, MODEL, "--engine", "mock", "--workers", "1", "--served-model-name", "mock", *slow)
        try:
            assert eventually(lambda: frontend.url, 60), frontend.output
            assert eventually(lambda: http(frontend.url + "/v1/models").json["data"], 60), worker.output
            system = next(json.loads(line)["system"] for line in worker.lines if '"system"' in line)
            looks = []
            for stage in STAGES:
                times = []
                for _ in range(rounds):
                    client = send(frontend.url, stage)
                    assert eventually(lambda: in_flight(system) == 1), worker.output
                    if stage == "slow":
                        time.sleep(1)
                    client.close()
                    begun = time.monotonic()
                    while True:
                        look = time.monotonic()
                        left = in_flight(system)
                        looks.append(time.monotonic() - look)
                        if left == 0:
                            break
                    times.append((time.monotonic() - begun) * 1000)
                print(f"{stage:8} median {statistics.median(times):6.1f} ms, worst {max(times):6.1f} ms")
            print(f"one look {statistics.median(looks) * 1000:6.1f} ms")
        finally:
            frontend.end()
            worker.end()


if __name__ == "__main__":
    main()
