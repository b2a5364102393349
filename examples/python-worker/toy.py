"""A toy engine: says the prompt backwards, and keeps the blocks of prompts that it has seen. One token per byte."""

import asyncio
import struct

BLOCK, MAX_BLOCKS, MASK = 16, 4096, (1 << 64) - 1
SECRET = struct.unpack("<8Q", bytes.fromhex("b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671f"
                                            "cb79e64eccc0e578825ad07dccff7221b8084674f743248ee03590e6813a264c"))


def card(model, created_s):
    """The least a frontend must know of a model."""
    return {
        "name": model, "architecture": "toy", "context_length": 4096, "vocab_size": 256,
        "tokenizer": {"kind": "bytes", "pieces": []},
        "blocks": {"block_size": BLOCK, "algorithm": "xxh3-64-seed-1337", "version": 1},
        "total_kv_blocks": MAX_BLOCKS, "max_num_seqs": 64, "max_num_batched_tokens": 4096,
        "kv_events": True, "created_s": created_s,
    }  # fmt: skip


def tokens_hash(tokens):
    """The hash of a block's tokens that frontends look for: XXH3-64 with seed 1337 over the token ids as little-endian
    u32, in the form which that function has for 64 bytes."""
    words, total = struct.unpack("<8Q", struct.pack("<16I", *tokens)), 64 * 0x9E3779B185EBCA87
    for at, key in ((0, 0), (2, 4), (4, 6), (6, 2)):
        low = words[at] ^ SECRET[key] + 1337 & MASK
        high = words[at + 1] ^ SECRET[key + 1] - 1337 & MASK
        total += low * high & MASK ^ low * high >> 64
    total &= MASK
    total = (total ^ total >> 37) * 0x165667919E3779F9 & MASK
    return total ^ total >> 32


class Engine:
    def __init__(self, delay_s):
        self.delay_s = delay_s
        self.blocks = {}  # the event that stored each, by its name, parents first
        self.report = lambda events: None

    async def generate(self, request):
        """Deltas of an answer. What another worker generated before, the last `resumed` tokens, counts as said."""
        tokens, said = request["tokens"], request.get("resumed", 0)
        if not tokens:
            raise ValueError("the prompt is empty")
        cached = self.remember(tokens)
        limit = request["stopping"]["max_tokens"]
        rest = tokens[: len(tokens) - said][::-1][said:] or [10]
        for number, token in enumerate(rest[:limit], 1):
            await asyncio.sleep(self.delay_s)
            delta = {"tokens": [token]}
            if number == 1:
                delta["cached_tokens"] = cached
            if number == min(len(rest), limit):
                delta["finish"] = "length" if len(rest) > limit else "stop"
            yield delta

    def remember(self, tokens):
        """Stores the whole blocks of a prompt; returns how many of its tokens were there before."""
        events, parent, cached = [], None, 0
        if len(self.blocks) + len(tokens) // BLOCK > MAX_BLOCKS:
            self.blocks.clear()
            events.append("cleared")
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            local = tokens_hash(tokens[at : at + BLOCK])
            name = hash((parent, local)) & MASK
            if name in self.blocks:
                cached += BLOCK
            else:
                block = {"block_hash": name, "tokens_hash": local}
                self.blocks[name] = {"stored": {"parent": parent, "blocks": [block], "tier": "device"}}
                events.append(self.blocks[name])
            parent = name
        if events:
            self.report(events)
        return cached

    def snapshot(self):
        return ["cleared", *self.blocks.values()]
