"""The Responses API and tools, by the OpenAI SDK as it comes, against the real system."""

import json

import openai
import pytest
from test_anthropic import CALL

QUESTION = "What is the capital of France?"
SYSTEM = "You are a helpful assistant."
WEATHER = {
    "name": "get_weather",
    "description": "Weather of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}


@pytest.fixture
def caller(start_server, tmp_path):
    """A server whose model thinks, speaks and calls a tool."""
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"model": "caller", "scripts": [{"steps": [{"pieces": CALL}]}]}))
    flags = ["--set", "worker.tool_parser=hermes", "--set", "worker.reasoning_parser=qwen3"]
    server = start_server("--engine", "scripted", "--script", str(script), "--workers", "1", *flags)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60) as client:
        yield client


def respond(client, model, **options):
    return client.responses.create(
        **{
            "model": model,
            "input": QUESTION,
            "instructions": SYSTEM,
            "temperature": 0,
            "max_output_tokens": 24,
            **options,
        }
    )


def test_the_capital_of_france(client, model):
    answer = respond(client, model)
    assert "Paris" in answer.output_text
    assert answer.object == "response"
    assert answer.model == model
    assert answer.status in ("completed", "incomplete")
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_a_stream_folds_into_the_unary_answer(client, model):
    whole = respond(client, model)
    events = list(respond(client, model, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert text == last.response.output_text == whole.output_text
    assert last.response.usage.output_tokens == whole.usage.output_tokens


def test_the_sdk_stream_helper_works(client, model):
    options = {"model": model, "input": QUESTION, "instructions": SYSTEM, "temperature": 0, "max_output_tokens": 24}
    with client.responses.stream(**options) as stream:
        kinds = [event.type for event in stream]
    assert kinds[0] == "response.created"
    assert kinds[-1] in ("response.completed", "response.incomplete")


def test_tokens_are_counted(client, model):
    counted = client.responses.input_tokens.count(model=model, input=QUESTION, instructions=SYSTEM)
    assert counted.input_tokens == respond(client, model).usage.input_tokens


def test_errors_are_the_exceptions_of_the_sdk(client, model):
    with pytest.raises(openai.NotFoundError):
        respond(client, "nobody")
    with pytest.raises(openai.BadRequestError):
        respond(client, model, max_output_tokens=0)


def check_items(items):
    assert [item.type for item in items] == ["reasoning", "message", "function_call"]
    reasoning, message, call = items
    assert reasoning.content[0].text == "I should look."
    assert message.content[0].text.strip() == "Let me see."
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Oslo"})


def test_a_response_calls_a_tool_and_takes_the_answer(caller):
    tools = [{"type": "function", **WEATHER}]
    answer = caller.responses.create(model="caller", input=QUESTION, tools=tools)
    check_items(answer.output)
    with caller.responses.stream(model="caller", input=QUESTION, tools=tools) as stream:
        for _ in stream:
            pass
        check_items(stream.get_final_response().output)
    turns = [{"role": "user", "content": QUESTION}]
    turns += [item.model_dump(exclude_none=True) for item in answer.output]
    turns += [{"type": "function_call_output", "call_id": answer.output[2].call_id, "output": "Rain."}]
    check_items(caller.responses.create(model="caller", input=turns, tools=tools).output)


def check_message(choice):
    message = choice.message
    assert message.reasoning_content == "I should look."
    assert message.content.strip() == "Let me see."
    (call,) = message.tool_calls
    assert (call.type, call.function.name) == ("function", "get_weather")
    assert json.loads(call.function.arguments) == {"city": "Oslo"}
    assert choice.finish_reason == "tool_calls"


def test_a_chat_calls_a_tool_and_takes_the_answer(caller):
    options = {
        "model": "caller",
        "messages": [{"role": "user", "content": QUESTION}],
        "tools": [{"type": "function", "function": WEATHER}],
    }
    answer = caller.chat.completions.create(**options)
    check_message(answer.choices[0])
    with caller.chat.completions.stream(**options) as stream:
        for _ in stream:
            pass
        check_message(stream.get_final_completion().choices[0])
    message = answer.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "Rain."}
    turns = [*options["messages"], message.model_dump(exclude_none=True), result]
    check_message(caller.chat.completions.create(**{**options, "messages": turns}).choices[0])


def test_what_no_worker_does_is_not_implemented(client):
    for ask in (
        lambda: client.images.generate(model="m", prompt="x"),
        lambda: client.audio.speech.create(model="m", input="x", voice="alloy"),
    ):
        with pytest.raises(openai.InternalServerError) as caught:
            ask()
        assert caught.value.status_code == 501
