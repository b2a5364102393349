"""Traces and log lines: one request is one trace, from the client's span to the engine, in the log and at a collector."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from system import eventually, http

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
CHAT = "/v1/chat/completions"


class Collector:
    """Takes OTLP over HTTP in both encodings, and keeps the spans."""

    def __init__(self):
        self.spans, self.services, self.types = [], set(), set()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, self.headers["content-type"], body)
                self.send_response(200)
                self.send_header("content-length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, kind, body):
        assert path == "/v1/traces"
        self.types.add(kind)
        request = ExportTraceServiceRequest()
        if kind == "application/json":
            # Ids are hexadecimal in this encoding, base64 in protobuf's own.
            for resource in json.loads(body)["resourceSpans"]:
                self.services |= {a["value"]["stringValue"] for a in resource["resource"]["attributes"]}
                for scope in resource["scopeSpans"]:
                    self.spans += [self.plain(span) for span in scope["spans"]]
            return
        request.ParseFromString(body)
        for resource in json_format.MessageToDict(request)["resourceSpans"]:
            self.services |= {a["value"]["stringValue"] for a in resource["resource"]["attributes"]}
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    fields = json_format.MessageToDict(span)
                    ids = {"traceId": span.trace_id.hex(), "spanId": span.span_id.hex()}
                    self.spans.append(self.plain({**fields, **ids, "parentSpanId": span.parent_span_id.hex()}))

    @staticmethod
    def plain(span):
        attributes = {a["key"]: next(iter(a["value"].values())) for a in span.get("attributes", [])}
        return {
            "name": span["name"],
            "trace": span["traceId"],
            "id": span["spanId"],
            "parent": span.get("parentSpanId", ""),
            "start": int(span["startTimeUnixNano"]),
            "end": int(span["endTimeUnixNano"]),
            "failed": span.get("status", {}).get("message"),
            "events": [event["name"] for event in span.get("events", [])],
            "attributes": attributes,
        }

    def of(self, trace):
        return {span["name"]: span for span in self.spans if span["trace"] == trace}


@pytest.fixture
def collector():
    collector = Collector()
    yield collector
    collector.server.shutdown()
    collector.server.server_close()


def ask(server, model, headers=None, path=CHAT, **fields):
    body = {"model": model, "max_tokens": 4, "messages": [{"role": "user", "content": "my secret"}], **fields}
    return http(server.url + path, body, headers=headers)


def traced(start_server, collector, protocol, *flags):
    options = {
        "trace.export": "true",
        "trace.endpoint": collector.url,
        "trace.protocol": protocol,
        "trace.delay_ms": "20",
    }
    settings = [f"--set={key}={value}" for key, value in options.items()]
    return start_server("--engine", "mock", "--served-model-name", "m", *settings, *flags)


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
@pytest.mark.parametrize("stream", [False, True])
def test_one_request_is_one_trace(start_server, collector, protocol, stream):
    server = traced(start_server, collector, protocol, "--set=trace.service_name=here")
    assert ask(server, "m", {"traceparent": TRACEPARENT, "x-request-id": "mine"}, stream=stream).status == 200
    names = {"http-request", "preprocess", "route", "worker", "engine"}
    assert eventually(lambda: collector.of(TRACE).keys() == names), collector.spans
    spans = collector.of(TRACE)
    assert len(collector.spans) == len(names)
    assert spans["http-request"]["parent"] == SPAN
    for name in ("preprocess", "route", "worker"):
        assert spans[name]["parent"] == spans["http-request"]["id"], name
    assert spans["engine"]["parent"] == spans["worker"]["id"]
    root = spans["http-request"]
    for name, span in spans.items():
        assert root["start"] <= span["start"] <= span["end"], name
    assert spans["route"]["end"] <= spans["engine"]["end"] <= root["end"]
    assert root["attributes"]["x_request_id"] == "mine"
    assert int(root["attributes"]["gen_ai.usage.output_tokens"]) == 4
    assert root["attributes"]["gen_ai.request.model"] == "m"
    assert root["events"] == ["first_token"] == spans["engine"]["events"]
    assert collector.services == {"here"}
    assert "secret" not in json.dumps(collector.spans)
    # Counted just after the collector's answer.
    assert eventually(lambda: server.total("dynamo_trace_spans_exported_total") == len(names))


def test_callers_and_ratios_decide_and_faults_are_marked(start_server, collector):
    server = traced(start_server, collector, "http/protobuf", "--set=trace.sample_ratio=0")
    unsampled = f"00-{'1' * 32}-{SPAN}-00"
    assert ask(server, "m", {"traceparent": unsampled}).status == 200
    assert ask(server, "m").status == 200
    assert ask(server, "nobody", {"traceparent": TRACEPARENT}).status == 404
    assert eventually(lambda: "http-request" in collector.of(TRACE)), collector.spans
    assert {span["trace"] for span in collector.spans} == {TRACE}
    root = collector.of(TRACE)["http-request"]
    assert (root["failed"], root["attributes"]["http.response.status_code"]) == ("not_found", "404")


def test_what_waits_is_sent_at_the_end(start_server, collector):
    server = traced(start_server, collector, "http/protobuf", "--set=trace.delay_ms=3600000")
    assert ask(server, "m", {"traceparent": TRACEPARENT}).status == 200
    assert collector.spans == []
    assert server.stop() == 0, server.output
    assert len(collector.of(TRACE)) == 5, collector.spans


def test_a_dead_collector_costs_spans_and_nothing_else(start_server):
    flags = ["trace.export=true", "trace.endpoint=http://127.0.0.1:9", "trace.queue_spans=8", "trace.batch_spans=8"]
    server = start_server("--engine", "mock", "--served-model-name", "m", *[f"--set={flag}" for flag in flags])
    for _ in range(20):
        assert ask(server, "m").status == 200
    assert eventually(lambda: server.total("dynamo_trace_spans_dropped_total") >= 20 * 5 - 16)
    assert server.stop() == 0, server.output


def json_lines(server):
    lines = []
    for line in server.lines:
        try:
            lines.append(json.loads(line))
        except ValueError:
            pass
    return [line for line in lines if isinstance(line, dict) and "level" in line]


@pytest.fixture
def logged(start_server, monkeypatch):
    def start(*flags):
        monkeypatch.setenv("DYN_LOG", "debug")
        return start_server("--engine", "mock", "--served-model-name", "m", "--log-format", "json", *flags)

    return start


def test_log_lines_of_all_parts_carry_the_trace(logged):
    server = logged()
    assert ask(server, "m", {"traceparent": TRACEPARENT, "x-request-id": "mine"}).status == 200
    of_trace = lambda: [line for line in json_lines(server) if line.get("trace_id") == TRACE]
    assert eventually(lambda: {line["span_name"] for line in of_trace()} == {"http-request", "worker"}), server.output
    lines = {line["span_name"]: line for line in of_trace()}
    request, worker = lines["http-request"], lines["worker"]
    assert request["request_id"] == worker["request_id"]
    assert (request["parent_id"], request["x_request_id"]) == (SPAN, "mine")
    assert worker["parent_id"] == request["span_id"]
    assert {"namespace", "component", "endpoint", "instance_id"} <= worker.keys()
    assert {"time", "level", "file", "line", "target", "message"} <= request.keys()


def test_one_line_per_request_says_how_it_went(logged):
    server = logged()
    requests = lambda: [line for line in json_lines(server) if line["level"] == "INFO" and line["message"] == "request"]
    assert ask(server, "m").status == 200
    assert ask(server, "m", stream=True).status == 200
    assert ask(server, "m", stop=["x"] * 99).status == 400
    assert ask(server, "nobody").status == 404
    assert eventually(lambda: len(requests()) == 4), server.output
    good, streamed, bad, unknown = requests()
    for line in (good, streamed):
        assert (line["model"], line["route"], line["status"], line["tokens_out"]) == ("m", "chat_completions", 200, 4)
        assert line["tokens_in"] > 0 and 0 < line["ttft_ms"] <= line["duration_ms"]
        assert line["worker"] and "error_type" not in line
    assert (good["stream"], streamed["stream"]) == (False, True)
    assert (bad["status"], bad["error_type"], unknown["error_type"]) == (400, "validation", "not_found")
    assert len({line["request_id"] for line in requests()}) == 4
    assert len({line["trace_id"] for line in requests()}) == 4
    assert "secret" not in server.output


def test_prompts_are_logged_when_asked_for(logged):
    server = logged("--set=frontend.log_prompts=true")
    assert ask(server, "m").status == 200
    assert eventually(lambda: any("my secret" in line.get("payload", "") for line in json_lines(server)))


def test_human_lines_show_the_trace_too(start_server):
    server = start_server("--engine", "mock", "--served-model-name", "m")
    assert ask(server, "m", {"traceparent": TRACEPARENT}).status == 200
    assert eventually(lambda: f"trace_id={TRACE}" in server.output), server.output


def test_limits_of_load_are_flags_and_can_be_changed(start_server):
    server = start_server(
        "--engine", "mock", "--served-model-name", "m", "--active-decode-blocks-threshold", "0.9", "--workers", "1"
    )
    assert server.get("/busy_threshold").json["thresholds"][0]["active_decode_blocks_threshold"] == 0.9
    reply = server.post("/busy_threshold", {"model": "m", "active_prefill_tokens_threshold": 5})
    assert reply.json["active_decode_blocks_threshold"] == 0.9
    assert server.post("/busy_threshold", {"model": "m", "active_decode_blocks_threshold": 0}).status == 200
    done = []
    long = threading.Thread(target=lambda: done.append(ask(server, "m", max_tokens=2000, ignore_eos=True)))
    long.start()
    # Before, the question below would be the one that holds blocks, and the long one be refused.
    assert eventually(lambda: server.total("dynamo_component_inflight_requests") == 1)
    refused = lambda: ask(server, "m").status == 529
    assert eventually(refused, 20), "one request holds blocks, and none may be held"
    long.join()
    assert done[0].status == 200
    assert eventually(lambda: ask(server, "m").status == 200)
    assert server.total("dynamo_frontend_model_rejection_total") > 0
