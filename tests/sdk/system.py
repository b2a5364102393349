"""A running `dynamo serve`, what its metrics say, and the ledger that must balance after whatever was done to it."""

import json
import os
import re
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = os.environ.get("DYNAMO_BIN") or str(ROOT / "target/release/dynamo")
MODEL = os.environ.get("DYNAMO_MODEL") or subprocess.check_output(
    [ROOT / "scripts/fetch-model.sh"], text=True
).strip().splitlines()[-1]

# Long enough for a cold disk, short against the limit of one test.
START_LIMIT_S = 120
STOP_LIMIT_S = 60
SETTLE_LIMIT_S = 30
POLL_S = 0.02

LISTENING = re.compile(r"listening on (https?://[0-9.]+:[0-9]+)")

# Sums over all label values; each must return to what it was before the requests.
LEDGER = (
    "dynamo_frontend_active_requests",
    "dynamo_frontend_worker_active_decode_blocks",
    "dynamo_frontend_worker_active_prefill_tokens",
    "dynamo_component_inflight_requests",
    "dynamo_component_gpu_cache_usage_percent",
)


# Sockets among them. A connection that a client kept open before may have been closed since.
OPEN_FILES = "open files"


@dataclass
class Reply:
    status: int
    headers: dict
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)


def http(url: str, body=None, method=None, headers=None, timeout_s=60) -> Reply:
    """One plain request; an error status is an answer, not an exception."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    if data is not None:
        request.add_header("content-type", "application/json")
    for name, value in (headers or {}).items():
        request.add_header(name, value)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return Reply(answer.status, dict(answer.headers), answer.read())
    except urllib.error.HTTPError as error:
        return Reply(error.code, dict(error.headers), error.read())


def eventually(probe, limit_s=SETTLE_LIMIT_S):
    """Waits until `probe()` is true and returns whether that happened."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        if probe():
            return True
        time.sleep(POLL_S)
    return bool(probe())


@dataclass
class Server:
    process: subprocess.Popen
    flags: list
    url: str = ""
    lines: list = field(default_factory=list)
    _ready: threading.Event = field(default_factory=threading.Event)

    @classmethod
    def start(cls, *flags: str, model: str = MODEL) -> "Server":
        process = subprocess.Popen(
            [BIN, "serve", model, "--port", "0", *flags],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        server = cls(process, list(flags))
        server._reader = threading.Thread(target=server._read, daemon=True)
        server._reader.start()
        if not server._ready.wait(START_LIMIT_S) or not server.url:
            process.kill()
            raise AssertionError("the server did not say where it listens:\n" + server.output)
        return server

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            found = LISTENING.search(line)
            if found and not self.url:
                self.url = found.group(1)
                self._ready.set()
        self._ready.set()

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def get(self, path: str) -> Reply:
        return http(self.url + path)

    def post(self, path: str, body) -> Reply:
        return http(self.url + path, body)

    def metrics(self) -> dict:
        """Every sample: `name{labels}` to value."""
        samples = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line and not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                samples[name] = float(value)
        return samples

    def total(self, family: str) -> float:
        """The sum of a family's samples; fails on a family that is not there, so a renamed one cannot pass as 0."""
        values = [value for name, value in self.metrics().items() if name.split("{")[0] == family]
        assert values, f"{family} is not in /metrics"
        return sum(values)

    def ledger(self) -> dict:
        samples = self.metrics()
        totals = {
            family: sum(value for name, value in samples.items() if name.split("{")[0] == family)
            for family in LEDGER
        }
        totals[OPEN_FILES] = len(os.listdir(f"/proc/{self.process.pid}/fd"))
        return totals

    def threads(self) -> int:
        """Not in the ledger: idle threads of the pool for long computations end after some seconds."""
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def signal(self, number: int):
        self.process.send_signal(number)

    def wait(self, limit_s=STOP_LIMIT_S) -> int:
        code = self.process.wait(limit_s)
        self._reader.join(limit_s)
        return code

    def stop(self) -> int:
        """Drains and ends the server; returns its exit code."""
        if self.process.poll() is None:
            self.signal(signal.SIGINT)
            try:
                return self.wait()
            except subprocess.TimeoutExpired:
                self.process.kill()
                raise AssertionError("the server did not drain:\n" + self.output)
        return self.process.returncode


def settled(server: Server, start: dict):
    """Asserts that the ledger is back at `start`."""

    def balanced():
        now = server.ledger()
        return now.pop(OPEN_FILES) <= start[OPEN_FILES] and all(value == start[name] for name, value in now.items())

    assert eventually(balanced), f"the ledger does not balance: {start} became {server.ledger()}"


class Process:
    """One `dynamo` process and what it says."""

    def __init__(self, role, store, *flags, **environment):
        """`store`: the directory of the fleet's discovery; None: the flags say how it finds others."""
        self.lines = []
        discovery = ("--discovery-backend", "file", "--discovery-path", str(store)) if store else ()
        self.process = subprocess.Popen(
            [BIN, role, *flags, *discovery],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self):
        return "\n".join(self.lines)

    @property
    def url(self):
        found = LISTENING.search(self.output)
        return found.group(1) if found else ""

    def signal(self, number):
        self.process.send_signal(number)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.reader.join(10)


class Stream:
    """An answer that is read as it comes."""

    def __init__(self, url, body):
        self.chunks = []
        self.done = False
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        self.request = urllib.request.Request(url, json.dumps(body).encode())
        self.request.add_header("content-type", "application/json")
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        with urllib.request.urlopen(self.request, timeout=60) as answer:
            for line in answer:
                if line.strip() == b"data: [DONE]":
                    self.done = True
                elif line.startswith(b"data: "):
                    self.chunks.append(json.loads(line[len(b"data: ") :]))

    @property
    def has_failed(self):
        return any("error" in chunk for chunk in self.chunks)
