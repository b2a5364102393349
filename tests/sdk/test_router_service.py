"""`dynamo router`: workers chosen and booked for callers that send their requests themselves (docs/router-service.md)."""

import signal
import subprocess

import pytest
from system import BIN, Process, eventually, http

LIMIT_S = 60
MODEL_NAME = "mock"
# Twelve whole blocks.
PROMPT = list(range(20, 212))
BOOKED = ("potential_prefill_tokens", "potential_decode_blocks", "active_requests")


class Service:
    def __init__(self, store):
        self.store, self.processes = store, []
        self.router = self.start("router", "--port", "0")
        self.frontend = self.start("frontend", "--port", "0")
        for _ in range(2):
            self.start("worker", "--engine", "mock", "--served-model-name", MODEL_NAME, "--workers", "1")
        assert eventually(lambda: self.router.url and self.frontend.url, LIMIT_S), self.output
        for process in (self.router, self.frontend):
            assert eventually(lambda: self.registered(process) == 2, LIMIT_S), self.output
        assert eventually(lambda: http(self.frontend.url + "/v1/models").json["data"], LIMIT_S), self.output

    def start(self, role, *flags):
        self.processes.append(Process(role, self.store, *flags))
        return self.processes[-1]

    @property
    def output(self):
        return "\n".join(process.output for process in self.processes)

    def registered(self, process):
        lines = http(process.url + "/metrics").body.decode().splitlines()
        return sum(line.startswith("dynamo_component_router_worker_registered{") and line.endswith(" 1") for line in lines)

    def call(self, path, body=None, method=None):
        return http(self.router.url + path, body, method)

    def select(self, path="/select_and_reserve", **fields):
        reply = self.call(path, {"token_ids": PROMPT, **fields})
        assert reply.status == 200, reply.body
        return reply.json

    def booked(self):
        """Prefill tokens, decode blocks and requests on the books of each worker."""
        (model,) = self.call("/loads").json
        assert len(model["loads"]) == 2, model
        return {load.pop("worker_id"): {key: load[key] for key in BOOKED} for load in model["loads"]}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    made = Service(tmp_path_factory.mktemp("store"))
    yield made
    for process in made.processes:
        process.end()


def test_a_reservation_is_on_the_books_until_it_ends(service):
    empty = service.booked()
    first = service.select(selection_id="first")
    second = service.select(selection_id="second")
    # Booked at once: the second caller sees the load of the first.
    assert first["worker_id"] != second["worker_id"]
    assert first["isl_tokens"] == len(PROMPT) and first["effective_prefill_tokens"] == len(PROMPT)
    held = service.booked()
    assert all(held[worker] != empty[worker] for worker in held)
    path = "/reservations/first"
    assert service.call(path + "/prefill_complete", {}).status == 200
    assert service.booked()[first["worker_id"]] != held[first["worker_id"]]
    assert service.call(path + "/output_block", {"decay_fraction": 0.5}).status == 200
    assert service.call(path, method="DELETE").status == 200
    assert service.call("/free", {"request_id": "second"}).json["freed"] is True
    assert service.booked() == empty
    # What has ended is not there, whoever asks.
    for method, gone in [("DELETE", path), ("POST", path + "/prefill_complete")]:
        reply = service.call(gone, {} if method == "POST" else None, method)
        assert reply.status == 404 and "first" in reply.json["error"], reply.body
    assert service.call("/free", {"request_id": "second"}).json["freed"] is False


def test_a_selection_books_nothing_and_can_be_booked(service):
    empty = service.booked()
    chosen = service.select("/select", selection_id="later")
    assert service.booked() == empty
    booked = service.call("/reservations", {"selection_id": "later"})
    assert booked.status == 201 and booked.json["worker_id"] == chosen["worker_id"]
    again = service.call("/reservations", {"selection_id": "later", "worker_id": chosen["worker_id"], "token_ids": PROMPT})
    assert again.status == 409, again.body
    assert service.call("/reservations/later", method="DELETE").status == 200
    assert service.booked() == empty


