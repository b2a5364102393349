"""Calls that have to be, and answers of a form, by the SDKs as they come: all that the real model writes parses and fits."""

import json

import anthropic
import jsonschema
import openai
import pytest

WEATHER = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    },
    "required": ["city", "unit", "days"],
    "additionalProperties": False,
}
ROUTE = {
    "type": "object",
    "properties": {"stops": {"type": "array", "items": {"$ref": "#/$defs/stop"}, "minItems": 1, "maxItems": 2}},
    "required": ["stops"],
    "additionalProperties": False,
    "$defs": {
        "stop": {
            "type": "object",
            "properties": {"name": {"type": "string", "maxLength": 12}, "minutes": {"type": ["integer", "null"], "maximum": 90}},
            "required": ["name", "minutes"],
            "additionalProperties": False,
        }
    },
}
SCHEMAS = {"get_weather": WEATHER, "plan_route": ROUTE}
QUESTIONS = ["What is the weather in Oslo in the next three days?", "Bring me from Berlin to Rome.", "Hello!"]
LIMIT = 200


@pytest.fixture
def claude(server):
    with anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=120) as client:
        yield client


class Chat:
    """OpenAI's chat completions."""

    tools = [
        {"type": "function", "function": {"name": name, "description": name, "parameters": schema, "strict": True}}
        for name, schema in SCHEMAS.items()
    ]

    def __init__(self, client, model):
        self.client, self.model = client, model

    def ask(self, question, name, single, stream, seed):
        options = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": LIMIT,
            "temperature": 1 if seed else 0,
            "seed": seed,
            "tools": self.tools,
            "tool_choice": {"type": "function", "function": {"name": name}} if name else "required",
            "parallel_tool_calls": not single,
        }
        if stream:
            with self.client.chat.completions.stream(**options) as events:
                try:
                    choice = events.get_final_completion().choices[0]
                except openai.LengthFinishReasonError:
                    return None
        else:
            choice = self.client.chat.completions.create(**options).choices[0]
        if choice.finish_reason == "length":
            return None
        assert choice.finish_reason == ("stop" if name else "tool_calls")
        assert not choice.message.content
        return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls]


class Responses:
    """OpenAI's responses."""

    tools = [{"type": "function", **tool["function"]} for tool in Chat.tools]

    def __init__(self, client, model):
        self.client, self.model = client, model

    def ask(self, question, name, single, stream, seed):
        options = {
            "model": self.model,
            "input": question,
            "max_output_tokens": LIMIT,
            "temperature": 1 if seed else 0,
            "tools": self.tools,
            "tool_choice": {"type": "function", "name": name} if name else "required",
            "parallel_tool_calls": not single,
            "extra_body": {"seed": seed},
        }
        if stream:
            with self.client.responses.stream(**options) as events:
                for _ in events:
                    pass
                answer = events.get_final_response()
        else:
            answer = self.client.responses.create(**options)
        if answer.status == "incomplete":
            return None
        assert {item.type for item in answer.output} == {"function_call"}
        return [(item.name, json.loads(item.arguments)) for item in answer.output]


class Messages:
    """Anthropic's messages."""

    tools = [{"name": name, "description": name, "input_schema": schema} for name, schema in SCHEMAS.items()]

    def __init__(self, client, model):
        self.client, self.model = client, model

    def ask(self, question, name, single, stream, seed):
        choice = {"type": "tool", "name": name} if name else {"type": "any"}
        options = {
            "model": self.model,
            "messages": [{"role": "user", "content": question}],
            "max_tokens": LIMIT,
            "tools": self.tools,
            "tool_choice": {**choice, "disable_parallel_tool_use": single},
            "extra_body": {"temperature": 1 if seed else 0, "seed": seed},
        }
        if stream:
            with self.client.messages.stream(**options) as events:
                answer = events.get_final_message()
        else:
            answer = self.client.messages.create(**options)
        if answer.stop_reason == "max_tokens":
            return None
        assert answer.stop_reason == "tool_use"
        assert {block.type for block in answer.content} == {"tool_use"}
        return [(block.name, block.input) for block in answer.content]


@pytest.fixture(params=[Chat, Responses, Messages])
def api(request, client, claude, model):
    return request.param(claude if request.param is Messages else client, model)


