"""KV events over ZMQ, as routers of others read them: a subscriber and a replay of libzmq, against a real worker."""

import re

import msgpack
import pytest
import zmq
from system import Process, eventually, http

LIMIT_S = 60
BLOCK = 16
END = b"\xff" * 8


@pytest.fixture
def fleet(tmp_path):
    """The URL of a frontend, and the sockets of the mock worker behind it."""
    context = zmq.Context()
    frontend = Process("frontend", tmp_path / "store", "--port", "0")
    settings = {"events": "tcp://127.0.0.1:0", "replay": f"ipc://{tmp_path}/replay"}
    flags = [f"--set=worker.zmq_{name}_endpoint={endpoint}" for name, endpoint in settings.items()]
    worker = Process("worker", tmp_path / "store", "--engine", "mock", "--workers", "1", *flags)
    try:
        assert eventually(lambda: frontend.url, LIMIT_S), frontend.output
        ready = lambda: http(frontend.url + "/v1/models").json["data"]  # noqa: E731
        assert eventually(ready, LIMIT_S), worker.output
        (events,) = re.findall(r"events=(tcp://[0-9.:]+)", worker.output)
        subscriber, asker = context.socket(zmq.SUB), context.socket(zmq.DEALER)
        subscriber.connect(events)
        subscriber.subscribe(b"kv-events")
        asker.connect(settings["replay"])
        for one in (subscriber, asker):
            one.setsockopt(zmq.RCVTIMEO, LIMIT_S * 1000)
        yield frontend.url, subscriber, asker
    finally:
        context.destroy(linger=0)
        frontend.end()
        worker.end()


def ask(url, prompt, **more):
    model = http(url + "/v1/models").json["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": 1, **more}
    reply = http(url + "/v1/completions", body)
    assert reply.status == 200, reply.body


def replay(asker, start):
    asker.send_multipart([b"", start.to_bytes(8, "big")])
    answers = []
    while True:
        empty, topic, number, payload = asker.recv_multipart()
        if number == END:
            assert (empty, topic, payload) == (b"", b"", b"")
            return answers
        assert (empty, topic) == (b"", b"kv-events")
        answers.append((int.from_bytes(number, "big"), payload))


def blocks(payload):
    """Tokens by block of what a message stored."""
    time, events, rank = msgpack.unpackb(payload)
    assert time > 1.7e9 and rank == 0
    found = {}
    for event in events:
        if event["type"] == "BlockStored":
            assert event["block_size"] == BLOCK and event["medium"] == "GPU"
            tokens = event["token_ids"]
            assert len(tokens) == BLOCK * len(event["block_hashes"])
            for number, name in enumerate(event["block_hashes"]):
                found[name] = tokens[BLOCK * number :][:BLOCK]
    return found


def test_stored_blocks_are_published_and_replayed(fleet):
    url, subscriber, asker = fleet
    prompts = [[7 + number] * (2 * BLOCK) for number in range(5)]
    heard = []

    def hear(prompt):
        """Asks until something is heard: a subscription takes a moment to arrive."""
        ask(url, prompt)
        return subscriber.poll(100)

    assert eventually(lambda: hear([100 + len(heard)] * BLOCK + [len(heard)] * BLOCK) or heard.append(0), LIMIT_S)
    for prompt in prompts:
        ask(url, prompt)
    wanted = [prompt[:BLOCK] for prompt in prompts]
    live = []
    while not all(prompt in stored for prompt in wanted for stored in [sum((list(b.values()) for _, b in live), [])]):
        topic, number, payload = subscriber.recv_multipart()
        assert topic == b"kv-events"
        live.append((int.from_bytes(number, "big"), blocks(payload)))
    numbers = [number for number, _ in live]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers))), "without a gap"
    again = replay(asker, 0)
    assert [number for number, _ in again] == list(range(len(again))), "from the very first"
    said = {number: blocks(payload) for number, payload in again}
    assert all(said[number] == stored for number, stored in live), "the same bytes"
    assert [number for number, _ in replay(asker, numbers[-1])][:1] == [numbers[-1]]
    assert replay(asker, 10**6) == []


def test_salted_blocks_are_nobodys_business(fleet):
    url, _, asker = fleet
    ask(url, [3] * (2 * BLOCK), cache_salt="tenant")
    ask(url, [4] * (2 * BLOCK))
    plain = [4] * BLOCK

    def stored():
        return [tokens for _, payload in replay(asker, 0) for tokens in blocks(payload).values()]

    assert eventually(lambda: plain in stored(), LIMIT_S)
    assert [3] * BLOCK not in stored()
