"""`best_of`, `nvext` and the odd corners of OpenAI's completions, as the SDK sends them with `extra_body`."""

import json
import re

import openai
import pytest
from system import http

CAPITAL = "The capital of France is"
MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def chat(client, model, **options):
    return client.chat.completions.create(model=model, messages=MESSAGES, **{"temperature": 0, "max_tokens": 8, **options})


def complete(client, model, **options):
    return client.completions.create(model=model, **{"prompt": CAPITAL, "temperature": 0, "max_tokens": 8, **options})


def told(answer):
    return answer.model_extra["nvext"]


def test_best_of_answers_the_likeliest_candidate(client, model):
    options = {"temperature": 1, "seed": 5, "max_tokens": 6, "logprobs": 0}
    candidates = complete(client, model, n=4, **options).choices

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    ranked = sorted(candidates, key=mean, reverse=True)
    best = complete(client, model, n=2, best_of=4, **options)
    assert [choice.text for choice in best.choices] == [choice.text for choice in ranked[:2]]
    assert [choice.index for choice in best.choices] == [0, 1]
    assert best.usage.completion_tokens == sum(len(choice.logprobs.tokens) for choice in candidates)
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, model, best_of=4, stream=True, temperature=1)
    assert caught.value.param == "best_of"


def test_suffix_is_refused_clearly(client, model):
    with pytest.raises(openai.APIStatusError) as caught:
        complete(client, model, suffix="!")
    assert (caught.value.status_code, caught.value.param) == (501, "suffix")


def test_prompts_as_texts_and_ids_agree(client, model):
    ids = told(complete(client, model, extra_body={"nvext": {"extra_fields": ["prompt_token_ids"]}}))["prompt_token_ids"]
    text = complete(client, model)
    for prompt in (ids, [ids, ids]):
        answer = complete(client, model, prompt=prompt)
        assert {choice.text for choice in answer.choices} == {text.choices[0].text}
        assert answer.usage.prompt_tokens == len(ids) * len(answer.choices)
    given = complete(client, model, prompt="something else", extra_body={"nvext": {"token_data": ids}})
    assert given.choices[0].text == text.choices[0].text


def test_offsets_are_places_in_the_echoed_text(client, model):
    for prompt in (CAPITAL, "<|im_start|>user\nGrüße, 世界!"):
        choice = complete(client, model, prompt=prompt, echo=True, logprobs=0, max_tokens=4).choices[0]
        for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset):
            if "\N{REPLACEMENT CHARACTER}" not in token:
                assert choice.text[offset:].startswith(token)


@pytest.mark.parametrize("ask", [chat, complete])
def test_extra_fields_are_told(client, model, ask):
    names = ["worker_id", "timing", "stop_reason", "completion_token_ids", "prompt_logprobs"]
    body = {"nvext": {"extra_fields": names}}
    whole = told(ask(client, model, extra_body=body))
    assert whole["worker_id"]["decode_worker_id"] == whole["worker_id"]["prefill_worker_id"]
    assert 0 < whole["timing"]["ttft_ms"] <= whole["timing"]["total_time_ms"]
    assert whole["prompt_logprobs"][0] is None and len(whole["prompt_logprobs"]) > 3
    ids, workers = [], 0
    chunks = [chunk for chunk in ask(client, model, stream=True, extra_body=body) if chunk.choices]
    for chunk in chunks:
        ids += told(chunk).get("completion_token_ids", [])
        workers += "worker_id" in told(chunk)
    assert (ids, workers) == (whole["completion_token_ids"], len(chunks))
    assert "timing" in told(chunks[-1])
    assert "nvext" not in ask(client, model).model_extra


@pytest.mark.parametrize("ask", [chat, complete])
def test_a_pin_is_followed(client, model, ask):
    body = {"nvext": {"extra_fields": ["worker_id"]}}
    worker = told(ask(client, model, extra_body=body))["worker_id"]["decode_worker_id"]
    for pin in ({"backend_instance_id": worker}, {"decode_worker_id": worker, "dp_rank": 0}, {"prefill_worker_id": worker}):
        for _ in range(4):
            answer = ask(client, model, extra_body={"nvext": {**body["nvext"], **pin}})
            assert told(answer)["worker_id"]["decode_worker_id"] == worker
    for wrong, param in (({"backend_instance_id": 1}, "backend_instance_id"), ({"dp_rank": 7}, "dp_rank")):
        with pytest.raises(openai.BadRequestError) as caught:
            ask(client, model, extra_body={"nvext": wrong})
        assert caught.value.param == f"nvext.{param}"


@pytest.mark.parametrize("ask", [chat, complete])
def test_a_typing_error_names_the_field_that_was_meant(client, model, ask):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model, extra_body={"nvext": {"use_raw_promt": True}})
    assert "use_raw_prompt" in str(caught.value)
    assert caught.value.param == "nvext.use_raw_promt"


def test_a_raw_prompt_has_no_template(client, model):
    raw = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": CAPITAL}],
        temperature=0,
        max_tokens=8,
        extra_body={"nvext": {"use_raw_prompt": True}},
    )
    plain = complete(client, model)
    assert raw.choices[0].message.content == plain.choices[0].text
    assert raw.usage.prompt_tokens == plain.usage.prompt_tokens


def test_tokens_shown_as_ids(client, model):
    options = {"extra_body": {"return_tokens_as_token_ids": True, "nvext": {"extra_fields": ["completion_token_ids"]}}}
    for answer, tokens in (
        (answer := complete(client, model, logprobs=1, **options), answer.choices[0].logprobs.tokens),
        (
            answer := chat(client, model, logprobs=True, **options),
            [entry.token for entry in answer.choices[0].logprobs.content],
        ),
    ):
        assert tokens == [f"token_id:{id}" for id in told(answer)["completion_token_ids"]]


def test_annotations_are_events_with_a_comment(server, model):
    body = {
        "model": model,
        "messages": MESSAGES,
        "max_tokens": 2,
        "stream": True,
        "nvext": {"annotations": ["request_id", "formatted_prompt", "token_ids"]},
    }
    events = http(server.url + "/v1/chat/completions", body).body.decode().split("\n\n")
    assert UUID.fullmatch(json.loads(events[0].removeprefix("event: request_id\n: ")))
    assert MESSAGES[0]["content"] in json.loads(events[1].removeprefix("event: formatted_prompt\n: "))
    ids = json.loads(events[2].removeprefix("event: token_ids\n: "))
    assert len(ids) > 5 and all(isinstance(id, int) for id in ids)
    assert events[3].startswith("data: ")


def test_a_negative_seed_repeats_an_answer(client, model):
    texts = {complete(client, model, temperature=1, seed=-9, max_tokens=12).choices[0].text for _ in range(2)}
    assert len(texts) == 1
    assert complete(client, model, temperature=1, seed=2, max_tokens=12).choices[0].text not in texts


def test_fields_without_effect_do_not_break_a_request(client, model):
    answer = chat(client, model, service_tier="auto", metadata={"a": "b"}, user="u", store=False, max_tokens=2)
    assert answer.usage.completion_tokens == 2
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_completion_tokens=3, temperature=0)
    assert answer.usage.completion_tokens == 3


@pytest.mark.parametrize("ask", [chat, complete])
def test_leaving_many_choices_gives_everything_back(client, model, server, ask):
    stream = ask(client, model, n=4, temperature=1, stream=True, max_tokens=300, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    # the `server` fixture compares the ledger
