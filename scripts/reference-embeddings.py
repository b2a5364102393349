#!/usr/bin/env python3
"""Makes crates/engine/tests/data/embeddings.json: the embeddings that llama.cpp makes with the default model.

    pip install llama-cpp-python gguf
    scripts/reference-embeddings.py MODEL.gguf > crates/engine/tests/data/embeddings.json

Mean pooling and normalisation are llama.cpp's own. As in reference-tokens.py it runs twice: with the weights written out as
F32, and on the file as it is. For each prompt: its token ids, the exact vector, and the cosine between the two runs.
"""

import hashlib
import importlib.util
import json
import os
import sys
import tempfile

import llama_cpp
import numpy

PROMPTS = [
    "Hello",
    "The cat sat on the mat.",
    "A feline rested on the rug.",
    "Quarterly revenue rose by twelve percent, driven by demand for electric motors.",
    "def add(a, b):\n    return a + b\n",
    " ".join(f"Line {i}: the quick brown fox jumps over the lazy dog." for i in range(40)),
]


def tools():
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "reference-tokens.py")
    spec = importlib.util.spec_from_file_location("reference_tokens", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(path: str) -> list:
    mean = llama_cpp.LLAMA_POOLING_TYPE_MEAN
    model = llama_cpp.Llama(
        path, n_ctx=2048, n_batch=2048, n_ubatch=2048, n_threads=1, embedding=True, pooling_type=mean, verbose=False
    )
    results = []
    for text in PROMPTS:
        tokens = model.tokenize(text.encode(), add_bos=False, special=True)
        if tokens != model.tokenize(text.encode()):
            sys.exit(f"the tokens of {text!r} are not clear")
        results.append((tokens, numpy.array(model.embed(text, normalize=True), dtype=numpy.float64)))
    return results


def main() -> None:
    path = sys.argv[1]
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    shipped = run(path)
    with tempfile.TemporaryDirectory() as directory:
        expanded = os.path.join(directory, "f32.gguf")
        tools().expand(path, expanded)
        exact = run(expanded)
    cases = []
    for text, (tokens, vector), (_, other) in zip(PROMPTS, exact, shipped):
        cosine = float(vector @ other)
        print(f"{text[:40]!r}: {len(tokens)} tokens, cosine {cosine:.5f}", file=sys.stderr)
        rounded = [round(float(value), 6) for value in vector]
        cases.append({"text": text, "tokens": tokens, "vector": rounded, "shipped_cosine": round(cosine, 6)})
    head = {"model_sha256": digest, "made_with": f"llama-cpp-python {llama_cpp.__version__}"}
    lines = ",\n".join(json.dumps(case) for case in cases)
    print(json.dumps(head)[:-1] + f', "cases": [\n{lines}\n]}}')


if __name__ == "__main__":
    main()
