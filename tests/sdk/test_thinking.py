"""Limits of thinking, on the mock engine and on the real model."""

import anthropic
import openai
import pytest

# The prompt is taken to open thinking, so an answer is nothing else until it ends.
OPEN = ("--reasoning-parser", "deepseek_r1")


def chat(server, model, budget, **options):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    extra = {"nvext": {"max_thinking_tokens": budget, "extra_fields": ["completion_token_ids"]}}
    raw = client.chat.completions.with_raw_response.create(
        model=model, messages=[{"role": "user", "content": "Why is the sky blue?"}], extra_body=extra, **options
    )
    assert "x-dynamo-ignored-fields" not in raw.headers
    return raw.parse().choices[0]


def thought_tokens(choice):
    """How many tokens come before the end of thinking."""
    spelled = ""
    for count, token in enumerate(choice.logprobs.content):
        spelled += token.token
        if "</think>" in spelled:
            end = len(spelled.split("</think>")[0])
            lengths = [len(token.token) for token in choice.logprobs.content]
            return sum(1 for at in range(count + 1) if sum(lengths[: at + 1]) <= end)
    raise AssertionError(spelled)


@pytest.mark.parametrize("budget", [0, 1, 7])
def test_the_mock_engine_thinks_so_long(start_server, budget):
    server = start_server("--engine", "mock", "--workers", "1", "--served-model-name", "mock", *OPEN)
    choice = chat(server, "mock", budget, max_tokens=60, seed=1, logprobs=True)
    assert budget <= thought_tokens(choice) <= budget + 4
    assert len(choice.logprobs.content) == 60 and choice.message.content
    client = anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0)
    answer = client.messages.create(
        model="mock",
        max_tokens=60,
        messages=[{"role": "user", "content": "x"}],
        thinking={"type": "enabled", "budget_tokens": 7},
    )
    assert [block.type for block in answer.content] == ["thinking", "text"]
    assert answer.usage.output_tokens == 60


def test_the_real_model_thinks_so_long_and_then_answers(start_server):
    server = start_server(*OPEN)
    model = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none").models.list().data[0].id
    free = chat(server, model, 1000, max_tokens=40, temperature=0)
    assert not free.message.content and free.message.reasoning_content
    held = chat(server, model, 10, max_tokens=40, temperature=0, logprobs=True, top_logprobs=2)
    thought, text = held.message.reasoning_content, held.message.content
    assert free.message.reasoning_content.startswith(thought.rstrip()) and text
    tokens = held.logprobs.content
    assert len(tokens) == 40
    spelled = "".join(token.token for token in tokens)
    at = spelled.index("</think>")
    assert spelled[:at].strip() == thought.strip()
    # What is put in has the probability that the model gave it, which is not one.
    assert all(token.logprob <= 0 for token in tokens)
    assert any(token.token != token.top_logprobs[0].token for token in tokens)
    structured = chat(
        server,
        model,
        10,
        max_tokens=120,
        temperature=0,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}},
        },
    )
    assert structured.message.content.lstrip().startswith("{") and structured.message.reasoning_content
