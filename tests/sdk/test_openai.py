"""The OpenAI SDK, as it comes, against the real system and the real model."""

import openai
import pytest

CAPITAL = "The capital of France is"
# With the template's own system text this model answers in French; llama.cpp gets the same from it.
QUESTION = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France?"},
]


def chat(client, model, **options):
    return client.chat.completions.create(model=model, messages=QUESTION, **{"temperature": 0, "max_tokens": 24, **options})


def complete(client, model, **options):
    return client.completions.create(model=model, **{"prompt": CAPITAL, "temperature": 0, "max_tokens": 24, **options})


def folded(chunks):
    """Text, finish reason per choice index, and the last usage."""
    texts, reasons, usage = {}, {}, None
    for chunk in chunks:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            piece = choice.text if hasattr(choice, "text") else choice.delta.content
            texts[choice.index] = texts.get(choice.index, "") + (piece or "")
            if choice.finish_reason:
                assert choice.index not in reasons, "one finish reason per choice"
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, usage


# Models.


def test_models_are_listed_and_retrieved(client, model):
    listed = client.models.list().data
    assert [entry.id for entry in listed] == [model]
    one = client.models.retrieve(model)
    assert (one.id, one.object) == (model, "model")
    assert one.created > 1_600_000_000


# Text.


def test_the_capital_of_france(client, model):
    answer = complete(client, model)
    assert "Paris" in answer.choices[0].text
    assert answer.object == "text_completion"
    assert answer.model == model
    answer = chat(client, model)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].message.role == "assistant"
    assert answer.object == "chat.completion"


@pytest.mark.parametrize("ask", [chat, complete])
def test_a_stream_folds_into_the_unary_answer(client, model, ask):
    whole = ask(client, model)
    choice = whole.choices[0]
    text = choice.text if ask is complete else choice.message.content
    chunks = list(ask(client, model, stream=True))
    texts, reasons, _ = folded(chunks)
    assert texts == {0: text}
    assert reasons == {0: choice.finish_reason}
    assert len({chunk.id for chunk in chunks}) == 1
    if ask is chat:
        assert chunks[0].choices[0].delta.role == "assistant"


def test_the_sdk_stream_helper_works(client, model):
    with client.chat.completions.stream(model=model, messages=QUESTION, temperature=0, max_tokens=24) as stream:
        for _ in stream:
            pass
        answer = stream.get_final_completion()
    assert "Paris" in answer.choices[0].message.content


