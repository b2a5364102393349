#!/usr/bin/env python3
"""Time to first token with KV-aware routing and with round robin, on the real engine.

Two workers, prompts that share a prefix of about 1000 tokens with others of their group. Two settings:

fits      few requests per prefix, memory for all of them on each worker: what counts is who has seen the prefix
crowded   many requests per prefix, all prefixes fit into both workers together but not into one

Each is run one request at a time and with several at once. Both modes get the same requests in the same order on a
fresh server. Printed: median and mean time to first token, the share of prompt tokens that was cached, and the ratio
of the medians.
"""

import argparse
import json
import random
import statistics
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "sdk"))
from system import Server  # noqa: E402

MODES = ("round-robin", "kv")
PREFIX_WORDS = 1000
QUESTION_WORDS = 20
BLOCK_SIZE = 16
# Common words are one token each, so a prompt has about as many tokens as words.
WORDS = (
    "time person year way day thing man world life hand part child eye woman place work week case point company "
    "number group problem fact water room mother area money story month lot right study book word business issue "
    "side kind head house service friend father power hour game line end member law car city name team minute idea "
    "body back parent face level office door health art war history party result change morning reason research girl "
    "moment air teacher force education foot boy age policy process music market sense nation plan college interest"
).split()


def text(draw, words):
    return " ".join(draw.choice(WORDS) for _ in range(words))


def requests(groups, rounds, seed):
    """Every round asks one question about every prefix, in an order of its own."""
    draw = random.Random(seed)
    prefixes = [text(draw, PREFIX_WORDS) for _ in range(groups)]
    prompts = []
    for _ in range(rounds):
        order = list(range(groups))
        draw.shuffle(order)
        prompts += [f"{prefixes[group]}\n\nQuestion: {text(draw, QUESTION_WORDS)}\nAnswer:" for group in order]
    return prompts


def ask(url, model, prompt):
    """Seconds to the first token, prompt tokens, cached tokens."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        "ignore_eos": True,
    }
    request = urllib.request.Request(
        url + "/v1/completions", data=json.dumps(body).encode(), headers={"content-type": "application/json"}
    )
    first, usage = None, None
    begin = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as answer:
        for line in answer:
            if not line.startswith(b"data: {"):
                continue
            if first is None:
                first = time.perf_counter() - begin
            usage = json.loads(line[len(b"data: ") :]).get("usage") or usage
    return first, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


def measure(mode, prompts, at_once, kv_blocks):
    server = Server.start("--workers", "2", "--threads", "1", "--router-mode", mode, "--kv-blocks", str(kv_blocks))
    try:
        model = server.get("/v1/models").json["data"][0]["id"]
        with ThreadPoolExecutor(at_once) as pool:
            rows = list(pool.map(lambda prompt: ask(server.url, model, prompt), prompts))
    finally:
        server.stop()
    firsts = [row[0] * 1000 for row in rows]
    return {
        "mode": mode,
        "median_ms": statistics.median(firsts),
        "mean_ms": statistics.fmean(firsts),
        "cached": sum(row[2] for row in rows) / sum(row[1] for row in rows),
    }


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seed", type=int, default=1)
    arguments.add_argument("--json", action="store_true", help="one JSON object per line instead of the table")
    options = arguments.parse_args()
    blocks = -(-(PREFIX_WORDS + QUESTION_WORDS + 40) // BLOCK_SIZE)
    settings = [
        # name, groups, rounds, KV blocks per worker
        ("fits", 12, 3, 12 * blocks * 2),
        ("crowded", 11, 6, 7 * blocks),
    ]
    if not options.json:
        print(f"{'setting':<10}{'at once':>8}  {'mode':<12}{'median ms':>10}{'mean ms':>10}{'cached':>8}{'ratio':>8}")
    for name, groups, rounds, kv_blocks in settings:
        prompts = requests(groups, rounds, options.seed)
        for at_once in (1, 4):
            base = None
            for mode in MODES:
                row = measure(mode, prompts, at_once, kv_blocks)
                base = base or row["median_ms"]
                row |= {"setting": name, "at_once": at_once, "ratio": row["median_ms"] / base}
                if options.json:
                    print(json.dumps(row), flush=True)
                else:
                    print(
                        f"{name:<10}{at_once:>8}  {mode:<12}{row['median_ms']:>10.1f}{row['mean_ms']:>10.1f}"
                        f"{row['cached']:>8.0%}{row['ratio']:>8.2f}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
