"""Frontend and workers that reach a NATS server and not each other: workers die and freeze, NATS dies and comes back."""

import re
import signal
import socket
import struct
import subprocess

import pytest
from system import LISTENING, MODEL, Process, Stream, eventually, http

LIMIT_S = 60
# At the mock engine's own speed, seconds.
TOKENS = 300
# After which a peer that says nothing is gone.
SILENCE = ("--set", "request_plane.dead_after_ms=3000")


class Nats:
    """A private NATS that can be killed and started again on its port."""

    def __init__(self, directory, *flags):
        self.directory = directory
        self.flags = flags
        self.process = None
        self.starts = 0
        # Somebody may have taken the port meanwhile.
        for _ in range(5):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                self.port = probe.getsockname()[1]
            if self.start():
                return
        raise AssertionError("nats-server does not start")

    @property
    def url(self):
        return f"nats://127.0.0.1:{self.port}"

    def start(self):
        self.starts += 1
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(self.port), *self.flags]
        with open(self.directory / f"nats-log-{self.starts}", "wb") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        return eventually(lambda: self.answers() or self.process.poll() is not None, LIMIT_S) and self.answers()

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as probe:
                return probe.recv(5) == b"INFO "
        except OSError:
            return False

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(LIMIT_S)


class Fleet:
    def __init__(self, directory):
        self.processes = []
        self.store = directory / "store"
        self.nats = Nats(directory)

    def begin(self):
        self.frontend = self.start("frontend", "--port", "0", *SILENCE, DYN_REQUEST_PLANE="nats")
        assert eventually(lambda: LISTENING.search(self.frontend.output), LIMIT_S), self.frontend.output
        self.url = LISTENING.search(self.frontend.output).group(1)

    def start(self, role, *flags, **environment):
        environment = {"NATS_SERVER": self.nats.url, **environment}
        self.processes.append(Process(role, self.store, *flags, **environment))
        return self.processes[-1]

    def samples(self, family):
        lines = http(self.url + "/metrics").body.decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(family)}

    def registered(self):
        rows = self.samples("dynamo_component_router_worker_registered")
        return {name.split('worker_id="')[1].split('"')[0] for name, value in rows.items() if value}

    def worker(self, transport="nats"):
        before = self.registered()
        flags = ("--engine", "mock", "--workers", "1", "--request-plane", transport, *SILENCE)
        process = self.start("worker", MODEL, *flags)
        assert eventually(lambda: self.registered() - before, LIMIT_S), process.output
        (new,) = self.registered() - before
        return new, process

    def busy(self):
        """Workers that have a request."""
        rows = self.samples("dynamo_frontend_worker_active_requests")
        return {name.split('worker_id="')[1].split('"')[0] for name, value in rows.items() if value}

    def migrations(self):
        return sum(self.samples("dynamo_frontend_model_migration_total").values())

    def body(self, **fields):
        return {"model": self.model, "prompt": "one two three", "ignore_eos": True, "seed": 7, **fields}

    def ask(self):
        return http(self.url + "/v1/completions", self.body(max_tokens=8))

    @property
    def model(self):
        return http(self.url + "/v1/models").json["data"][0]["id"]

    def end(self):
        for process in self.processes:
            process.end()
        self.nats.kill()


class Answer(Stream):
    def __init__(self, fleet):
        super().__init__(fleet.url + "/v1/completions", fleet.body(max_tokens=TOKENS))

    def text(self):
        self.thread.join(LIMIT_S)
        assert self.done and not self.has_failed, self.chunks[-3:]
        assert self.chunks[-1]["usage"]["completion_tokens"] == TOKENS
        return "".join(choice["text"] for chunk in self.chunks for choice in chunk["choices"])


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path)
    try:
        fleet.begin()
        yield fleet
    finally:
        fleet.end()


