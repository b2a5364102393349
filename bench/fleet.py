#!/usr/bin/env python3
"""What a fleet of processes costs, with engines that cost nothing: frontend, request plane and worker processes are what is measured.

plane     tokens per second and CPU per million tokens: `frontend` + `worker` over TCP against `serve` in one process, in turns
idle      memory of a frontend that holds many streams on which nothing happens
workers   500 registered workers: until all are known, what knowing them costs, a request among them, until all are gone
start     from the start of a worker process to the first answer through a frontend that was there before

`--only` chooses among them. The load generator is this program; it reads and counts, and its own CPU is not in any figure.
"""

import argparse
import json
import os
import resource
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sdk"))
from system import BIN, MODEL, Process, Server, eventually, http  # noqa: E402

TICKS = os.sysconf("SC_CLK_TCK")
NAME = "mock"
def mock(speed):
    return ("--engine", "mock", "--served-model-name", NAME, "--set", f"worker.mock_speedup_ratio={speed}")


# Such that the mock engine does not limit anything.
FAST = mock(100_000)
LIMIT_S = 120
CONNECT_AT_ONCE = 64
REGISTERED = "dynamo_component_router_worker_registered"


def cpu_s(process):
    """User and system time of a process, in seconds."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_kib(process):
    text = Path(f"/proc/{process.pid}/status").read_text()
    return int(text.split("VmRSS:")[1].split()[0])


def load():
    return Path("/proc/loadavg").read_text().split()[0]


def median(values):
    return statistics.median(values)


def said(what, **figures):
    """One line, for people and for machines."""
    print(json.dumps({"bench": what, **figures, "load": load()}), flush=True)


class Fleet:
    """Processes that find each other through files of their own."""

    def __init__(self):
        self.store = tempfile.TemporaryDirectory()
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.end()
        self.store.cleanup()

    def start(self, role, *flags):
        self.processes.append(Process(role, self.store.name, *flags))
        return self.processes[-1]

    def frontend(self, *flags):
        front = self.start("frontend", "--port", "0", *flags)
        assert eventually(lambda: front.url, LIMIT_S), front.output
        return front


def registered(url):
    lines = http(url + "/metrics").body.decode().splitlines()
    return sum(line.startswith(REGISTERED + "{") and line.endswith(" 1") for line in lines)


def ready(url, workers=1):
    return eventually(lambda: registered(url) >= workers and http(url + "/v1/models").json["data"], LIMIT_S)


def wire(url, body):
    """The bytes of a request."""
    body = json.dumps(body).encode()
    address = urlsplit(url)
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {address.netloc}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return (address.hostname, address.port), head.encode() + body


class Streams:
    """Many streams at once. What comes is counted and thrown away."""

    def __init__(self):
        self.selector = selectors.DefaultSelector()
        self.open = 0
        # Lines of data that came.
        self.frames = 0

    def begin(self, address, request):
        connection = socket.create_connection(address, timeout=LIMIT_S)
        connection.sendall(request)
        connection.setblocking(False)
        self.selector.register(connection, selectors.EVENT_READ, {"seen": 0, "tail": b""})
        self.open += 1

    def close(self, connection):
        self.selector.unregister(connection)
        connection.close()
        self.open -= 1

    def close_all(self):
        for key in list(self.selector.get_map().values()):
            self.close(key.fileobj)

    def read(self, until, wait_s=1.0):
        """Reads once; returns the connections in whose stream `until` has come."""
        done = []
        for key, _ in self.selector.select(wait_s):
            piece = key.fileobj.recv(1 << 18)
            assert piece, f"a stream broke off: {key.data['tail']!r}"
            state = key.data
            window = state["tail"] + piece
            if not state["seen"]:
                assert b" 200 " in window[:20], window
            state["seen"] += len(piece)
            self.frames += piece.count(b"data: ")
            if until in window:
                done.append(key.fileobj)
            state["tail"] = window[-len(until):]
        return done


def answers(url, streams, tokens):
    """Reads `streams` whole answers of `tokens` tokens, all at once; returns how long that took, and tokens per frame."""
    address, request = wire(url, {
        "model": NAME, "prompt": [20, 21, 22], "max_tokens": tokens, "ignore_eos": True, "stream": True,
    })
    running = Streams()
    begun = time.perf_counter()
    for _ in range(streams):
        running.begin(address, request)
    while running.open:
        for connection in running.read(b"data: [DONE]"):
            running.close(connection)
    return time.perf_counter() - begun, streams * tokens / running.frames


def plane(rounds, streams, tokens, speed):
    with Fleet() as fleet:
        worker = fleet.start("worker", *mock(speed), "--workers", "2")
        front = fleet.frontend()
        assert ready(front.url, 2), front.output
        whole = Server.start(*mock(speed), "--workers", "2", model=MODEL)
        try:
            assert ready(whole.url, 2)
            systems = {"tcp": (front.url, [front.process, worker.process]), "serve": (whole.url, [whole.process])}
            figures = {name: [] for name in systems}
            for url, _ in systems.values():
                answers(url, streams, 32)
            for _ in range(rounds):
                for name, (url, processes) in systems.items():
                    before = [cpu_s(process) for process in processes]
                    took, merged = answers(url, streams, tokens)
                    used = [cpu_s(process) - then for process, then in zip(processes, before)]
                    total = streams * tokens
                    figures[name].append((total / took, [1e6 * each / total for each in used], merged))
            for name, rows in figures.items():
                parts = [median(row[1][at] for row in rows) for at in range(len(rows[0][1]))]
                names = ["frontend", "worker"] if name == "tcp" else ["serve"]
                said("plane", system=name, streams=streams, tokens=tokens, rounds=rounds, engine_speed=speed,
                     tokens_per_frame=round(median(row[2] for row in rows), 2),
                     tokens_per_s=round(median(row[0] for row in rows)),
                     cpu_s_per_million=round(median(sum(row[1]) for row in rows), 2),
                     parts={part: round(value, 2) for part, value in zip(names, parts)})
            ratios = [tcp[0] / serve[0] for tcp, serve in zip(figures["tcp"], figures["serve"])]
            costs = [sum(tcp[1]) / sum(serve[1]) for tcp, serve in zip(figures["tcp"], figures["serve"])]
            said("plane", ratio_of_tokens_per_s=round(median(ratios), 2), ratio_of_cpu=round(median(costs), 2))
        finally:
            whole.stop()


def idle(streams):
    script = {"scripts": [{"steps": [{"text": "a"}, "stall"]}]}
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    # Sockets of clients and of this program's own.
    streams = min(streams, hard - 500)
    with Fleet() as fleet, tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(script, file)
        file.flush()
        worker = fleet.start("worker", "--engine", "scripted", "--script", file.name, "--served-model-name", NAME)
        front = fleet.frontend(
            "--set", f"frontend.max_connections={streams + 100}",
            "--set", "frontend.token_gap_timeout_ms=0", "--set", "frontend.first_answer_timeout_ms=0",
        )
        assert ready(front.url), front.output
        address, request = wire(front.url, {"model": NAME, "prompt": [20, 21, 22], "max_tokens": 1000, "stream": True})
        held = Streams()
        rows = []

        def more(count):
            """Until so many more streams have their first token."""
            left = count
            started = 0
            while left:
                while started < count and started - (count - left) < CONNECT_AT_ONCE:
                    held.begin(address, request)
                    started += 1
                left -= len(held.read(b"data: {"))

        # What the first streams bring about is there once.
        more(200)
        first = (resident_kib(front.process), resident_kib(worker.process))
        begun = time.perf_counter()
        more(streams - 200)
        took = time.perf_counter() - begun
        full = (resident_kib(front.process), resident_kib(worker.process))
        rows = [round((after - before) / (streams - 200), 1) for after, before in zip(full, first)]
        busy = [cpu_s(front.process), cpu_s(worker.process)]
        time.sleep(10)
        idle_cpu = [cpu_s(front.process) - busy[0], cpu_s(worker.process) - busy[1]]
        said("idle", streams=streams, kib_per_stream={"frontend": rows[0], "worker": rows[1]}, began_per_s=round((streams - 200) / took),
             resident_mib={"frontend": full[0] >> 10, "worker": full[1] >> 10},
             cpu_share={"frontend": round(idle_cpu[0] / 10, 3), "worker": round(idle_cpu[1] / 10, 3)})
        begun = time.perf_counter()
        held.close_all()
        assert eventually(lambda: gauge(front.url, "dynamo_frontend_active_requests") == 0, LIMIT_S)
        said("idle", all_cancelled_after_s=round(time.perf_counter() - begun, 2))


def gauge(url, family):
    lines = http(url + "/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.split("{")[0] == family)


def timed(call, times):
    took = []
    for _ in range(times):
        begun = time.perf_counter()
        call()
        took.append(1000 * (time.perf_counter() - begun))
    return round(median(took), 2)


def request_ms(url, times=200):
    body = {"model": NAME, "prompt": list(range(20, 212)), "max_tokens": 1}

    def call():
        answer = http(url + "/v1/completions", body)
        assert answer.status == 200, answer.body

    return timed(call, times)


def request_cpu_us(front, times=1000):
    """Of the frontend, the connection included."""
    before = cpu_s(front.process)
    request_ms(front.url, times)
    return round(1e6 * (cpu_s(front.process) - before) / times)


def workers(count, processes):
    for number in (2, count):
        with Fleet() as fleet:
            front = fleet.frontend()
            empty = resident_kib(front.process)
            begun = time.perf_counter()
            each = max(1, number // processes)
            hosts = [fleet.start("worker", *FAST, "--workers", str(each)) for _ in range(number // each)]
            assert ready(front.url, each * len(hosts)), front.output
            known = time.perf_counter() - begun
            spent = {"frontend": cpu_s(front.process), "workers": sum(cpu_s(host.process) for host in hosts)}
            # Nothing is asked meanwhile.
            busy = [cpu_s(front.process), [cpu_s(host.process) for host in hosts]]
            time.sleep(15)
            idle_front = (cpu_s(front.process) - busy[0]) / 15
            idle_hosts = sum(cpu_s(host.process) - then for host, then in zip(hosts, busy[1])) / 15
            http(front.url + "/v1/completions", {"model": NAME, "prompt": [20], "max_tokens": 1})
            figures = {
                "known_after_s": round(known, 2),
                "cpu_share_idle": {"frontend": round(idle_front, 3), "workers": round(idle_hosts, 3)},
                "frontend_kib_per_worker": round((resident_kib(front.process) - empty) / number, 1),
                "cpu_s_until_known": {name: round(value, 2) for name, value in spent.items()},
                "request_ms": request_ms(front.url),
                "request_cpu_us": request_cpu_us(front),
                "metrics_ms": timed(lambda: http(front.url + "/metrics"), 20),
                "status_json_ms": timed(lambda: http(front.url + "/status.json"), 20),
                "health_ms": timed(lambda: http(front.url + "/health"), 20),
                "dynamo_status_ms": timed(lambda: status(fleet, front), 5),
            }
            begun = time.perf_counter()
            for host in hosts:
                host.signal(signal.SIGKILL)
            assert eventually(lambda: registered(front.url) == 0, LIMIT_S)
            figures["gone_after_s"] = round(time.perf_counter() - begun, 2)
            said("workers", workers=each * len(hosts), processes=len(hosts), **figures)


def status(fleet, front):
    command = [BIN, "status", "--url", front.url]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT_S)


def start(rounds):
    engines = {"mock": FAST, "embedded": (MODEL, "--served-model-name", NAME, "--threads", "1")}
    for name, flags in engines.items():
        took = []
        for _ in range(rounds):
            with Fleet() as fleet:
                front = fleet.frontend()
                body = {"model": NAME, "prompt": "The", "max_tokens": 1}
                begun = time.perf_counter()
                fleet.start("worker", *flags, "--workers", "1")
                while http(front.url + "/v1/completions", body).status != 200:
                    assert time.perf_counter() - begun < LIMIT_S, front.output
                    time.sleep(0.002)
                took.append(1000 * (time.perf_counter() - begun))
        said("start", engine=name, rounds=rounds, median_ms=round(median(took)), least_ms=round(min(took)), most_ms=round(max(took)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="plane,idle,workers,start")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=64, help="at once, in `plane`")
    parser.add_argument("--tokens", type=int, default=2000, help="of each stream, in `plane`")
    parser.add_argument("--idle-streams", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--processes", type=int, default=5, help="that they are spread over")
    options = parser.parse_args()
    benches = {
        # At full speed frames hold many tokens, for neither the client nor the plane keeps up; paced, one.
        "plane": lambda: [plane(options.rounds, options.streams, options.tokens, speed) for speed in (100_000, 1)],
        "idle": lambda: idle(options.idle_streams),
        "workers": lambda: workers(options.workers, options.processes),
        "start": lambda: start(options.rounds),
    }
    for name in options.only.split(","):
        benches[name]()


if __name__ == "__main__":
    main()