def test_it_knows_what_a_frontends_request_left_in_the_cache(service):
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 4}
    assert http(service.frontend.url + "/v1/completions", body).status == 200

    def best():
        scores = service.call("/overlap_scores", {"token_ids": PROMPT}).json
        return max(scores["workers"], key=lambda worker: worker["device_blocks"])

    assert eventually(lambda: best()["device_blocks"] == len(PROMPT) // 16, LIMIT_S), best()
    chosen = service.select("/select")
    assert chosen["worker_id"] == best()["worker_id"]
    assert chosen["effective_prefill_tokens"] < len(PROMPT)


def test_faults_say_what_is_wrong(service):
    for body, status, word in [
        ({}, 400, "token_ids"),
        ({"token_ids": "x"}, 400, "token_ids"),
        ({"token_ids": PROMPT, "prompt": "x"}, 400, "token_ids"),
        ({"token_ids": PROMPT, "model_name": "nobody"}, 404, "nobody"),
        ({"token_ids": PROMPT, "pinned_worker": {"worker_id": 1}}, 404, "1"),
        ({"token_ids": PROMPT, "allowed_worker_ids": [1]}, 503, ""),
    ]:
        reply = service.call("/select", body)
        assert (reply.status, word in reply.json["error"]) == (status, True), (body, reply.body)


def test_workers_are_named_and_taken_out_by_hand_and_caches_are_told(service):
    body = {"model": MODEL_NAME, "prompt": PROMPT, "max_tokens": 4}
    assert http(service.frontend.url + "/v1/completions", body).status == 200

    def cached():
        """Blocks of each worker."""
        rows = service.call("/dump").json["workers"]
        stored = [(row["worker_id"], event["stored"]["blocks"]) for row in rows for event in row["events"] if "stored" in event]
        return {worker: sum(len(blocks) for of, blocks in stored if of == worker) for worker, _ in stored}

    assert eventually(lambda: any(blocks >= len(PROMPT) // 16 for blocks in cached().values()), LIMIT_S), cached()
    warm = max(cached(), key=cached().get)
    one = service.call(f"/workers/{warm}/dump").json["workers"]
    assert [row["worker_id"] for row in one] == [warm]

    assert service.select("/select")["worker_id"] == warm
    taken = service.call(f"/workers/{warm}", {"schedulable": False}, "PATCH")
    assert taken.status == 200 and taken.json["lifecycle"] == "unschedulable", taken.body
    assert service.select("/select")["worker_id"] != warm
    assert service.call(f"/workers/{warm}", {"schedulable": True}, "PATCH").status == 200
    assert service.select("/select")["worker_id"] == warm

    named = {"worker_id": 7, "model_name": "elsewhere", "endpoint": "http://engine:8000"}
    assert service.call("/workers", named).json["lifecycle"] == "incomplete"
    assert service.call("/select", {"token_ids": PROMPT, "model_name": "elsewhere"}).status == 404
    assert service.call("/workers/7", {"block_size": 16}, "PATCH").json["lifecycle"] == "schedulable"
    asked = {"token_ids": PROMPT, "model_name": "elsewhere"}
    assert eventually(lambda: service.call("/select", asked).status == 200, LIMIT_S)
    chosen = service.call("/select", asked).json
    assert (chosen["worker_id"], chosen["endpoint"]) == (7, "http://engine:8000")
    assert service.call("/workers/7", method="DELETE").status == 200
    assert eventually(lambda: service.call("/select", asked).status == 404, LIMIT_S)


def test_it_tells_of_itself_and_ends_when_asked(service):
    assert service.call("/ready").status == 200
    workers = service.call("/workers").json
    assert [worker["lifecycle"] for worker in workers] == ["schedulable"] * 2, workers
    assert "dynamo_component_router_calls_total" in service.call("/metrics").body.decode()

    def shown():
        return subprocess.run([BIN, "status", "--url", service.router.url], capture_output=True, text=True, timeout=LIMIT_S)

    assert eventually(lambda: shown().returncode == 0, LIMIT_S), shown()
    assert shown().stdout.count("  serving  ") == 2, shown().stdout
    service.router.signal(signal.SIGTERM)
    assert service.router.process.wait(LIMIT_S) == 0, service.router.output
