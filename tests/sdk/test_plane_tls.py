"""TLS and mutual TLS between frontends and workers, as processes of their own."""

import pytest
import trustme
from system import Process, eventually, http

LIMIT_S = 60


class Fleet:
    """Processes of one store, with settings of `request_plane` as the environment gives them."""

    def __init__(self, store, monkeypatch):
        self.store = store
        self.monkeypatch = monkeypatch
        self.processes = []

    def start(self, role, *flags, **environment):
        with self.monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(f"DYN_TCP_TLS_{name}", str(value))
            self.processes.append(Process(role, self.store, *flags))
        return self.processes[-1]

    def worker(self, **environment):
        process = self.start("worker", "--engine", "mock", "--workers", "1", **environment)
        assert eventually(lambda: "ready" in process.output, LIMIT_S), process.output
        return process

    def frontend(self, **environment):
        process = self.start("frontend", "--port", "0", **environment)
        assert eventually(lambda: process.url, LIMIT_S), process.output
        assert eventually(lambda: http(process.url + "/v1/models").json["data"], LIMIT_S), process.output
        return process


@pytest.fixture
def fleet(tmp_path, monkeypatch):
    # Nobody else will come to take up what fails.
    monkeypatch.setenv("DYN_FRONTEND_MIGRATION_WAIT_MS", "1")
    fleet = Fleet(tmp_path / "store", monkeypatch)
    yield fleet
    for process in fleet.processes:
        process.end()


class Authority:
    def __init__(self, folder, name):
        self.ca, self.folder, self.name = trustme.CA(), folder, name
        self.pem = folder / f"{name}-ca.pem"
        self.ca.cert_pem.write_to_path(self.pem)

    def identity(self, host):
        """Paths of a certificate and its key."""
        issued = self.ca.issue_cert(host)
        cert, key = self.folder / f"{self.name}-cert.pem", self.folder / f"{self.name}-key.pem"
        cert.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(key)
        return cert, key


def ask(frontend):
    model = http(frontend.url + "/v1/models").json["data"][0]["id"]
    return http(frontend.url + "/v1/completions", {"model": model, "prompt": "Hello", "max_tokens": 4})


def test_answers_come_over_mutual_tls_and_who_has_no_part_in_it_is_told_why(fleet, tmp_path):
    workers, frontends = Authority(tmp_path, "workers"), Authority(tmp_path, "frontends")
    cert, key = workers.identity("127.0.0.1")
    fleet.worker(CERT_PATH=cert, KEY_PATH=key, CLIENT_CA_CERT_PATH=frontends.pem)

    cert, key = frontends.identity("frontend")
    member = fleet.frontend(CA_CERT_PATH=workers.pem, CLIENT_CERT_PATH=cert, CLIENT_KEY_PATH=key)
    answer = ask(member)
    assert answer.status == 200, answer.body
    assert answer.json["usage"]["completion_tokens"] == 4
    endpoints = [worker["endpoint"] for worker in http(member.url + "/status.json").json["workers"]]
    assert [endpoint.split(":")[0] for endpoint in endpoints] == ["tls"]

    plain = fleet.frontend()
    nameless = fleet.frontend(CA_CERT_PATH=workers.pem)
    strange = fleet.frontend(CA_CERT_PATH=frontends.pem)
    for frontend, reason in (
        (plain, "speaks TLS, this caller plain TCP: request_plane.tls_ca_cert_path is not set"),
        (nameless, "asks for a certificate, and none is set here"),
        (strange, "no authority that is trusted here"),
    ):
        assert ask(frontend).status == 503
        assert eventually(lambda: reason in frontend.output, LIMIT_S), frontend.output
    assert ask(member).status == 200


def test_settings_that_cannot_work_end_the_process_with_one_line(fleet, tmp_path):
    cert, _ = Authority(tmp_path, "workers").identity("127.0.0.1")
    worker = fleet.start("worker", "--engine", "mock", CERT_PATH=cert)
    assert worker.process.wait(LIMIT_S) != 0
    assert eventually(lambda: "request_plane.tls_key_path: is needed together with" in worker.output), worker.output