def test_what_becomes_of_workers_and_of_nats(fleet):
    first, second = fleet.worker(), fleet.worker()
    for _, process in (first, second):
        assert re.search(r"at nats:dynamo\.dynamo\.connect\.[0-9a-f]{16}", process.output), process.output
    undisturbed = Answer(fleet).text()

    # Killed in the middle of answers: they move, and every token comes once.
    streams = [Answer(fleet) for _ in range(8)]
    assert eventually(lambda: all(stream.chunks for stream in streams), LIMIT_S)
    assert eventually(lambda: first[0] in fleet.busy(), LIMIT_S)
    first[1].process.send_signal(signal.SIGKILL)
    assert {stream.text() for stream in streams} == {undisturbed}
    assert fleet.migrations() > 0

    # NATS dies: no answer hangs. It comes back: answers come again, with nobody started anew.
    streams = [Answer(fleet) for _ in range(4)]
    assert eventually(lambda: all(stream.chunks for stream in streams), LIMIT_S)
    fleet.nats.kill()
    assert eventually(lambda: fleet.busy() == set(), LIMIT_S), "nobody is reached"
    assert eventually(fleet.nats.start, LIMIT_S)
    for stream in streams:
        stream.thread.join(LIMIT_S)
        assert stream.done
    assert eventually(lambda: fleet.ask().status == 200, LIMIT_S)

    # Stopped: found by its silence. The other one is reached by TCP, by the same frontend.
    third = fleet.worker("tcp")
    streams = [Answer(fleet) for _ in range(8)]
    assert eventually(lambda: fleet.busy() == {second[0], third[0]}, LIMIT_S)
    assert eventually(lambda: all(stream.chunks for stream in streams), LIMIT_S)
    second[1].process.send_signal(signal.SIGSTOP)
    assert {stream.text() for stream in streams} == {undisturbed}

    # It goes on, and leaves when it is asked to.
    second[1].process.send_signal(signal.SIGCONT)
    second[1].process.send_signal(signal.SIGTERM)
    assert second[1].process.wait(LIMIT_S) == 0
    assert fleet.ask().status == 200
    assert fleet.frontend.process.poll() is None


class Client:
    """As much of NATS as a pipe needs, by `docs/request-plane.md`."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
        self.file = self.socket.makefile("rb")
        assert self.file.readline().startswith(b"INFO ")
        self.send(b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB _INBOX.me 1\r\n')

    def send(self, data):
        self.socket.sendall(data)

    def say(self, subject, kind, number, body=b""):
        payload = struct.pack(">BQ", kind, number) + body
        self.send(f"PUB {subject} _INBOX.me {len(payload)}\r\n".encode() + payload + b"\r\n")

    def hear(self):
        """Reply subject, kind, number and body of the next message; None if nobody listens."""
        while True:
            words = self.file.readline().split()
            if words[0] == b"PING":
                self.send(b"PONG\r\n")
            elif words[0] in (b"MSG", b"HMSG"):
                payload = self.file.read(int(words[-1]) + 2)[:-2]
                if words[0] == b"HMSG":
                    assert payload.startswith(b"NATS/1.0 503")
                    return None
                return words[3].decode(), *struct.unpack(">BQ", payload[:9]), payload[9:]

    def end(self):
        self.file.close()
        self.socket.close()


def test_a_pipe_can_be_opened_by_what_the_document_says(fleet):
    _, process = fleet.worker()
    subject = re.search(r"at nats:([^\s,]+)", process.output).group(1)
    client = Client(fleet.nats.port)
    try:
        client.say("dynamo.nobody", 1, 1 << 19)
        assert client.hear() is None
        client.say(subject, 1, 1 << 19)
        peer, kind, number, body = client.hear()
        assert (kind, number, body) == (2, 1 << 19, b"")
        hello = b"\x01\x83\xa7version\x01\xa5agent\xa4test\xafmax_frame_bytes\xce\x00\x10\x00\x00"
        frame = struct.pack(">I", len(hello)) + hello
        # Where messages are cut means nothing.
        client.say(peer, 3, 0, frame[:7])
        client.say(peer, 3, 1, frame[7:])
        _, kind, number, body = client.hear()
        assert (kind, number, body[4]) == (3, 0, 1) and b"max_frame_bytes" in body
        # A gap.
        client.say(peer, 3, 3, b"x")
        while kind != 5:
            _, kind, _, body = client.hear()
        assert body == b"message 3 came where 2 was due"
        client.say(peer, 0, 0)
        assert client.hear() is None
    finally:
        client.end()


@pytest.mark.parametrize("role", ["frontend", "worker"])
def test_a_nats_that_turns_us_away_is_one_clear_line(role, tmp_path):
    nats = Nats(tmp_path, "--auth", "sesame")
    try:
        flags = {"frontend": ("--port", "0"), "worker": (MODEL, "--engine", "mock")}[role]
        process = Process(
            role, tmp_path, *flags, NATS_SERVER=nats.url, NATS_AUTH_TOKEN="wrong", DYN_REQUEST_PLANE="nats"
        )
        try:
            assert process.process.wait(LIMIT_S) != 0
            process.reader.join(LIMIT_S)
        finally:
            process.end()
        assert f"NATS refused: 127.0.0.1:{nats.port}: Authorization Violation: look at nats.token" in process.output
    finally:
        nats.kill()
