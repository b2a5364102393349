"""Frontend, router and workers as processes: health and metrics of each, one trace through all of them, log lines as JSON,
and what `dynamo status` says of workers that do not serve."""

import contextlib
import fcntl
import http.client as http_client
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import threading

import pytest
from system import BIN, MODEL, Process, eventually, http
from test_observability import Collector, TRACE, TRACEPARENT, SPAN

LIMIT_S = 60
MOCK = ("--engine", "mock", "--workers", "1", "--served-model-name", "mock")
SYSTEM = ("--set=system.port=0", "--set=system.host=127.0.0.1")


class Fleet:
    def __init__(self, store):
        self.store, self.processes = store, []

    def start(self, role, *flags):
        self.processes.append(Process(role, self.store, *flags))
        return self.processes[-1]

    def frontend(self, *flags, role="frontend"):
        port = ("--set=selection.port=0",) if role == "router" else ("--port", "0")
        process = self.start(role, *port, *flags)
        assert eventually(lambda: process.url, LIMIT_S), process.output
        return process

    def end(self):
        for process in self.processes:
            process.end()


@pytest.fixture
def fleet(tmp_path):
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.end()


def system_of(process):
    """Where the process tells its health and metrics."""
    where = lambda: re.search(r"health and metrics on (http://\S+)", process.output)
    assert eventually(where, LIMIT_S), process.output
    return where().group(1)


def ready(frontend, count=1):
    listed = lambda: sum(1 for _ in http(frontend.url + "/health").json["instances"]) == count
    served = lambda: http(frontend.url + "/v1/models").json["data"]
    assert eventually(lambda: listed() and served(), LIMIT_S), frontend.output


def hold(frontend):
    """A request that lasts as long as the fleet."""

    def run():
        # The fleet ends in the middle of it.
        with contextlib.suppress(OSError, http_client.HTTPException):
            ask(frontend, max_tokens=100_000, ignore_eos=True)

    threading.Thread(target=run, daemon=True).start()


def ask(frontend, headers=None, **fields):
    body = {"model": "mock", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, **fields}
    return http(frontend.url + "/v1/chat/completions", body, headers=headers)


def samples(url):
    lines = [line for line in http(url + "/metrics").body.decode().splitlines() if line and line[0] != "#"]
    return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def total(url, family):
    values = [value for name, value in samples(url).items() if name.split("{")[0] == family]
    assert values, f"{family} is not there"
    return sum(values)


def test_every_role_has_a_port_for_health_and_metrics(fleet):
    frontend = fleet.frontend(*SYSTEM)
    router = fleet.frontend(*SYSTEM, role="router")
    systems = {"frontend": system_of(frontend), "router": system_of(router)}
    for url in systems.values():
        assert http(url + "/live").status == 200
        health = http(url + "/health")
        assert (health.status, health.json["status"], health.json["endpoints"]) == (503, "notready", {"http": "notready"})
    worker = fleet.start("worker", MODEL, *MOCK, *SYSTEM)
    systems["worker"] = system_of(worker)
    for role, url in systems.items():
        assert eventually(lambda: http(url + "/health").status == 200, LIMIT_S), role
        unknown = http(url + "/nothing")
        assert (unknown.status, set(unknown.json)) == (404, {"error", "message"}), role
        assert total(url, "dynamo_tokio_alive_tasks") > 0, role
    assert http(systems["worker"] + "/health").json["endpoints"] == {"generate": "ready"}
    ready(frontend)
    assert all(ask(frontend).status == 200 for _ in range(3))
    near, far = systems["frontend"], systems["worker"]
    assert eventually(lambda: total(far, "dynamo_component_inflight_requests") == 0)
    for family, url in [
        ("dynamo_request_plane_queue_seconds_count", near),
        ("dynamo_request_plane_send_seconds_count", near),
        ("dynamo_request_plane_roundtrip_ttft_seconds_count", near),
        ("dynamo_component_router_requests_started_total", near),
        ("dynamo_router_overhead_total_ms_count", near),
        ("dynamo_component_router_time_to_first_token_seconds_count", near),
        ("dynamo_component_requests_total", far),
        ("dynamo_work_handler_network_transit_seconds_count", far),
        ("dynamo_work_handler_time_to_first_response_seconds_count", far),
    ]:
        assert total(url, family) == 3, family
    assert total(near, "dynamo_request_plane_inflight_requests") == 0
    assert total(near, "dynamo_transport_tcp_pool_idle") == 1
    sent, received = (total(near, f"dynamo_transport_tcp_bytes_{way}_total") for way in ("sent", "received"))
    # What crosses the wire is requests and answers, and a little more.
    assert 0 < total(far, "dynamo_component_request_bytes_total") < sent
    assert 0 < total(far, "dynamo_component_response_bytes_total") < received
    assert any(name.startswith("dynamo_frontend_worker_last_time_to_first_token_seconds{") for name in samples(frontend.url))
    # Draining: not ready at once, alive to the end.
    hold(frontend)
    assert eventually(lambda: total(far, "dynamo_component_inflight_requests") == 1)
    worker.signal(signal.SIGTERM)
    assert eventually(lambda: http(far + "/health").status == 503)
    assert http(far + "/live").status == 200