def test_max_tokens_ends_with_length(client, model):
    answer = complete(client, model, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 3


# Usage (R05).


def test_usage_counts(client, model):
    for answer in (chat(client, model, max_tokens=5), complete(client, model, max_tokens=5)):
        usage = answer.usage
        assert usage.prompt_tokens > 3
        assert usage.completion_tokens == 5
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


@pytest.mark.parametrize("ask", [chat, complete])
def test_r05_usage_comes_only_when_asked_for(client, model, ask):
    for options, expected in (({}, 0), ({"include_usage": False}, 0), ({"include_usage": True}, 1)):
        extra = {"stream_options": options} if options else {}
        chunks = list(ask(client, model, max_tokens=3, stream=True, **extra))
        with_usage = [chunk for chunk in chunks if chunk.usage is not None]
        assert len(with_usage) == expected, options
        if expected:
            assert chunks[-1] is with_usage[0]
            assert chunks[-1].choices == []
            assert chunks[-1].usage.completion_tokens == 3


def test_a_repeated_prompt_is_reported_as_cached(client, model):
    prompt = "One may smile, and smile, and be a villain. " * 12
    first = complete(client, model, prompt=prompt, max_tokens=2)
    again = complete(client, model, prompt=prompt, max_tokens=2)
    assert again.choices[0].text == first.choices[0].text
    assert again.usage.prompt_tokens_details.cached_tokens >= 64


# Log-probabilities, both shapes.


def test_chat_logprobs(client, model):
    choice = chat(client, model, logprobs=True, top_logprobs=3, max_tokens=6).choices[0]
    entries = choice.logprobs.content
    assert len(entries) == 6
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == choice.message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        ranked = [rival.logprob for rival in entry.top_logprobs]
        assert ranked == sorted(ranked, reverse=True)
        assert entry.top_logprobs[0].token == entry.token, "greedy takes the likeliest"
    assert chat(client, model, max_tokens=6).choices[0].message.content == choice.message.content


def test_completion_logprobs(client, model):
    choice = complete(client, model, logprobs=2, max_tokens=6).choices[0]
    shape = choice.logprobs
    assert len(shape.tokens) == len(shape.token_logprobs) == len(shape.top_logprobs) == len(shape.text_offset) == 6
    assert "".join(shape.tokens) == choice.text
    for token, logprob, rivals in zip(shape.tokens, shape.token_logprobs, shape.top_logprobs):
        assert logprob <= 0
        assert rivals[token] == max(rivals.values())
    assert all(b - a == len(token) for a, b, token in zip(shape.text_offset, shape.text_offset[1:], shape.tokens))


@pytest.mark.parametrize("ask", [chat, complete])
def test_streamed_logprobs_are_the_unary_ones(client, model, ask):
    options = {"logprobs": True, "top_logprobs": 2} if ask is chat else {"logprobs": 2}

    def values(logprobs):
        return [entry.logprob for entry in logprobs.content] if ask is chat else logprobs.token_logprobs

    whole = values(ask(client, model, max_tokens=6, **options).choices[0].logprobs)
    pieces = []
    for chunk in ask(client, model, max_tokens=6, stream=True, **options):
        for choice in chunk.choices:
            if choice.logprobs:
                pieces += values(choice.logprobs)
    assert pieces == pytest.approx(whole, abs=1e-4)


def test_echo_with_logprobs_covers_the_prompt(client, model):
    choice = complete(client, model, echo=True, logprobs=1, max_tokens=4).choices[0]
    assert choice.text.startswith(CAPITAL)
    shape = choice.logprobs
    assert "".join(shape.tokens) == choice.text
    assert shape.token_logprobs[0] is None
    assert all(value <= 0 for value in shape.token_logprobs[1:])


# Choices, stops, seeds, echo.


def test_two_choices(client, model):
    for ask in (chat, complete):
        answer = ask(client, model, n=2, temperature=1, seed=11, max_tokens=8)
        assert sorted(choice.index for choice in answer.choices) == [0, 1]
        assert answer.usage.completion_tokens <= 16
        texts, reasons, _ = folded(ask(client, model, n=2, temperature=1, seed=11, max_tokens=8, stream=True))
        whole = {c.index: c.text if ask is complete else c.message.content for c in answer.choices}
        assert texts == whole, "a seed fixes every choice"
        assert set(reasons) == {0, 1}
        assert whole[0] != whole[1], "choices are drawn on their own"


def test_stop_strings_cut_at_the_earliest_match(client, model):
    whole = complete(client, model).choices[0].text
    late, early = whole[12:16], whole[6:10]
    assert whole.find(early) <= 6
    for stop in ([late, early], [early, late], early):
        answer = complete(client, model, stop=stop).choices[0]
        assert answer.text == whole[: whole.find(early)]
        assert answer.finish_reason == "stop"
        texts, reasons, _ = folded(complete(client, model, stop=stop, stream=True))
        assert texts.get(0, "") == answer.text
        assert reasons == {0: "stop"}
    included = complete(client, model, stop=early, extra_body={"include_stop_str_in_output": True}).choices[0]
    assert included.text == whole[: whole.find(early)] + early


def test_a_seed_repeats_an_answer(client, model):
    def ask(seed):
        return complete(client, model, temperature=1, seed=seed, max_tokens=16).choices[0].text

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(4)}) > 1


