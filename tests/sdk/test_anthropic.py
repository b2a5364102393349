"""The Anthropic SDK, as it comes, against the real system: the real model, and an engine that writes calls."""

import json

import anthropic
import pytest

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# A field of the API that this SDK has no argument for.
GREEDY = {"temperature": 0}
SYSTEM = "You are a helpful assistant."
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
# As it comes from an engine: cut anywhere.
CALL = ["<think>I should ", "look.</think>", "Let me see. <tool", '_call>{"name": "get_weather", "argu', 'ments": {"city": "Os', 'lo"}}', "</tool_call>"]


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def caller(start_server, tmp_path):
    """A server whose model thinks, speaks and calls a tool."""
    script = tmp_path / "script.json"
    scripts = [
        {"when": {"contains": "fail"}, "steps": [{"pieces": ["a", "b"]}, "reset"]},
        {"when": {"contains": "short"}, "steps": [{"pieces": CALL[:4]}, {"finish": "length"}]},
        {"steps": [{"pieces": CALL}]},
    ]
    script.write_text(json.dumps({"model": "caller", "scripts": scripts}))
    flags = ["--set", "worker.tool_parser=hermes", "--set", "worker.reasoning_parser=qwen3"]
    server = start_server("--engine", "scripted", "--script", str(script), "--workers", "1", *flags)
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def ask(client, model, **options):
    return client.messages.create(
        **{"model": model, "messages": QUESTION, "max_tokens": 24, "extra_body": GREEDY, **options}
    )


def test_the_capital_of_france(claude, model):
    answer = ask(claude, model, system=SYSTEM)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", model)
    assert [block.type for block in answer.content] == ["text"]
    assert "Paris" in answer.content[0].text
    assert answer.stop_reason in ("end_turn", "max_tokens")
    assert answer.usage.input_tokens + answer.usage.cache_read_input_tokens > 0
    assert 0 < answer.usage.output_tokens <= 24


def test_a_stream_folds_into_the_unary_answer(claude, model):
    whole = ask(claude, model, system=SYSTEM)
    with claude.messages.stream(
        model=model, messages=QUESTION, system=SYSTEM, max_tokens=24, extra_body=GREEDY
    ) as stream:
        kinds = [event.type for event in stream]
        answer = stream.get_final_message()
    assert answer.content[0].text == whole.content[0].text
    assert answer.stop_reason == whole.stop_reason
    assert answer.usage.output_tokens == whole.usage.output_tokens
    assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")


def test_a_stop_sequence_is_told(claude, model):
    answer = ask(claude, model, system=SYSTEM, stop_sequences=["Paris"])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in "".join(block.text for block in answer.content)


def test_tokens_are_counted(claude, model):
    counted = claude.messages.count_tokens(model=model, messages=QUESTION, system=SYSTEM)
    usage = ask(claude, model, system=SYSTEM).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_exceptions_of_the_sdk(claude, model):
    with pytest.raises(anthropic.NotFoundError) as caught:
        ask(claude, "nobody")
    assert caught.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError):
        ask(claude, model, max_tokens=0)
    with pytest.raises(anthropic.BadRequestError):
        ask(claude, model, messages=[])


def check_call(answer):
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use"]
    thinking, text, call = answer.content
    assert thinking.thinking == "I should look."
    assert text.text.strip() == "Let me see."
    assert (call.name, call.input) == ("get_weather", {"city": "Oslo"})
    assert answer.stop_reason == "tool_use"


def test_a_tool_is_called_and_answered(caller):
    options = {"model": "caller", "messages": QUESTION, "max_tokens": 100, "tools": [WEATHER]}
    answer = caller.messages.create(**options)
    check_call(answer)
    with caller.messages.stream(**options) as stream:
        partial = [event.partial_json for event in stream if event.type == "input_json"]
        streamed = stream.get_final_message()
    check_call(streamed)
    assert json.loads("".join(partial)) == {"city": "Oslo"}
    # The whole turn goes back, with the result.
    result = {"type": "tool_result", "tool_use_id": answer.content[2].id, "content": "Rain."}
    turns = [*QUESTION, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    check_call(caller.messages.create(**{**options, "messages": turns}))


def test_a_cut_call_is_no_call(caller):
    for stream in (False, True):
        options = {
            "model": "caller",
            "messages": [{"role": "user", "content": "short"}],
            "max_tokens": 100,
            "tools": [WEATHER],
        }
        if stream:
            with caller.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = caller.messages.create(**options)
        assert [block.type for block in answer.content] == ["thinking", "text"]
        assert answer.content[1].text.strip() == "Let me see."
        assert answer.stop_reason == "max_tokens"


def test_a_fault_in_mid_stream_is_an_exception(caller):
    messages = [{"role": "user", "content": "fail"}]
    with pytest.raises(anthropic.APIStatusError):
        with caller.messages.stream(model="caller", messages=messages, max_tokens=100) as stream:
            for _ in stream:
                pass
