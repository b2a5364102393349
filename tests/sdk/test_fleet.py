"""Frontend and workers as processes of their own, found through files: workers die, freeze, leave and come, and no client
notices."""

import json
import signal
import sys
import threading
import time
import urllib.request

import pytest
from system import MODEL, Process, eventually, http

TOKENS = 160
# An answer is disturbed once this many pieces of it have come.
DISTURBED_AT = 30
LIMIT_S = 90
# The default of the request plane, after which a peer that says nothing is gone.
DEAD_AFTER_S = 5
WORKER = ("--workers", "1", "--threads", "1")


class Fleet:
    def __init__(self, store):
        self.store = store
        self.processes = []
        self.frontend = self.start("frontend", "--port", "0")
        assert eventually(lambda: self.frontend.url, LIMIT_S), self.frontend.output
        self.url = self.frontend.url
        self.workers = []

    def start(self, role, *flags):
        self.processes.append(Process(role, self.store, *flags))
        return self.processes[-1]

    def worker(self):
        """A worker that takes requests."""
        known = len(self.registered())
        process = self.start("worker", MODEL, *WORKER)
        assert eventually(lambda: len(self.registered()) > known, LIMIT_S), process.output
        (new,) = self.registered() - {worker for worker, _ in self.workers}
        self.workers.append((new, process))
        return new, process

    def samples(self, family):
        lines = http(self.url + "/metrics").body.decode().splitlines()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(family)}

    def registered(self):
        """Ids of the workers that the router may choose."""
        rows = self.samples("dynamo_component_router_worker_registered")
        return {name.split('worker_id="')[1].split('"')[0] for name, value in rows.items() if value}

    def migrations(self, kind):
        rows = self.samples("dynamo_frontend_model_migration_total")
        return sum(value for name, value in rows.items() if kind in name)

    def busy(self):
        """The worker that has a request."""
        rows = self.samples("dynamo_frontend_worker_active_requests")
        return next((name.split('worker_id="')[1].split('"')[0] for name, value in rows.items() if value), None)

    def process(self, worker):
        return dict(self.workers)[worker]

    @property
    def model(self):
        return http(self.url + "/v1/models").json["data"][0]["id"]

    def body(self, **fields):
        messages = [{"role": "user", "content": "Tell me a long story about a river."}]
        return {
            "model": self.model,
            "messages": messages,
            "max_tokens": TOKENS,
            "min_tokens": TOKENS,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }

    def read(self, body, disturb=None):
        """Text, usage and longest gap of a stream; `disturb` is called in its middle."""
        request = urllib.request.Request(self.url + "/v1/chat/completions", json.dumps(body).encode())
        request.add_header("content-type", "application/json")
        text, usage, gap, pieces, last, done = "", None, 0.0, 0, None, False
        with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
            for line in answer:
                if not line.startswith(b"data: "):
                    continue
                data = line[len(b"data: ") :].strip()
                if data == b"[DONE]":
                    done = True
                    break
                chunk = json.loads(data)
                assert "error" not in chunk, chunk
                usage = chunk.get("usage") or usage
                content = chunk["choices"] and chunk["choices"][0]["delta"].get("content")
                if not content:
                    continue
                now = time.monotonic()
                gap = max(gap, now - last) if last else gap
                last = now
                text += content
                pieces += 1
                if pieces == DISTURBED_AT and disturb:
                    disturb(self.busy())
                    last = time.monotonic()
        assert done
        return text, usage, gap

    def end(self):
        for process in self.processes:
            process.end()


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path / "store")
    yield fleet
    fleet.end()


def told(what):
    print(f"\n{what}", file=sys.stderr)


def same(found, expected):
    assert found[0] == expected[0]
    for field in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert found[1][field] == expected[1][field]


def test_no_client_notices_what_becomes_of_workers(fleet):
    assert http(fleet.url + "/v1/models").json["data"] == []
    fleet.worker()
    fleet.worker()
    health = lambda: http(fleet.url + "/health").json
    plain, seeded = fleet.body(), fleet.body(temperature=1, seed=11, frequency_penalty=0.5)
    undisturbed, drawn = fleet.read(plain), fleet.read(seeded)
    assert undisturbed[1]["completion_tokens"] == TOKENS
    assert undisturbed[0] != drawn[0]
    told(f"undisturbed: longest gap {undisturbed[2] * 1000:.0f} ms")

    killed = []

    def kill(worker):
        killed.append(worker)
        fleet.process(worker).signal(signal.SIGKILL)

    found = fleet.read(plain, kill)
    same(found, undisturbed)
    assert fleet.migrations("ongoing_request") == 1
    told(f"kill -9 in mid-stream: longest gap {found[2] * 1000:.0f} ms")
    # The dead one gets nothing more, before and after discovery has forgotten it.
    for _ in range(3):
        assert fleet.read(fleet.body(max_tokens=4, min_tokens=4))[1]["completion_tokens"] == 4
    assert fleet.migrations("new_request") <= 1
    begun = time.monotonic()
    assert eventually(lambda: killed[0] not in fleet.registered(), LIMIT_S)
    told(f"kill -9: left the router's list {time.monotonic() - begun:.1f} s later")
    assert len(http(fleet.url + "/v1/models").json["data"]) == 1

    # One that joins gets traffic: the other is stopped, and does not come back.
    joined, _ = fleet.worker()
    stopped = []

    def stop(worker):
        stopped.append(worker)
        fleet.process(worker).signal(signal.SIGSTOP)

    found = fleet.read(seeded, stop)
    same(found, drawn)
    assert fleet.migrations("ongoing_request") == 2
    assert found[2] < DEAD_AFTER_S * 2, f"a frozen worker held its stream for {found[2]:.1f} s"
    told(f"SIGSTOP in mid-stream, seeded: longest gap {found[2] * 1000:.0f} ms")
    served = fleet.read(fleet.body(max_tokens=4, min_tokens=4))
    assert served[1]["completion_tokens"] == 4 and served[2] < DEAD_AFTER_S
    fleet.process(stopped[0]).signal(signal.SIGKILL)
    assert eventually(lambda: len(fleet.registered()) == 1, LIMIT_S)

    # A worker that is asked to leave finishes what it has.
    last, _ = fleet.worker()
    leaving = []

    def leave(worker):
        leaving.append(worker)
        fleet.process(worker).signal(signal.SIGTERM)

    moved = fleet.migrations("ongoing_request")
    found = fleet.read(plain, leave)
    same(found, undisturbed)
    told(f"SIGTERM in mid-stream: longest gap {found[2] * 1000:.0f} ms")
    assert fleet.migrations("ongoing_request") == moved
    assert fleet.process(leaving[0]).process.wait(LIMIT_S) == 0
    assert eventually(lambda: leaving[0] not in fleet.registered(), LIMIT_S)
    (left,) = fleet.registered()
    assert left in (joined, last)
    assert fleet.read(plain)[0] == undisturbed[0]
    assert health()["status"] == "healthy", health()

    # With the last one the model goes, and says so.
    fleet.process(left).signal(signal.SIGTERM)
    assert eventually(lambda: http(fleet.url + "/v1/models").json["data"] == [], LIMIT_S)
    refused = http(fleet.url + "/v1/chat/completions", {**plain, "stream": False, "stream_options": None})
    assert refused.status in (404, 503), refused.body
    assert fleet.frontend.process.poll() is None
