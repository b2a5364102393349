"""`/v1/embeddings`, as the SDK and plain HTTP see it."""

import json
import math
import pathlib
import urllib.request

import openai
import pytest

REFERENCE = pathlib.Path(__file__).parents[2] / "crates/engine/tests/data/embeddings.json"


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def vectors(answer):
    assert [entry.index for entry in answer.data] == list(range(len(answer.data)))
    return [entry.embedding for entry in answer.data]


def test_vectors_are_those_of_llama_cpp(client, model):
    cases = json.loads(REFERENCE.read_text())["cases"]
    # The SDK asks for base64 and decodes it.
    answer = client.embeddings.create(model=model, input=[case["text"] for case in cases])
    total = sum(len(case["tokens"]) for case in cases)
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (total, total)
    for case, vector in zip(cases, vectors(answer), strict=True):
        assert math.isclose(cosine(vector, vector), 1.0, abs_tol=1e-5)
        assert cosine(vector, case["vector"]) > 0.995, case["text"]
    tokens = client.embeddings.create(model=model, input=[case["tokens"] for case in cases])
    assert vectors(tokens) == vectors(answer)


def test_every_form_gives_the_same_vector(client, model):
    one = client.embeddings.create(model=model, input="The cat sat on the mat.")
    floats = client.embeddings.create(model=model, input="The cat sat on the mat.", encoding_format="float")
    batch = client.embeddings.create(model=model, input=["Hello", "The cat sat on the mat."], user="u")
    size = len(one.data[0].embedding)
    sized = client.embeddings.create(model=model, input="The cat sat on the mat.", dimensions=size)
    expected = vectors(one)[0]
    assert vectors(sized)[0] == expected and vectors(batch)[1] == expected
    assert all(math.isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(vectors(floats)[0], expected, strict=True))


def test_a_warm_cache_changes_nothing(client, model):
    text = "A long prompt that another request has left in the cache. " * 20
    first = vectors(client.embeddings.create(model=model, input=text))
    client.completions.create(model=model, prompt=text, max_tokens=2)
    assert vectors(client.embeddings.create(model=model, input=text)) == first


def test_mistakes_are_named(client, model):
    for options, words in (
        ({"input": "word " * 9000}, ["9001", "8192", "context length"]),
        ({"input": "a", "dimensions": 3}, ["dimensions"]),
        ({"input": [10**6]}, ["1000000"]),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.embeddings.create(model=model, **options)
        assert all(word in str(caught.value) for word in words), caught.value


def test_a_large_batch_fits(client, model):
    answer = client.embeddings.create(model=model, input=[f"number {i}" for i in range(300)])
    assert len(vectors(answer)) == 300


def test_the_mock_engine_answers_too(start_server):
    server = start_server("--engine", "mock")
    model = json.loads(urllib.request.urlopen(server.url + "/v1/models", timeout=30).read())["data"][0]["id"]
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60) as client:
        one, same, other = vectors(client.embeddings.create(model=model, input=["a b c", "a b c", "a b d"]))
    assert one == same != other
    assert math.isclose(cosine(one, one), 1.0, abs_tol=1e-5)
