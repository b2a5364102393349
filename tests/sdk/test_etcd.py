"""Frontend and workers that find each other through etcd: it dies, comes back with nothing, and no client notices."""

import os
import signal
import socket
import subprocess
import threading

import pytest
from system import BIN, LISTENING, MODEL, Process, Stream, eventually, http

LIMIT_S = 60
LEASE_S = 5
# At the mock engine's own speed, seconds.
TOKENS = 600


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    """A private etcd that can be killed and started again on its ports."""

    def __init__(self, directory):
        self.directory = directory
        self.process = None
        self.starts = 0
        # Somebody may have taken a port meanwhile.
        for _ in range(5):
            self.client, self.peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
            if self.start():
                return
        raise AssertionError("etcd does not start")

    def start(self):
        """With what it held before, unless `lose` was called."""
        self.starts += 1
        flags = ["--listen-client-urls", self.client, "--advertise-client-urls", self.client]
        flags += ["--listen-peer-urls", self.peer, "--initial-advertise-peer-urls", self.peer]
        flags += ["--initial-cluster", f"default={self.peer}", "--data-dir", str(self.directory / "data")]
        with open(self.directory / f"log-{self.starts}", "wb") as log:
            self.process = subprocess.Popen(["etcd", *flags], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return eventually(lambda: self.answers() or self.process.poll() is not None, LIMIT_S) and self.answers()

    def answers(self):
        try:
            return http(self.client + "/health", timeout_s=5).json["health"] == "true"
        except (OSError, ValueError):
            return False

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)

    def lose(self):
        (self.directory / "data").rename(self.directory / f"lost-{self.starts}")


class Fleet:
    def __init__(self, directory):
        self.processes = []
        self.etcd = Etcd(directory)
        self.frontend = self.start("frontend", "--port", "0")
        assert eventually(lambda: LISTENING.search(self.frontend.output), LIMIT_S), self.frontend.output
        self.url = LISTENING.search(self.frontend.output).group(1)

    def start(self, role, *flags):
        environment = {"ETCD_ENDPOINTS": self.etcd.client, "ETCD_LEASE_TTL": str(LEASE_S)}
        self.processes.append(Process(role, None, *flags, "--discovery-backend", "etcd", **environment))
        return self.processes[-1]

    def registered(self, url=None):
        """Ids of the workers that the router of a frontend may choose."""
        family = "dynamo_component_router_worker_registered"
        lines = http((url or self.url) + "/metrics").body.decode().splitlines()
        rows = [line.rsplit(" ", 1) for line in lines if line.startswith(family)]
        return {name.split('worker_id="')[1].split('"')[0] for name, value in rows if float(value)}

    def worker(self):
        before = self.registered()
        process = self.start("worker", MODEL, "--engine", "mock", "--workers", "1")
        assert eventually(lambda: self.registered() - before, LIMIT_S), process.output
        (new,) = self.registered() - before
        return new, process

    def body(self, **fields):
        return {"model": self.model, "prompt": "one two three", "max_tokens": 8, "ignore_eos": True, **fields}

    def ask(self):
        return http(self.url + "/v1/completions", self.body())

    def stream(self):
        return Stream(self.url + "/v1/completions", self.body(max_tokens=TOKENS))

    @property
    def model(self):
        return http(self.url + "/v1/models").json["data"][0]["id"]

    def end(self):
        for process in self.processes:
            process.end()
        self.etcd.kill()


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()


def test_no_client_notices_what_becomes_of_etcd(fleet):
    first, second = fleet.worker(), fleet.worker()
    both = {first[0], second[0]}

    # Killed while answers are being given: they end as they should, and new ones begin.
    streams = [fleet.stream() for _ in range(8)]
    assert eventually(lambda: all(stream.chunks for stream in streams), LIMIT_S)
    assert not any(stream.done for stream in streams)
    fleet.etcd.kill()
    for _ in range(5):
        answer = fleet.ask()
        assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 8), answer.body
    for stream in streams:
        stream.thread.join(LIMIT_S)
        assert stream.done and not stream.has_failed, stream.chunks[-3:]
        assert stream.chunks[-1]["usage"]["completion_tokens"] == TOKENS

    # It comes back with nothing: those who live are there all the while, and are found by others.
    fleet.etcd.lose()
    assert fleet.etcd.start()
    missed = []
    stop = threading.Event()

    def look():
        while not stop.wait(0.05):
            missed.extend(both - fleet.registered())

    looking = threading.Thread(target=look)
    looking.start()
    third = fleet.worker()
    late = fleet.start("frontend", "--port", "0")
    assert eventually(lambda: LISTENING.search(late.output), LIMIT_S), late.output
    other = LISTENING.search(late.output).group(1)
    everybody = both | {third[0]}
    assert eventually(lambda: fleet.registered(other) == everybody, LIMIT_S), late.output
    stop.wait(1.5 * LEASE_S)
    stop.set()
    looking.join(LIMIT_S)
    assert missed == []
    assert fleet.registered() == everybody

    # Killed: its lease ends. Asked to leave: it says so.
    first[1].process.send_signal(signal.SIGKILL)
    assert eventually(lambda: fleet.registered() == everybody - {first[0]}, LIMIT_S)
    second[1].process.send_signal(signal.SIGTERM)
    assert second[1].process.wait(LIMIT_S) == 0
    assert eventually(lambda: fleet.registered() == {third[0]}, LIMIT_S)
    assert fleet.ask().status == 200
    assert fleet.frontend.process.poll() is None


def test_an_etcd_that_is_not_there_is_one_clear_line():
    with socket.socket() as closed:
        # Bound, and nobody listens.
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        environment = {**os.environ, "ETCD_ENDPOINTS": address, "ETCD_STARTUP_CONNECT_TIMEOUT_SECONDS": "1"}
        command = [BIN, "frontend", "--port", "0", "--discovery-backend", "etcd"]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
    assert ended.returncode != 0
    assert f"discovery store: etcd at {address}: " in ended.stderr, ended.stderr
