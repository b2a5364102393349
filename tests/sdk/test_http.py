"""Routes that no SDK covers, and answers to clients that do not speak well."""

import json

import pytest

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest.fixture
def served(server):
    return server.get("/v1/models").json["data"][0]["id"]


def body(route, model, **options):
    prompt = {"messages": [{"role": "user", "content": "Hello"}]} if route == CHAT else {"prompt": "Hello"}
    return {"model": model, "max_tokens": 4, "temperature": 0, **prompt, **options}


def test_health_live_and_ready(server, served):
    assert server.get("/live").status == 200
    health = server.get("/health")
    assert (health.status, health.json["status"]) == (200, "healthy")
    assert len(health.json["instances"]) == 2
    ready = server.get(f"/v1/models/{served}/ready")
    assert ready.status == 200 and ready.json["ready"] is True
    assert server.get("/v1/models/nothing/ready").status == 404


def test_openapi_names_the_routes(server):
    document = server.get("/openapi.json").json
    assert document["openapi"].startswith("3.")
    for route in (CHAT, COMPLETIONS, "/v1/models", "/health", "/metrics"):
        assert route in document["paths"], route


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_errors_have_the_official_shape(server, served, route):
    cases = [
        (b"{not json", 400),
        (b"[]", 400),
        (b"", 400),
        (b"\xff\xfe", 400),
        (json.dumps(body(route, "nobody")).encode(), 404),
        (json.dumps({"model": served}).encode(), 400),
        (json.dumps(body(route, served, max_tokens="many")).encode(), 400),
    ]
    for sent, status in cases:
        answer = server.post(route, sent)
        assert answer.status == status, (sent, answer.body)
        error = answer.json["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert error["message"]


def test_wrong_routes_and_methods(server):
    assert server.get("/v1/nothing").status == 404
    assert "/v1/nothing" in server.get("/v1/nothing").json["error"]["message"]
    assert server.get(CHAT).status == 405
    assert server.post("/v1/models", {}).status == 405


@pytest.mark.parametrize("route", [CHAT, COMPLETIONS])
def test_a_stream_is_server_sent_events(server, served, route):
    answer = server.post(route, body(route, served, stream=True))
    assert answer.status == 200
    headers = {name.lower(): value for name, value in answer.headers.items()}
    assert headers["content-type"].startswith("text/event-stream")
    frames = answer.body.decode().split("\n\n")
    assert frames.pop() == ""
    assert frames[-1] == "data: [DONE]"
    for frame in frames[:-1]:
        assert frame.startswith("data: ")
        json.loads(frame[len("data: ") :])


def test_r20_sizes(server, served):
    for size in (1_500_000, 5_000_000):
        answer = server.post(COMPLETIONS, body(COMPLETIONS, served, user=None, metadata={"pad": "x" * size}))
        assert answer.status in (200, 400), f"{size} bytes must not be lost: {answer.status}"
        if answer.status == 400:
            assert answer.json["error"]["param"]


def test_metrics_count_what_happened(server, served):
    def requests():
        return sum(v for k, v in server.metrics().items() if k.startswith("dynamo_frontend_requests_total{") and 'status="success"' in k)

    before, tokens = requests(), server.total("dynamo_frontend_output_tokens_total")
    assert server.post(CHAT, body(CHAT, served)).status == 200
    assert server.post(COMPLETIONS, body(COMPLETIONS, served, stream=True)).status == 200
    assert requests() == before + 2
    assert server.total("dynamo_frontend_output_tokens_total") == tokens + 8
