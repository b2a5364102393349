#!/usr/bin/env python3
"""Speed of llama.cpp on one thread, in tokens per second of CPU time, to hold against `cargo bench -p dynamo-engine`.

    CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON" pip install llama-cpp-python
    bench/llama_cpp.py MODEL.gguf

Same work as the engine's bench: prefill of 512 and of 1008 tokens with the scores of the last one, and decoding of 1, 4
and 8 sequences at once, each with 128 tokens behind it. The median of several rounds.
"""

import statistics
import sys
import time

import llama_cpp

ROUNDS = 5
DECODE_STEPS = 32
CONTEXT = 128


def token(i: int) -> int:
    return 1000 + i * 7919 % 40000


class Runner:
    def __init__(self, path: str):
        llama_cpp.llama_backend_init()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = 4096, 1024, 512, 8
        params.n_threads = params.n_threads_batch = 1
        params.kv_unified = True
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.batch = llama_cpp.llama_batch_init(1024, 0, 1)

    def decode(self, rows) -> None:
        """rows: (token, position, sequence, wants scores)"""
        self.batch.n_tokens = len(rows)
        for i, (token_id, position, sequence, wanted) in enumerate(rows):
            self.batch.token[i] = token_id
            self.batch.pos[i] = position
            self.batch.n_seq_id[i] = 1
            self.batch.seq_id[i][0] = sequence
            self.batch.logits[i] = wanted
        if llama_cpp.llama_decode(self.context, self.batch) != 0:
            raise RuntimeError("llama_decode failed")
        llama_cpp.llama_get_logits(self.context)

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def prefill(self, count: int) -> float:
        self.clear()
        start = time.process_time()
        self.decode([(token(i), i, 0, i == count - 1) for i in range(count)])
        return count / (time.process_time() - start)

    def generate(self, sequences: int) -> float:
        self.clear()
        for sequence in range(sequences):
            self.decode([(token(i + sequence), i, sequence, i == CONTEXT - 1) for i in range(CONTEXT)])
        start = time.process_time()
        for step in range(DECODE_STEPS):
            position = CONTEXT + step
            self.decode([(token(position + s), position, s, True) for s in range(sequences)])
        return sequences * DECODE_STEPS / (time.process_time() - start)


def main() -> None:
    runner = Runner(sys.argv[1])
    print(f"llama-cpp-python {llama_cpp.__version__}")
    print(llama_cpp.llama_print_system_info().decode())
    for count in (512, 1008):
        speed = statistics.median(runner.prefill(count) for _ in range(ROUNDS))
        print(f"prefill {count}: {speed:.0f} tokens per CPU second")
    for sequences in (1, 4, 8):
        speed = statistics.median(runner.generate(sequences) for _ in range(ROUNDS))
        print(f"decode, batch {sequences}: {speed:.0f} tokens per CPU second")


if __name__ == "__main__":
    main()
