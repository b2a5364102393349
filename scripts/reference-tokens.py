#!/usr/bin/env python3
"""Makes crates/engine/tests/data/reference.json: what llama.cpp says about the default model.

    pip install llama-cpp-python gguf
    scripts/reference-tokens.py MODEL.gguf > crates/engine/tests/data/reference.json

llama.cpp runs twice: on the file as it is, and on the same weights written out as F32, where it computes without
quantised activations. For each prompt: its token ids, the next 20 greedy tokens (both runs must agree), and the five
likeliest tokens of the first step with their log-probabilities, exact and as shipped. The prompts are such that the
best token leads in each step by more than quantisation can turn, so that two correct implementations agree.
"""

import hashlib
import json
import os
import sys
import tempfile

import gguf
import llama_cpp
import numpy

STEPS = 20
LEAST_LEAD = 0.25
CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    "1, 2, 3, 4, 5, 6, 7, 8, 9,",
    "The alphabet: a, b, c, d, e,",
    "The first ten prime numbers are 2, 3, 5, 7, 11,",
    "10 x 1 = 10\n10 x 2 = 20\n10 x 3 =",
    '{"name": "Alice", "age": 30}\n{"name": "Bob", "age": 25}\n{"name":',
    CHAT.format("What is the capital of France?"),
    CHAT.format("Repeat after me: the quick brown fox jumps over the lazy dog."),
    " ".join(f"Line {i}: the quick brown fox jumps over the lazy dog." for i in range(40)) + " Line 40:",
]


def expand(path: str, out: str) -> None:
    """The same model with all tensors in F32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, "llama")
    for field in reader.fields.values():
        if field.name.startswith("GGUF.") or field.name == "general.architecture":
            continue
        if field.types[0] == gguf.GGUFValueType.ARRAY:
            writer.add_array(field.name, field.contents())
        else:
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)
        writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logprobs(model) -> numpy.ndarray:
    pointer = llama_cpp.llama_get_logits_ith(model.ctx, -1)
    logits = numpy.ctypeslib.as_array(pointer, (model.n_vocab(),)).astype(numpy.float64)
    shifted = logits - logits.max()
    return shifted - numpy.log(numpy.exp(shifted).sum())


def run(path: str) -> list:
    """For each prompt: token ids, greedy tokens, all log-probabilities of the first step, smallest lead, text."""
    model = llama_cpp.Llama(path, n_ctx=2048, n_batch=2048, n_ubatch=2048, n_threads=1, verbose=False)
    results = []
    for text in PROMPTS:
        prompt = model.tokenize(text.encode(), add_bos=False, special=True)
        model.reset()
        model.eval(prompt)
        first = logprobs(model)
        greedy, lead = [], float("inf")
        for _ in range(STEPS):
            scores = logprobs(model)
            best, second = numpy.argsort(-scores)[:2]
            lead = min(lead, float(scores[best] - scores[second]))
            greedy.append(int(best))
            model.eval([greedy[-1]])
        results.append((prompt, greedy, first, lead, model.detokenize(greedy, special=True).decode()))
    return results


def main() -> None:
    path = sys.argv[1]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    shipped = run(path)
    with tempfile.TemporaryDirectory() as directory:
        expanded = os.path.join(directory, "f32.gguf")
        expand(path, expanded)
        exact = run(expanded)
    cases = []
    for text, one, other in zip(PROMPTS, exact, shipped):
        prompt, greedy, first, lead, answer = one
        print(f"{text[-40:]!r} -> {answer!r}, lead {lead:.2f}", file=sys.stderr)
        if greedy != other[1] or lead < LEAST_LEAD:
            sys.exit(f"not a clear case: {text!r}")
        order = numpy.argsort(-first)[:5]
        triples = [[int(i), round(float(first[i]), 5), round(float(other[2][i]), 5)] for i in order]
        cases.append({"text": text, "prompt": prompt, "greedy": greedy, "answer": answer, "first": triples})
    head = {"model_sha256": digest, "made_with": f"llama-cpp-python {llama_cpp.__version__}"}
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(json.dumps(head)[:-1] + f', "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
