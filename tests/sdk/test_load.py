"""Many clients at once, polite and rude, against the real engine."""

import asyncio
import json
import os
import random
import threading

import openai
import pytest
from system import LEDGER, MODEL, eventually, http, settled

STREAMS = 64
TOKENS = 64
DISCONNECTS = 200
AT_ONCE = 25
SEED = 20260728

# What the process may need besides the model file and the KV blocks.
OVERHEAD_BYTES = 150 * 1024 * 1024


def prompts():
    openings = ["Once upon a time there was", "The three laws of motion say that", "A good recipe for bread starts with", "In the year 1850"]
    return [f"{openings[i % len(openings)]} {'very ' * (i % 7)}number {i}" for i in range(STREAMS)]


class Watch:
    """The largest resident size and the largest ledger entries seen while it runs."""

    def __init__(self, server):
        self.server, self.resident, self.ledger, self._stop = server, 0, {}, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self._stop.wait(0.1):
            self.resident = max(self.resident, self.server.resident_bytes())
            for name, value in self.server.ledger().items():
                self.ledger[name] = max(self.ledger.get(name, 0), value)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join()


# SmolLM2-135M: 30 layers, key and value, 3 heads of 64 values, 16 tokens per block, 2 bytes per value.
BLOCK_BYTES = 30 * 2 * 3 * 64 * 16 * 2


def kv_bytes(server):
    """All KV blocks of all workers."""
    return server.total("dynamo_component_total_blocks") * BLOCK_BYTES


@pytest.mark.timeout(900)
def test_64_streams_equal_their_sequential_greedy_run(start_server):
    # Blocks for little more than the streams need, so that the bound on memory means something.
    server = start_server("--kv-blocks", "256")
    options = {"max_tokens": TOKENS, "temperature": 0, "stream": True, "extra_body": {"ignore_eos": True}}

    async def one(client, model, prompt):
        text = ""
        async for chunk in await client.completions.create(model=model, prompt=prompt, **options):
            for choice in chunk.choices:
                text += choice.text
        return text

    async def run():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=600) as client:
            model = (await client.models.list()).data[0].id
            together = await asyncio.gather(*(one(client, model, prompt) for prompt in prompts()))
            alone = [await one(client, model, prompt) for prompt in prompts()]
            return alone, together

    start = server.ledger()
    with Watch(server) as most:
        alone, together = asyncio.run(run())
    assert all(alone)
    for prompt, expected, got in zip(prompts(), alone, together):
        assert got == expected, prompt
    allowed = os.path.getsize(MODEL) + kv_bytes(server) + OVERHEAD_BYTES
    assert most.resident < allowed, f"{most.resident / 2**20:.0f} MiB resident, {allowed / 2**20:.0f} MiB allowed"
    assert all(most.ledger[name] > 0 for name in LEDGER), f"a meter that never moves proves nothing: {most.ledger}"
    assert most.ledger["dynamo_frontend_active_requests"] == STREAMS
    settled(server, start)


def request_bytes(route, body):
    payload = json.dumps(body).encode()
    head = f"POST {route} HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


async def rude_client(host, port, route, body, draw):
    """Sends a request and hangs up at a drawn moment: while sending, before the answer, or after some of it."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        sent = request_bytes(route, body)
        moment = draw.choice(["sending", "sent", "waiting", "reading", "reading"])
        if moment == "sending":
            sent = sent[: draw.randrange(1, len(sent))]
        writer.write(sent)
        await writer.drain()
        if moment == "waiting":
            await asyncio.sleep(draw.uniform(0, 0.5))
        elif moment == "reading":
            left = draw.randrange(1, 5000)
            while left > 0:
                piece = await reader.read(min(left, 1024))
                if not piece:
                    break
                left -= len(piece)
    finally:
        if draw.random() < 0.5:
            writer.transport.abort()
        else:
            writer.close()


@pytest.mark.timeout(900)
def test_r22_200_clients_hang_up_and_everything_comes_back(server):
    model = server.get("/v1/models").json["data"][0]["id"]
    host, port = server.url.removeprefix("http://").split(":")
    draw = random.Random(SEED)
    start, threads = server.ledger(), server.threads()

    def request(number):
        text = f"Client {number} says: " + "and so on " * draw.randrange(1, 40)
        stream = number % 2 == 0
        common = {"model": model, "max_tokens": draw.randrange(1, 150), "stream": stream, "ignore_eos": True}
        if number % 4 < 2:
            return "/v1/chat/completions", {**common, "messages": [{"role": "user", "content": text}], "n": draw.choice([1, 1, 2])}
        return "/v1/completions", {**common, "prompt": text}

    requests = [(request(number), random.Random(SEED + number)) for number in range(DISCONNECTS)]

    async def run():
        slots = asyncio.Semaphore(AT_ONCE)

        async def one(request, own_draw):
            async with slots:
                await asyncio.wait_for(rude_client(host, int(port), *request, own_draw), 120)

        await asyncio.gather(*(one(request, own_draw) for request, own_draw in requests))

    asyncio.run(run())
    settled(server, start)
    assert eventually(lambda: server.threads() <= threads), f"{server.threads()} threads, {threads} before"
    answer = http(server.url + "/v1/completions", {"model": model, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0})
    assert answer.status == 200 and "Paris" in answer.json["choices"][0]["text"]
