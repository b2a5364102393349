"""The worker in Python that docs/request-plane.md promises can be written: it serves real frontends."""

import signal
import subprocess
import sys

import openai
import pytest
from system import BIN, LISTENING, ROOT, eventually, http

WORKER = ROOT / "examples/python-worker/worker.py"


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


def test_a_worker_that_is_killed_is_replaced_in_mid_stream(fleet):
    url, worker = fleet
    first = worker(delay_ms=20)
    assert listed(url, 1)
    client = openai.OpenAI(base_url=url + "/v1", api_key="unused", max_retries=0)
    prompt = "".join(chr(ord("a") + number % 26) for number in range(100))
    stream = client.completions.create(model="toy", prompt=prompt, max_tokens=200, stream=True)
    said = next(stream).choices[0].text
    worker()
    assert listed(url, 2)
    first.send_signal(signal.SIGKILL)
    said += "".join(piece.choices[0].text for piece in stream)
    assert said == prompt[::-1], "every token once"


def test_it_withdraws_when_told_to_stop(fleet):
    url, worker = fleet
    process = worker()
    assert listed(url, 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0
    assert listed(url, 0)
