"""The worker in Python that docs/request-plane.md promises can be written: it serves real frontends."""

import signal
import subprocess
import sys

import openai
import pytest
from system import BIN, LISTENING, ROOT, eventually, http

WORKER = ROOT / "examples/python-worker"


@pytest.fixture
def fleet(tmp_path):
    """A frontend, and a function that starts example workers for it."""
    store = tmp_path / "store"
    started = []

    def start(*command):
        log = open(tmp_path / f"{len(started)}.log", "w+")
        started.append((subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT), log))
        return started[-1][0]

    start(BIN, "frontend", "--port", "0", "--discovery-path", str(store))

    def url():
        found = LISTENING.search((tmp_path / "0.log").read_text())
        return found and found.group(1)

    assert eventually(url)

    def worker(delay_ms=1):
        return start(sys.executable, WORKER, "--store", str(store), "--delay-ms", str(delay_ms))

    yield url(), worker
    for process, log in started:
        process.kill()
        process.wait()
        log.close()


def listed(url, count):
    return eventually(lambda: len(http(url + "/health").json.get("instances", [])) == count)


def test_its_answers_come_streamed_and_whole(fleet):
    url, worker = fleet
    worker()
    assert listed(url, 1)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    text = "Grüße, 世界!"
    # The toy engine says the bytes of the prompt backwards, so only ASCII comes out as characters.
    whole = client.completions.create(model="toy", prompt="hello world", max_tokens=64)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == ("dlrow olleh", "stop")
    assert whole.usage.completion_tokens == 11
    pieces = client.completions.create(model="toy", prompt="hello world", max_tokens=5, stream=True)
    pieces = list(pieces)
    assert "".join(piece.choices[0].text for piece in pieces) == "dlrow"
    assert pieces[-1].choices[0].finish_reason == "length"
    there = client.completions.create(model="toy", prompt=list(text.encode())[::-1], max_tokens=64)
    assert there.choices[0].text == text


def test_many_streams_share_its_connection(fleet):
    url, worker = fleet
    worker(delay_ms=3)
    assert listed(url, 1)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    prompts = [f"prompt number {number:04}" for number in range(40)]
    streams = [client.completions.create(model="toy", prompt=p, max_tokens=64, stream=True) for p in prompts]
    answers = ["".join(piece.choices[0].text for piece in stream) for stream in streams]
    assert answers == [prompt[::-1] for prompt in prompts]


PROMPT = "".join(chr(ord("a") + number % 26) for number in range(100))


def metric(url, name):
    lines = http(url + "/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + "{"))


def test_kill_9_of_one_of_two_moves_its_streams(fleet):
    url, worker = fleet
    workers = [worker(delay_ms=20), worker(delay_ms=20)]
    assert listed(url, 2)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    # Of different beginnings, so that both workers have some.
    prompts = [f"{number} {PROMPT}" for number in range(6)]
    streams = [client.completions.create(model="toy", prompt=p, max_tokens=200, stream=True) for p in prompts]
    said = [next(stream).choices[0].text for stream in streams]
    workers[0].send_signal(signal.SIGKILL)
    said = [text + "".join(piece.choices[0].text for piece in stream) for text, stream in zip(said, streams)]
    assert said == [prompt[::-1] for prompt in prompts], "every token once"
    assert metric(url, "dynamo_frontend_model_migration_total") > 0, "none of them was there"
    assert listed(url, 1)


def test_a_client_that_leaves_cancels(fleet):
    url, worker = fleet
    worker(delay_ms=50)
    assert listed(url, 1)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    stream = client.completions.create(model="toy", prompt="x" * 3000, max_tokens=3000, stream=True)
    next(stream)
    stream.close()
    # Its words would take 150 s.
    assert eventually(lambda: metric(url, "dynamo_frontend_model_cancellation_total") > 0)
    assert eventually(lambda: metric(url, "dynamo_frontend_active_requests") == 0)


def test_what_it_caches_decides_where_requests_go(fleet):
    url, worker = fleet
    worker(), worker()
    assert listed(url, 2)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)

    def cached(prompt):
        answer = client.completions.create(model="toy", prompt=prompt, max_tokens=4)
        details = answer.usage.prompt_tokens_details
        return details.cached_tokens if details else 0

    for number in range(8):
        prompt = f"{number}: {PROMPT}"
        assert cached(prompt) == 0
        blocks = len(prompt) // 16
        known = blocks * (number + 1)
        assert eventually(lambda: metric(url, "dynamo_component_router_index_nodes") == known), "its events came"
        assert [cached(prompt) for _ in range(3)] == [16 * blocks] * 3


def test_it_drains_when_told_to_stop(fleet):
    url, worker = fleet
    process = worker(delay_ms=20)
    assert listed(url, 1)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    stream = client.completions.create(model="toy", prompt=PROMPT, max_tokens=200, stream=True)
    said = next(stream).choices[0].text
    process.send_signal(signal.SIGTERM)
    said += "".join(piece.choices[0].text for piece in stream)
    assert said == PROMPT[::-1], "what runs comes to its end"
    assert process.wait(30) == 0
    assert listed(url, 0)
