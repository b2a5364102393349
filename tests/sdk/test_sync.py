"""Frontends and routers know what the others have sent to each worker (docs/request-plane.md, bookings)."""

import http.client
import json
import signal
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import pytest
from system import Process, eventually, http as ask

LIMIT_S = 60
MODEL_NAME = "mock"
# Longer than any test, so that what is held stays: a twentieth of the mock engine's speed.
SLOW = ("--set", "worker.mock_speedup_ratio=0.05")
HELD = 6
PEERS = "dynamo_frontend_worker_peer_requests"
ALL = "dynamo_frontend_worker_active_requests"


def prompt(number):
    """Four whole blocks that no other prompt begins with."""
    return [20 + number] + list(range(100, 163))


class Fleet:
    def __init__(self, store):
        self.store, self.processes = store, []
        for _ in range(2):
            self.start("worker", "--engine", "mock", "--served-model-name", MODEL_NAME, "--workers", "1", *SLOW)
        self.a, self.b = self.front("frontend"), self.front("frontend")
        self.workers = sorted(self.rows(self.a, ALL))

    def start(self, role, *flags):
        self.processes.append(Process(role, self.store, *flags))
        return self.processes[-1]

    def front(self, role, *flags):
        """One that knows both workers."""
        process = self.start(role, "--port", "0", *flags)
        assert eventually(lambda: process.url, LIMIT_S), process.output
        assert eventually(lambda: len(self.rows(process, ALL)) == 2, LIMIT_S), process.output
        if role == "frontend":
            assert eventually(lambda: ask(process.url + "/v1/models").json["data"], LIMIT_S), process.output
        return process

    def rows(self, front, family):
        """By worker id."""
        lines = ask(front.url + "/metrics").body.decode().splitlines()
        rows = (line.rsplit(" ", 1) for line in lines if line.startswith(family + "{"))
        return {name.split('worker_id="')[1].split('"')[0]: int(float(value)) for name, value in rows}

    def knows(self, front, family, expected):
        assert eventually(lambda: self.rows(front, family) == expected, LIMIT_S), (self.rows(front, family), expected)

    @contextmanager
    def stream(self, front, number, worker=None):
        """An answer that has begun and goes on; gives the worker's id."""
        address = urlsplit(front.url)
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=LIMIT_S)
        body = {"model": MODEL_NAME, "prompt": prompt(number), "max_tokens": 4000, "ignore_eos": True, "stream": True}
        if worker:
            body["nvext"] = {"backend_instance_id": int(worker)}
        before = self.rows(front, ALL)
        try:
            connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            after = self.rows(front, ALL)
            grown = [worker for worker in after if after[worker] > before[worker]]
            yield grown[0] if len(grown) == 1 else None
        finally:
            connection.close()


@pytest.fixture
def fleet(tmp_path):
    made = Fleet(tmp_path)
    yield made
    for process in made.processes:
        process.end()


def test_a_frontend_sees_what_another_sent_until_that_one_is_gone(fleet):
    first, second = fleet.workers
    with ExitStack() as held:
        for number in range(HELD):
            held.enter_context(fleet.stream(fleet.a, number, first))
        fleet.knows(fleet.b, PEERS, {first: HELD, second: 0})
        # Its own are not those of others.
        fleet.knows(fleet.a, PEERS, {first: 0, second: 0})
        fleet.knows(fleet.a, ALL, {first: HELD, second: 0})
        # By itself it would choose either.
        chosen = [held.enter_context(fleet.stream(fleet.b, 10 + number)) for number in range(4)]
        assert chosen == [second] * 4
        fleet.knows(fleet.a, PEERS, {first: 0, second: 4})
        # One that comes later is told of all.
        late = fleet.front("frontend")
        fleet.knows(late, PEERS, {first: HELD, second: 4})
        fleet.a.signal(signal.SIGKILL)
        for front in (fleet.b, late):
            fleet.knows(front, ALL, {first: 0, second: 4})
        assert held.enter_context(fleet.stream(late, 30)) == first
    for front in (fleet.b, late):
        fleet.knows(front, ALL, {first: 0, second: 0})
        fleet.knows(front, PEERS, {first: 0, second: 0})


def test_what_a_router_reserved_weighs_at_a_frontend_and_is_not_heard_by_who_does_not_want_to(fleet):
    router = fleet.front("router")
    deaf = fleet.front("frontend", "--set", "router.replica_sync=false")
    first, second = fleet.workers
    with ExitStack() as held:
        for number in range(HELD):
            pin = {"worker_id": first}
            body = {"token_ids": prompt(number), "selection_id": str(number), "pinned_worker": pin}
            assert ask(router.url + "/select_and_reserve", body).status == 200
        for front in (fleet.a, fleet.b):
            fleet.knows(front, PEERS, {first: HELD, second: 0})
        assert held.enter_context(fleet.stream(fleet.a, 20)) == second
        fleet.knows(router, PEERS, {first: 0, second: 1})
        fleet.knows(fleet.b, PEERS, {first: HELD, second: 1})
        assert fleet.rows(deaf, ALL) == {first: 0, second: 0}
        held.enter_context(fleet.stream(deaf, 21, second))
        fleet.knows(deaf, ALL, {first: 0, second: 1})
        for number in range(HELD):
            assert ask(router.url + f"/reservations/{number}", method="DELETE").status == 200
        fleet.knows(fleet.b, PEERS, {first: 0, second: 1})
