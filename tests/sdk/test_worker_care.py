"""What workers take in and how they look after themselves, as processes of their own: limits of admission, health checks."""

import concurrent.futures
import json

import pytest
from system import Process, eventually, http

LIMIT_S = 60
# Forgets eight requests, then answers.
MOODY = [{"times": 8, "steps": ["stall"]}, {"steps": [{"text": "well"}]}]


class Fleet:
    def __init__(self, folder, monkeypatch):
        self.folder = folder
        self.monkeypatch = monkeypatch
        self.processes = []
        self.frontend = self.start("frontend", "--port", "0")
        assert eventually(lambda: self.frontend.url, LIMIT_S), self.frontend.output

    def start(self, role, *flags, **environment):
        with self.monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, str(value))
            self.processes.append(Process(role, self.folder / "store", *flags))
        return self.processes[-1]

    def worker(self, *flags, **environment):
        known = len(self.instances())
        process = self.start("worker", *flags, "--workers", "1", **environment)
        assert eventually(lambda: len(self.instances()) > known, LIMIT_S), process.output
        return process

    def instances(self):
        return http(self.frontend.url + "/health").json["instances"]

    def ask(self, **fields):
        body = {"model": "m", "prompt": "Hello", "max_tokens": 4, **fields}
        return http(self.frontend.url + "/v1/completions", body)


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    fleet = Fleet(tmp_path, monkeypatch)
    yield fleet
    for process in fleet.processes:
        process.end()


def test_a_full_worker_sends_requests_on_and_a_full_fleet_answers_529(fleet):
    limits = {"DYN_ENGINE_REQUEST_LIMIT": 1, "DYN_WORKER_ENGINE_REQUEST_QUEUE": 1}
    # Ten tokens a second: what runs is still running when the last one is refused.
    slow = ("--engine", "mock", "--served-model-name", "m")
    for _ in range(2):
        fleet.worker(*slow, DYN_WORKER_MOCK_SPEEDUP_RATIO=0.05, **limits)
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        asked = [pool.submit(fleet.ask, max_tokens=40, ignore_eos=True) for _ in range(12)]
        replies = [reply.result() for reply in asked]
    statuses = sorted(reply.status for reply in replies)
    # Two workers with room for two each; how many get in after the first have ended is a matter of time.
    assert statuses[:4] == [200] * 4 and set(statuses) == {200, 529}, statuses
    refused = next(reply for reply in replies if reply.status == 529)
    assert "retry-after" in {name.lower() for name in refused.headers}
    # It was no fault of the workers'.
    assert not any(instance["suspended"] for instance in fleet.instances())
    assert fleet.ask().status == 200


def test_a_worker_whose_engine_says_nothing_leaves_traffic_until_it_does_again(fleet, tmp_path):
    checks = {"DYN_HEALTH_CHECK_ENABLED": "true", "DYN_CANARY_WAIT_TIME": 1, "DYN_HEALTH_CHECK_REQUEST_TIMEOUT": 1}
    book = tmp_path / "book.json"
    book.write_text(json.dumps({"model": "m", "scripts": MOODY}))
    fleet.worker("--engine", "scripted", "--script", str(book), **checks)
    faults = lambda: [instance.get("fault") for instance in fleet.instances()]
    assert eventually(lambda: faults() != [None], LIMIT_S), fleet.processes[-1].output
    assert "no answer to a health check within 1000 ms" in faults()[0]
    reply = fleet.ask()
    assert reply.status == 503, reply.body
    status = http(fleet.frontend.url + "/status.json").json
    assert status["workers"][0]["fault"] == faults()[0]
    assert "the worker is not ready" in fleet.processes[-1].output
    assert eventually(lambda: faults() == [None], LIMIT_S), fleet.processes[-1].output
    reply = fleet.ask()
    assert (reply.status, reply.json["choices"][0]["text"]) == (200, "well")