def test_one_trace_through_frontend_tcp_and_worker(fleet):
    collector = Collector()
    try:
        export = ("--set=trace.export=true", f"--set=trace.endpoint={collector.url}", "--set=trace.delay_ms=20")
        frontend = fleet.frontend(*export, "--set=trace.service_name=front")
        fleet.start("worker", MODEL, *MOCK, *export, "--set=trace.service_name=back")
        ready(frontend)
        assert ask(frontend, {"traceparent": TRACEPARENT}, stream=True).status == 200
        names = {"http-request", "preprocess", "route", "worker", "engine"}
        assert eventually(lambda: collector.of(TRACE).keys() == names, LIMIT_S), collector.spans
        spans = collector.of(TRACE)
        assert collector.services == {"front", "back"}
        assert spans["http-request"]["parent"] == SPAN
        assert spans["worker"]["parent"] == spans["http-request"]["id"]
        assert spans["engine"]["parent"] == spans["worker"]["id"]
    finally:
        collector.server.shutdown()
        collector.server.server_close()


def json_lines(process):
    """Of the log; every line of it is one object, whoever wrote it."""
    lines = []
    for line in process.lines:
        if line.startswith("{"):
            lines.append(json.loads(line))
    return [line for line in lines if "level" in line]


def test_log_lines_of_every_role_are_json_and_carry_the_trace(fleet, monkeypatch):
    monkeypatch.setenv("DYN_LOG", "debug")
    logs = ("--log-format", "json", "--json")
    frontend = fleet.start("frontend", "--port", "0", *logs)
    address = lambda process: next((json.loads(line)["address"] for line in process.lines if '"event"' in line), None)
    assert eventually(lambda: address(frontend), LIMIT_S), frontend.output
    router = fleet.start("router", "--set=selection.port=0", *logs)
    worker = fleet.start("worker", MODEL, *MOCK, *logs)
    url = address(frontend)
    assert eventually(lambda: http(url + "/v1/models").json["data"], LIMIT_S)
    body = {"model": "mock", "messages": [{"role": "user", "content": "my secret"}], "max_tokens": 4}
    headers = {"traceparent": TRACEPARENT, "x-request-id": "mine"}
    assert http(url + "/v1/chat/completions", body, headers=headers).status == 200
    assert eventually(lambda: address(router), LIMIT_S)
    assert eventually(lambda: http(address(router) + "/select", {"token_ids": [1, 2, 3], "model_name": "mock"}).status == 200)
    of_trace = lambda process: [line for line in json_lines(process) if line.get("trace_id") == TRACE]
    assert eventually(lambda: of_trace(frontend) and of_trace(worker), LIMIT_S), worker.output
    request = next(line for line in of_trace(frontend) if line["message"] == "request")
    served = of_trace(worker)[0]
    assert request["request_id"] == served["request_id"] and request["x_request_id"] == "mine"
    assert served["parent_id"] == request["span_id"]
    assert (request["status"], request["tokens_out"], request["route"]) == (200, 4, "chat_completions")
    for process in (frontend, router, worker):
        process.signal(signal.SIGTERM)
        assert process.process.wait(LIMIT_S) == 0, process.output
        process.reader.join(LIMIT_S)
        for line in process.lines:
            json.loads(line)
        assert json_lines(process), process.output
        for line in json_lines(process):
            assert {"time", "level", "target", "message"} <= line.keys(), line
        assert "secret" not in process.output