@pytest.mark.parametrize("name", [None, *SCHEMAS])
def test_forced_calls_fit_their_schema(api, name):
    whole = 0
    for number, question in enumerate(QUESTIONS):
        for seed in (0, number + 1):
            answers = [api.ask(question, name, True, stream, seed) for stream in (False, True)]
            assert answers[0] == answers[1], "streamed and whole answers agree"
            if answers[0] is None:
                continue
            whole += 1
            ((called, arguments),) = answers[0]
            assert called == (name or called)
            jsonschema.validate(arguments, SCHEMAS[called])
    assert whole >= 4, "most answers are not cut"


def test_several_calls_each_fit(api):
    for seed in (1, 2, 3):
        for called, arguments in api.ask(QUESTIONS[0], None, False, seed % 2 == 0, seed) or []:
            jsonschema.validate(arguments, SCHEMAS[called])


def test_responses_are_parsed_into_a_form(client, model):
    for stream in (False, True):
        form = {"type": "json_schema", "name": "weather", "strict": True, "schema": WEATHER}
        options = {"model": model, "input": QUESTIONS[0], "max_output_tokens": LIMIT, "text": {"format": form}}
        if stream:
            with client.responses.stream(**options, temperature=0) as events:
                for _ in events:
                    pass
                answer = events.get_final_response()
        else:
            answer = client.responses.create(**options, temperature=0)
        assert answer.status == "completed"
        assert answer.text.format.type == "json_schema"
        jsonschema.validate(json.loads(answer.output_text), WEATHER)


def test_messages_are_of_a_form(claude, model):
    form = {"format": {"type": "json_schema", "schema": WEATHER}}
    answer = claude.messages.create(
        model=model,
        messages=[{"role": "user", "content": QUESTIONS[0]}],
        max_tokens=LIMIT,
        extra_body={"temperature": 0, "output_config": form},
    )
    assert answer.stop_reason == "end_turn"
    jsonschema.validate(json.loads(answer.content[0].text), WEATHER)


def test_a_model_that_thinks_may_think_first(start_server):
    """The grammar leaves room for reasoning; this model was not taught to, so it may also go straight to the call."""
    server = start_server("--workers", "1", "--set", "worker.reasoning_parser=qwen3", "--set", "worker.tool_parser=hermes")
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=120) as client:
        model = client.models.list().data[0].id
        for seed in (0, 1, 2):
            for called, arguments in Chat(client, model).ask(QUESTIONS[0], "get_weather", True, True, seed) or []:
                jsonschema.validate(arguments, SCHEMAS[called])


def test_a_schema_that_is_not_strict_is_refused_with_its_place(client, model):
    tool = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"type": "object", "properties": {"a": {}}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}], max_tokens=5, tools=[tool])
    assert refused.value.param == "tools[0].function.parameters"


def test_a_strict_tool_that_the_model_calls_by_itself_has_its_schema(start_server):
    """What the conversation shows the model, it would say again; but the schema has no seven."""
    server = start_server("--workers", "1", "--tool-parser", "hermes")
    call = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "%s", "days": 7}}\n</tool_call>'
    messages = []
    for city in ("Paris", "Rome", "Berlin"):
        messages.append({"role": "user", "content": f"Weather in {city} for 7 days?"})
        messages.append({"role": "assistant", "content": call % city})
    messages.append({"role": "user", "content": "Weather in Oslo for 7 days?"})
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"enum": [1, 2]}},
        "required": ["city", "days"],
        "additionalProperties": False,
    }
    tool = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": schema}}
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=120) as client:
        options = {
            "model": client.models.list().data[0].id,
            "messages": messages,
            "tools": [tool],
            "temperature": 0,
            "max_tokens": 80,
        }
        whole = client.chat.completions.create(**options).choices[0]
        with client.chat.completions.stream(**options) as stream:
            streamed = stream.get_final_completion().choices[0]
        for choice in (whole, streamed):
            assert choice.finish_reason == "tool_calls"
            [made] = choice.message.tool_calls
            jsonschema.validate(json.loads(made.function.arguments), schema)
            assert made.function.name == "get_weather"
        assert whole.message.tool_calls[0].function.arguments == streamed.message.tool_calls[0].function.arguments