def test_echo(client, model):
    plain = complete(client, model, max_tokens=5).choices[0].text
    assert complete(client, model, max_tokens=5, echo=True).choices[0].text == CAPITAL + plain
    texts, _, _ = folded(complete(client, model, max_tokens=5, echo=True, stream=True))
    assert texts[0] == CAPITAL + plain


def test_many_prompts_and_token_ids(client, model):
    answer = complete(client, model, prompt=[CAPITAL, "Two and two are"], max_tokens=6)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].text == complete(client, model, max_tokens=6).choices[0].text
    # ids of this model's own vocabulary; any below its size will do
    answer = complete(client, model, prompt=[504, 3575, 282], max_tokens=4)
    assert answer.usage.prompt_tokens == 3


def test_min_tokens_and_ignore_eos(client, model):
    answer = chat(client, model, max_tokens=40, extra_body={"ignore_eos": True})
    assert answer.usage.completion_tokens == 40


def test_penalties_change_a_repeating_answer(client, model):
    prompt = "ha ha ha ha ha ha ha ha ha ha"
    plain = complete(client, model, prompt=prompt).choices[0].text
    assert complete(client, model, prompt=prompt, frequency_penalty=2, presence_penalty=2).choices[0].text != plain


def test_logit_bias_forces_a_token(client, model):
    token = 500
    choice = complete(client, model, max_tokens=3, logprobs=0, logit_bias={str(token): 100}).choices[0]
    assert len(set(choice.logprobs.tokens)) == 1
    assert complete(client, model, max_tokens=3, logit_bias={str(token): -100}).choices[0].text != choice.text


# Mistakes arrive as the SDK's own exceptions (R08).


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"temperature": 3}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"n": 1000}, "n"),
        ({"stop": [str(i) for i in range(64)]}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"frequency_penalty": 9}, "frequency_penalty"),
        ({"logit_bias": {"5": 1000}}, "logit_bias.5"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
    ],
)
@pytest.mark.parametrize("ask", [chat, complete])
def test_r08_a_bad_field_is_named(client, model, ask, options, param):
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, model, **options)
    assert caught.value.param is not None
    assert caught.value.param.split("[")[0].split(".")[0] == param.split("[")[0].split(".")[0]
    assert caught.value.status_code == 400
    assert caught.value.type == "invalid_request_error"


def test_r08_a_prompt_beyond_the_context_is_refused(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, model, prompt="word " * 20_000)
    assert caught.value.param == "prompt"
    assert caught.value.code == "context_length_exceeded"
    assert any(character.isdigit() for character in str(caught.value)), "the limit is named"
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "word " * 20_000}], stream=True)
    assert caught.value.param == "messages"


def test_an_empty_conversation_is_refused(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=model, messages=[])
    assert caught.value.param == "messages"


def test_an_unknown_model_is_not_found(client):
    for ask in (chat, complete):
        with pytest.raises(openai.NotFoundError) as caught:
            ask(client, "no-such-model")
        assert caught.value.code == "model_not_found"
        assert "no-such-model" in str(caught.value)
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")


# What SDKs send by themselves.


def test_r09_null_means_absent(client, model):
    nulls = dict.fromkeys(["stop", "stop_token_ids", "cache_salt", "seed", "user", "logit_bias", "top_k", "n"])
    for ask in (chat, complete):
        plain, with_nulls = ask(client, model, max_tokens=6), ask(client, model, max_tokens=6, extra_body=nulls)
        assert with_nulls.choices == plain.choices


def test_r10_unknown_fields_do_not_break_a_request(client, model):
    answer = chat(client, model, max_tokens=3, extra_body={"max_retries": 3, "prompt_cache_key": "x"})
    assert answer.choices[0].finish_reason == "length"


def test_leaving_a_stream_gives_everything_back(client, model, server):
    for ask in (chat, complete):
        stream = ask(client, model, stream=True, max_tokens=400, extra_body={"ignore_eos": True})
        next(iter(stream))
        stream.close()
    # the `server` fixture compares the ledger
