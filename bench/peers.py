#!/usr/bin/env python3
"""Measures what a request and a token cost on the path, ours and the peers', under the same loads in the same run.

The process under test is pinned to core 0, client and back ends to core 1. CPU time is the scheduler's own count of each
thread (nanoseconds), so a busy machine changes the figures far less than the clock on the wall; `foreign` says how much of
the machine others used. Systems take turns: in each round each is started once for the bursts and once for the paced load.
The median of the rounds is given.

  bare      mocksse: a server that only emits frames, the floor that the budgets of DESIGN.md section 6 are ratios to
  ours-fleet  this repository: `dynamo frontend` under test, `dynamo worker --engine mock` as its back end over TCP. This is
            what compares with the peers' frontends and routers
  ours-serve  this repository: `dynamo serve --engine mock`, all in the process; the engine's threads are counted apart
  peers     dynamo-1.6.1 (round robin and kv, and kv with its fast tokenizer), vllm-router, sglang-router

Bursts flatter whoever joins the tokens that wait into one frame: read `frames a request` beside them. In `paced` every
token of every system is a frame of its own, so that is the cost per frame.

Start and idle memory: with one worker already there, the process under test is executed again and again; its port is asked
without a pause longer than 0.2 ms. `answers` is the first HTTP answer of status 200, `knows` the first that names the model.

Environment: LOADTOOL (folder with loadgen and mocksse), MODEL_DIR (tokenizer folder), BODIES (folder with short.jsonl and
long.jsonl), made as the README of ../shared/bench says; for the peers DYN_PY, VLLM_ROUTER, SGLANG_ROUTER; DYNAMO_BIN
(default target/dist/dynamo, which `make dist` builds as `mocksse` is built, else target/release/dynamo).

usage: peers.py [--rounds 3] [--secs 3] [--starts 10] [--minutes M] [--systems a,b,...] [--cells a,b,...] [--json FILE]
"""
import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

PORT = 18000
BACKENDS = 4
PACE_US = 6000
# name: bodies, requests at once, answer tokens, paced; one at a time is with a kept-alive connection
CELLS = {
    "short": ("short", 32, 64, False),
    "alone": ("short", 1, 64, False),
    "alone-long": ("long", 1, 16, False),
    "long": ("long", 16, 16, False),
    "paced": ("short", 64, 64, True),
}
BUILDS = ["target/dist/dynamo", "target/release/dynamo"]
SYSTEMS = ["bare", "ours-fleet", "ours-serve", "dynamo-1.6.1-rr", "dynamo-1.6.1-kv", "dynamo-1.6.1-kv-fast", "vllm-router",
           "sglang-router"]
# The peers take about a second to start and to settle: fewer starts of them are enough.
PEER_STARTS = 3
# Threads of the process under test that are an engine and not the path to it.
ENGINE_THREAD = "mock-engine"
# The peers' mock and ours share the formula of the step time; a speed-up of 1 is about 6 ms a token.
PEER_SPEED_UP = {True: "1", False: "1000000"}
OUR_SPEED_UP = {True: "1", False: "0"}


