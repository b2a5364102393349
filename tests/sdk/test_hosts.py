"""Frontend and workers on two hosts, between which only connections from the frontend to the workers are let through. They
find each other through an etcd on a third host. The hosts are network namespaces: this needs root, `ip`, `nsenter`, `nft`."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from system import BIN, MODEL, eventually, http

LIMIT_S = 60
PORTS = (7000, 7001)
FRONTEND_PORT = 8000
ETCD_PORT = 2379
# Some seconds at the mock engine's own speed.
TOKENS = 250
# One network between each two hosts; the last one is named first.
FRONTEND, WORKER = "10.78.1.1", "10.78.1.2"
STORE_OF_FRONTEND, STORE_OF_WORKER = "10.78.2.1", "10.78.3.1"


def lacks():
    """Why hosts cannot be made here, or nothing."""
    if os.geteuid() != 0:
        return "not root"
    missing = [program for program in ("ip", "nft", "unshare", "nsenter") if not shutil.which(program)]
    if missing:
        return f"no {', '.join(missing)}"
    probe = subprocess.run(["unshare", "--net", "nft", "add", "table", "inet", "probe"], capture_output=True)
    return "" if probe.returncode == 0 else probe.stderr.decode().strip()


LACKS = lacks()
pytestmark = pytest.mark.skipif(bool(LACKS), reason=f"no hosts can be made of network namespaces here: {LACKS}")


class Host:
    """A network of its own, for as long as `cat` reads."""

    def __init__(self):
        command = ["unshare", "--net", "--", "sh", "-c", "echo; exec cat"]
        self.holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.holder.stdout.readline()
        self.processes = []
        self.run("ip link set lo up")

    @property
    def prefix(self):
        return ["nsenter", "--target", str(self.holder.pid), "--net", "--"]

    def run(self, line):
        subprocess.run([*self.prefix, *line.split(" ")], check=True, stdin=subprocess.DEVNULL)

    def wire(self, other, network):
        """A cable: `.1` here, `.2` there."""
        name = f"net{network}"
        self.run(f"ip link add {name} type veth peer name {name} netns {other.holder.pid}")
        for host, last in ((self, 1), (other, 2)):
            host.run(f"ip addr add 10.78.{network}.{last}/24 dev {name}")
            host.run(f"ip link set {name} up")

    def guard(self, *rules):
        """Lets in what is the answer to something, and what the rules accept."""
        self.run("nft add table inet guard")
        self.run("nft add chain inet guard in { type filter hook input priority 0 ; policy drop ; }")
        for rule in ("iif lo accept", "ct state established,related accept", *rules):
            self.run(f"nft add rule inet guard in {rule}")

    def start(self, *command, **environment):
        """The process, and the lines that it says."""
        process = subprocess.Popen(
            [*self.prefix, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **environment},
        )
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(process.stdout), daemon=True)
        reader.start()
        self.processes.append((process, reader))
        return process, lines

    def clients(self, count):
        """Threads that are on this host."""

        def enter():
            libc = ctypes.CDLL(None, use_errno=True)
            with open(f"/proc/{self.holder.pid}/ns/net") as namespace:
                if libc.setns(namespace.fileno(), 0) != 0:
                    raise OSError(ctypes.get_errno(), "setns")

        return ThreadPoolExecutor(count, initializer=enter)

    def end(self):
        for process, reader in self.processes:
            process.kill()
            process.wait(LIMIT_S)
            reader.join(LIMIT_S)
        self.holder.stdin.close()
        self.holder.wait(LIMIT_S)


class Fleet:
    def __init__(self, directory):
        self.hosts = [Host() for _ in range(3)]
        self.frontend, self.worker, store = self.hosts
        self.frontend.wire(self.worker, 1)
        store.wire(self.frontend, 2)
        store.wire(self.worker, 3)
        self.frontend.guard()
        self.worker.guard(f"ip saddr {FRONTEND} tcp dport {{ {PORTS[0]}, {PORTS[1]} }} accept")
        any_client = f"http://0.0.0.0:{ETCD_PORT}"
        flags = ["--listen-client-urls", any_client, "--advertise-client-urls", any_client]
        store.start("etcd", "--data-dir", str(directory), *flags)
        self.there = self.frontend.clients(12)
        environment = {"ETCD_ENDPOINTS": f"http://{STORE_OF_FRONTEND}:{ETCD_PORT}"}
        flags = ["--host", "0.0.0.0", "--port", str(FRONTEND_PORT), "--discovery-backend", "etcd"]
        _, self.said = self.frontend.start(BIN, "frontend", *flags, **environment)

    def start_worker(self, port):
        flags = ["--engine", "mock", "--workers", "1", "--served-model-name", "m", "--request-plane-port", str(port)]
        flags += ["--set", f"request_plane.host={WORKER}", "--discovery-backend", "etcd"]
        environment = {"ETCD_ENDPOINTS": f"http://{STORE_OF_WORKER}:{ETCD_PORT}"}
        return self.worker.start(BIN, "worker", MODEL, *flags, **environment)

    def ask(self, path, body=None):
        return self.there.submit(http, f"http://127.0.0.1:{FRONTEND_PORT}{path}", body).result(LIMIT_S)

    def registered(self):
        try:
            page = self.ask("/metrics").body.decode()
        except OSError:
            return 0
        family = "dynamo_component_router_worker_registered"
        return sum(float(line.rsplit(" ", 1)[1]) for line in page.splitlines() if line.startswith(family))

    def stream(self, prompt):
        """Its text, its usage, and where it ended."""
        body = {"model": "m", "prompt": prompt, "max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
        body.update(seed=7, stream=True, stream_options={"include_usage": True})
        request = urllib.request.Request(f"http://127.0.0.1:{FRONTEND_PORT}/v1/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        text, usage, last = "", None, None
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            for line in answer:
                if line.startswith(b"data: {"):
                    chunk = json.loads(line[len(b"data: ") :])
                    assert "error" not in chunk, chunk
                    text += "".join(choice["text"] for choice in chunk["choices"])
                    usage = chunk.get("usage") or usage
                elif line.strip():
                    last = line.strip()
        return text, usage["completion_tokens"], last

    def end(self):
        for host in self.hosts:
            host.end()
        self.there.shutdown()


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path / "etcd")
    yield fleet
    fleet.end()


def reaches(host, address, port):
    def connect():
        try:
            socket.create_connection((address, port), timeout=2).close()
        except OSError:
            return False
        return True

    with host.clients(1) as there:
        return there.submit(connect).result(LIMIT_S)


def test_only_connections_from_frontend_to_worker_are_needed(fleet):
    one = fleet.start_worker(PORTS[0])
    two = fleet.start_worker(PORTS[1])
    assert eventually(lambda: fleet.registered() == 2, LIMIT_S), (fleet.said, one[1], two[1])

    # Nothing else goes through.
    assert reaches(fleet.frontend, WORKER, PORTS[0])
    assert reaches(fleet.frontend, FRONTEND, FRONTEND_PORT)
    assert not reaches(fleet.worker, FRONTEND, FRONTEND_PORT)

    # Answers, and what workers say of their caches without being asked.
    prompt = "word " * 200
    body = {"model": "m", "prompt": prompt, "max_tokens": 8, "ignore_eos": True, "temperature": 0}
    first = fleet.ask("/v1/completions", body)
    assert (first.status, first.json["usage"]["completion_tokens"]) == (200, 8), first.body

    def cached():
        return fleet.ask("/v1/completions", body).json["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert eventually(lambda: cached() > 100, LIMIT_S)

    # One worker is killed in the middle of many answers: each goes on.
    expected = fleet.there.submit(fleet.stream, prompt).result(LIMIT_S)
    assert expected[1:] == (TOKENS, b"data: [DONE]")
    streams = [fleet.there.submit(fleet.stream, prompt) for _ in range(8)]

    def running():
        return sum(worker["load"]["running"] for worker in fleet.ask("/status.json").json["workers"])

    assert eventually(lambda: running() == len(streams), LIMIT_S)
    one[0].kill()
    for stream in streams:
        assert stream.result(LIMIT_S) == expected
    assert eventually(lambda: fleet.registered() == 1, LIMIT_S)

    # One comes at the same address, and one that is asked to leave says so.
    three = fleet.start_worker(PORTS[0])
    assert eventually(lambda: fleet.registered() == 2, LIMIT_S), three[1]
    two[0].send_signal(signal.SIGTERM)
    assert two[0].wait(LIMIT_S) == 0, two[1]
    assert eventually(lambda: fleet.registered() == 1, LIMIT_S)
    assert fleet.ask("/v1/completions", body).status == 200