def status(url, *flags, **options):
    return subprocess.run([BIN, "status", "--url", url, *flags], capture_output=True, text=True, timeout=LIMIT_S, **options)


def test_status_shows_versions_and_who_drains_is_suspended_or_refused(fleet, tmp_path):
    version = subprocess.check_output([BIN, "--version"], text=True).split()[-1]
    frontend = fleet.frontend("--set=router.breaker_failures=1", "--set=router.breaker_open_ms=600000")
    good = fleet.start("worker", MODEL, *MOCK)
    ready(frontend)
    # Of another tokenizer: an answer of the one would be none of the other.
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"model": "mock", "scripts": []}))
    fleet.start("worker", "--engine", "scripted", "--script", str(script), "--workers", "1", "--served-model-name", "mock")
    refused = lambda: "refused for the model mock" in status(frontend.url).stdout
    assert eventually(refused, LIMIT_S), status(frontend.url)
    table = status(frontend.url)
    assert table.returncode == 1 and "differs from that of the workers" in table.stdout, table
    # It has been spoken with by now.
    assert ask(frontend).status == 200
    row = lambda: next(line for line in status(frontend.url).stdout.splitlines() if "  serving  " in line)
    assert eventually(lambda: f"  {version}  " in row(), LIMIT_S), row()
    (worker,) = json.loads(status(frontend.url, "--json").stdout)["workers"]
    assert worker["version"] == f"dynamo/{version}"
    # A worker that fails everything is passed over, and is still there.
    failing = tmp_path / "failing.json"
    failing.write_text(json.dumps({"model": "other", "scripts": [{"steps": ["reset"]}]}))
    fleet.start("worker", "--engine", "scripted", "--script", str(failing), "--workers", "1")
    assert eventually(lambda: len(http(frontend.url + "/v1/models").json["data"]) == 2, LIMIT_S), frontend.output
    assert ask(frontend, model="other").status >= 500
    assert eventually(lambda: "suspended: requests failed there" in status(frontend.url).stdout, LIMIT_S), status(frontend.url)
    # One that drains finishes what it has.
    hold(frontend)
    workers = lambda: json.loads(status(frontend.url, "--json").stdout)["workers"]
    assert eventually(lambda: any(worker["requests"] for worker in workers()), LIMIT_S)
    good.signal(signal.SIGTERM)
    assert eventually(lambda: "draining: it finishes what it has" in status(frontend.url).stdout, LIMIT_S), status(frontend.url)


def on_terminal(url, columns):
    """What a person sees on a terminal of so many columns."""
    child, terminal = pty.fork()
    if child == 0:
        environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        os.execve(BIN, [BIN, "status", "--url", url], environment)
    seen = b""
    while True:
        try:
            part = os.read(terminal, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
    os.waitpid(child, 0)
    os.close(terminal)
    return seen.decode().replace("\r\n", "\n")


def test_a_narrow_terminal_gets_a_narrow_table(fleet):
    frontend = fleet.frontend()
    fleet.start("worker", MODEL, *MOCK[:-1], "a-model-with-quite-a-long-name")
    assert eventually(lambda: http(frontend.url + "/v1/models").json["data"], LIMIT_S), frontend.output
    piped = status(frontend.url).stdout
    wide = on_terminal(frontend.url, 250)
    assert "KV CACHED" in piped and "No room" not in piped
    assert [line.split()[:3] for line in wide.splitlines()] == [line.split()[:3] for line in piped.splitlines()]
    for columns in (120, 100, 80, 60):
        narrow = on_terminal(frontend.url, columns)
        rows = [line for line in narrow.splitlines()[1:] if not line.startswith("No room for ")]
        assert max(map(len, rows)) <= columns, narrow
        assert "WORKER" in narrow and "STATE" in narrow and "serving" in narrow, narrow
    assert "No room for " in on_terminal(frontend.url, 80) and "--json has everything" in on_terminal(frontend.url, 80)