class System:
    """A system: its back ends run while this lives, the process under test from `launch` to the next one."""

    def __init__(self, stack, name, paced, backends=BACKENDS):
        self.stack, self.name, self.paced, self.backends = stack, name, paced, backends
        self.work = stack.enter_context(tempfile.TemporaryDirectory())
        self.port, self.path, self.process, self.others = PORT, "/v1/chat/completions", None, []
        stack.callback(self.halt)
        # Asked until it answers, asked until it names the model, what it is named by, seconds until requests spread.
        self.asked, self.named, self.mark, self.settle = "/v1/models", "/v1/models", b'"tiny"', 0.3
        begin = {"bare": self.bare, "ours-fleet": self.our_fleet, "ours-serve": self.our_serve,
                 "vllm-router": self.router_peer, "sglang-router": self.router_peer}
        self.command, self.env = begin.get(name, self.dynamo_peer)()

    def launch(self):
        """Executes the process under test; milliseconds until it answers, and until it knows the model."""
        self.halt()
        begun = time.monotonic()
        self.process = self.spawn(0, self.command, self.env)
        answers = self.until(self.port, self.asked, b"") - begun
        knows = self.until(self.port, self.named, self.mark) - begun
        time.sleep(self.settle)
        return 1000 * answers, 1000 * knows

    def halt(self):
        if self.process:
            stop(self.process)
            self.process = None

    def spawn(self, core, command, env=None):
        log = self.stack.enter_context(open(os.path.join(self.work, f"{len(os.listdir(self.work))}.log"), "w"))
        return subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, **(env or {})},
                                preexec_fn=lambda: os.sched_setaffinity(0, {core}))

    def back_end(self, command, env=None):
        process = self.spawn(1, command, env)
        self.stack.callback(stop, process)
        self.others.append(process.pid)

    def mock(self, port):
        pace = ["--itl-us", str(PACE_US), "--ttft-us", str(PACE_US)] if self.paced else []
        return [f"{os.environ['LOADTOOL']}/mocksse", str(port), *pace]

    def bare(self):
        self.asked = self.named = "/health"
        self.mark = b""
        return self.mock(PORT), None

    def our_engine(self):
        # The defaults of the reference system's mock, so that both keep as many blocks of the same size.
        sets = ["worker.block_size=64", "worker.kv_blocks=16384", "worker.max_num_batched_tokens=8192",
                f"worker.mock_speedup_ratio={OUR_SPEED_UP[self.paced]}"]
        return [os.environ["MODEL_DIR"], "--engine", "mock", "--served-model-name", "tiny", "--workers", str(self.backends),
                *[x for s in sets for x in ("--set", s)]]

    def our_fleet(self):
        env = {"DYN_LOG": "warn"}
        found = os.path.join(self.work, "discovery")
        os.mkdir(found, 0o700)
        self.back_end([our_binary(), "worker", *self.our_engine(), "--discovery-path", found], env)
        self.registered(found)
        return [our_binary(), "frontend", "--port", str(PORT), "--discovery-path", found], env

    def our_serve(self):
        return [our_binary(), "serve", *self.our_engine(), "--port", str(PORT)], {"DYN_LOG": "warn"}

    def dynamo_peer(self):
        python, host, found = os.environ["DYN_PY"], "127.0.0.1", os.path.join(self.work, "kv")
        env = {"DYN_DISCOVERY_BACKEND": "file", "DYN_FILE_KV": found, "DYN_REQUEST_PLANE": "tcp",
               "DYN_EVENT_PLANE": "zmq", "HF_HUB_OFFLINE": "1", "DYN_LOG": "warn", "DYN_TCP_RPC_HOST": host,
               "DYN_TCP_RESPONSE_STREAM_HOST": host, "DYN_EVENT_PLANE_HOST": host, "DYN_SYSTEM_HOST": host}
        self.back_end([python, "-m", "dynamo.mocker", "--model-path", os.environ["MODEL_DIR"], "--model-name", "tiny",
                       "--speedup-ratio", PEER_SPEED_UP[self.paced], "--num-workers", str(self.backends)], env)
        self.registered(found)
        self.asked, self.settle = "/live", 1.5
        mode = "round-robin" if self.name.endswith("rr") else "kv"
        fast = ["--tokenizer", "fastokens"] if self.name.endswith("fast") else []
        return [python, "-m", "dynamo.frontend", "--http-host", host, "--http-port", str(PORT), "--router-mode", mode,
                *fast], env

    def router_peer(self):
        ports = [PORT + 1 + index for index in range(self.backends)]
        for port in ports:
            self.back_end(self.mock(port))
        for port in ports:
            self.until(port, "/health", b"")
        self.asked, self.settle = "/health", 2.5
        vllm = self.name == "vllm-router"
        command = [os.environ["VLLM_ROUTER"]] if vllm else [os.environ["SGLANG_ROUTER"], "launch"]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        return [*command, "--worker-urls", *urls, "--policy", "round_robin", "--host", "127.0.0.1", "--port", str(PORT),
                "--prometheus-host", "127.0.0.1", "--prometheus-port", "18900", "--log-level",
                "warning" if vllm else "warn"], None

    def registered(self, folder):
        """Waits until the back end has written what it offers."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            # Ours keeps flat names with the key in them, the peer folders.
            paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]
            if any("instances" in os.path.relpath(path, folder) for path in paths):
                time.sleep(1.0)
                return
            time.sleep(0.01)
        raise SystemExit(f"{self.name}: no worker registered")

    def until(self, port, path, mark):
        """When the port first answered with status 200 and `mark` in the body."""
        deadline = time.monotonic() + 60
        request = f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n".encode()
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as client:
                client.sendall(request)
                answer = b"".join(iter(lambda: client.recv(65536), b""))
                if b" 200 " in answer[:16] and mark in answer:
                    return time.monotonic()
            time.sleep(0.0002)
        raise SystemExit(f"{self.name}: no answer from {path}")

    def load(self, cell, secs, offset):
        bodies, at_once, _, _ = CELLS[cell]
        command = [f"{os.environ['LOADTOOL']}/loadgen", "--port", str(self.port), "--path", self.path, "--bodies",
                   f"{os.environ['BODIES']}/{bodies}.jsonl", "-c", str(at_once), "--secs", str(secs), "--offset", str(offset)]
        if at_once == 1:
            command += ["--gap-us", "2000"]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)


def our_binary():
    return os.environ.get("DYNAMO_BIN") or next(filter(os.path.exists, BUILDS), BUILDS[-1])


def stop(process):
    process.terminate()
    try:
        process.wait(8)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def memory(pid, key):
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith(key))


def cpu_s(pid):
    """CPU seconds of the process: all of it, and of its engine threads."""
    whole = engine = 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(FileNotFoundError):
            with open(f"/proc/{pid}/task/{thread}/schedstat") as stat:
                seconds = int(stat.read().split()[0]) / 1e9
            with open(f"/proc/{pid}/task/{thread}/comm") as comm:
                engine += seconds if comm.read().strip() == ENGINE_THREAD else 0
            whole += seconds
    return whole, engine


def machine():
    with open("/proc/stat") as stat:
        fields = [int(field) for field in stat.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")


def measure(system, cell, secs, offset):
    """One load on a system that runs."""
    tokens = CELLS[cell][2]
    system.load(cell, min(0.6, secs / 3), offset)
    others = sum(cpu_s(pid)[0] for pid in system.others)
    before, busy, begun = cpu_s(system.process.pid), machine(), time.monotonic()
    seen = system.load(cell, secs, offset + 700)
    after, busy, wall = cpu_s(system.process.pid), machine() - busy, time.monotonic() - begun
    others = sum(cpu_s(pid)[0] for pid in system.others) - others
    whole, engine = after[0] - before[0], after[1] - before[1]
    requests = seen["ok"]
    if not requests or seen["bad"] or seen["conn_errs"]:
        raise SystemExit(f"{system.name}, {cell}: {seen}")
    return {
        "system": system.name, "cell": cell, "requests": requests, "rps": requests / wall,
        "per_1k_s": 1e3 * whole / requests, "per_1m_s": 1e6 * whole / (requests * tokens),
        "per_1k_path_s": 1e3 * (whole - engine) / requests, "per_1m_path_s": 1e6 * (whole - engine) / (requests * tokens),
        "per_1m_others_s": 1e6 * others / (requests * tokens), "frames_per_request": seen["toks"] / requests,
        "ttft_p50_ms": seen["ttft_p50_ms"], "ttft_p90_ms": seen["ttft_p90_ms"],
        "peak_mb": memory(system.process.pid, "VmHWM"),
        "foreign": max(0.0, busy - whole - others - seen["client_cpu_s"]) / (wall * os.cpu_count()),
    }


def loads(name, cells, secs, offset):
    """The cells of one system, one start for the bursts and one for the paced load."""
    for paced in (False, True):
        chosen = [cell for cell in cells if CELLS[cell][3] == paced]
        if chosen:
            with contextlib.ExitStack() as stack:
                system = System(stack, name, paced)
                system.launch()
                for place, cell in enumerate(chosen):
                    yield measure(system, cell, secs, offset + 4000 * place)


def starts(name, count):
    """Executes the process under test again and again beside one worker that is there."""
    with contextlib.ExitStack() as stack:
        system = System(stack, name, False, backends=1)
        for _ in range(count if name == "bare" or name.startswith("ours") else min(count, PEER_STARTS)):
            busy, begun = machine() - own_s(), time.monotonic()
            answers, knows = system.launch()
            used = cpu_s(system.process.pid)[0]
            foreign = machine() - own_s() - busy - used
            yield {"system": name, "cell": "start", "answers_ms": answers, "knows_ms": knows,
                   "idle_mb": memory(system.process.pid, "VmRSS"),
                   "foreign": max(0.0, foreign) / ((time.monotonic() - begun) * os.cpu_count())}


def own_s():
    return time.process_time()


def table(rows, columns):
    cells = {}
    for row in rows:
        cells.setdefault(row["cell"], {}).setdefault(row["system"], []).append(row)
    print("| cell | system | runs | " + " | ".join(title for title, _, _ in columns) + " |")
    print("|---|---|---|" + "---|" * len(columns))
    for cell, systems in cells.items():
        for system, runs in systems.items():
            values = [f"{statistics.median(run[key] for run in runs):,.{digits}f}" for _, key, digits in columns]
            print(f"| {cell} | {system} | {len(runs)} | " + " | ".join(values) + " |")
    print()


LOAD_COLUMNS = [
    ("CPU s per 1k requests", "per_1k_s", 3), ("path only", "per_1k_path_s", 3), ("CPU s per 1M tokens", "per_1m_s", 2),
    ("path only", "per_1m_path_s", 2), ("back ends", "per_1m_others_s", 2), ("frames a request", "frames_per_request", 1),
    ("req/s", "rps", 0), ("TTFT p50 ms", "ttft_p50_ms", 3), ("p90", "ttft_p90_ms", 3), ("peak MB", "peak_mb", 0),
    ("foreign", "foreign", 2)]
START_COLUMNS = [("answers ms", "answers_ms", 1), ("knows ms", "knows_ms", 1), ("idle MB", "idle_mb", 1),
                 ("foreign", "foreign", 2)]


def note(rows, row, path):
    rows.append(row)
    print(json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in row.items()}),
          file=sys.stderr, flush=True)
    if path:
        with open(path, "a") as out:
            out.write(json.dumps(row) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--secs", type=float, default=3)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=60, help="begin no round that would not end within this")
    parser.add_argument("--systems", default=",".join(SYSTEMS))
    parser.add_argument("--cells", default=",".join(CELLS), help="none: starts only")
    parser.add_argument("--json", help="append each run to this file, one JSON object a line")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {1})
    systems, cells = arguments.systems.split(","), [cell for cell in arguments.cells.split(",") if cell != "none"]
    print(f"ours: {our_binary()}", file=sys.stderr)
    begun, started, rows = time.monotonic(), [], []
    for name in systems if arguments.starts else []:
        for row in starts(name, arguments.starts):
            note(started, row, arguments.json)
    for turn in range(arguments.rounds if cells else 0):
        round_begun = time.monotonic()
        for name in systems:
            for row in loads(name, cells, arguments.secs, 1500 * turn):
                note(rows, row, arguments.json)
        now = time.monotonic()
        if now + (now - round_begun) > begun + 60 * arguments.minutes:
            break
    table(started, START_COLUMNS)
    table(rows, LOAD_COLUMNS)


if __name__ == "__main__":
    main()
