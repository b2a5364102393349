"""Structured output: what the default model writes parses and satisfies what was asked for."""

import json
import pathlib
import re

import jsonschema
import openai
import pytest

SCHEMAS = json.loads(
    (pathlib.Path(__file__).parents[2] / "crates/guide/tests/data/schemas.json").read_text(encoding="utf-8")
)


def ask(client, model, text, **fields):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model=model, messages=messages, max_tokens=200, **fields)


def as_format(schema):
    return {"type": "json_schema", "json_schema": {"name": "answer", "strict": True, "schema": schema}}


@pytest.mark.parametrize("case", SCHEMAS, ids=lambda case: case["name"])
def test_answers_satisfy_their_schema(client, model, case):
    for temperature, seed in [(0, 0), (1, 1), (1, 2)]:
        answer = ask(
            client,
            model,
            case["ask"],
            temperature=temperature,
            seed=seed,
            response_format=as_format(case["schema"]),
        )
        choice = answer.choices[0]
        if choice.finish_reason == "stop":
            jsonschema.validate(json.loads(choice.message.content), case["schema"])
        else:
            assert choice.finish_reason == "length"


def test_a_stream_is_the_same_answer(client, model):
    settings = {"temperature": 1, "seed": 3, "response_format": as_format(SCHEMAS[1]["schema"])}
    whole = ask(client, model, SCHEMAS[1]["ask"], **settings).choices[0].message.content
    chunks = ask(client, model, SCHEMAS[1]["ask"], stream=True, **settings)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == whole


def test_json_object_and_the_other_guides(client, model):
    answer = ask(client, model, "Describe a cat in JSON.", temperature=0, response_format={"type": "json_object"})
    if answer.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    # Where the answer is as long as it may be, it ends anywhere in the grammar.
    for guide, holds in [
        ({"guided_choice": ["red", "green"]}, lambda text: text in ("red", "green")),
        ({"guided_regex": "[0-9]{4}"}, lambda text: re.fullmatch("[0-9]{4}", text)),
        ({"guided_grammar": 'start: ("ab" | "c")+ "!"'}, lambda text: re.fullmatch("(ab|c)*(a|ab|c|!)", text)),
        ({"structured_outputs": {"json": {"type": "boolean"}}}, lambda text: text in ("true", "false")),
    ]:
        answer = ask(client, model, "Say something.", extra_body=guide)
        assert holds(answer.choices[0].message.content), answer
    answer = client.completions.create(model=model, prompt="Yes or no? ", extra_body={"guided_choice": ["yes", "no"]})
    assert answer.choices[0].text in ("yes", "no")


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_cannot_be_kept_is_refused_with_the_reason(client, model, stream):
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, model, "x", stream=stream, response_format=as_format({"not": {"type": "string"}}))
    assert refused.value.param == "response_format"
    assert "not" in refused.value.message
