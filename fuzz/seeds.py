#!/usr/bin/env python3
"""Writes the first inputs of every fuzz target from the fixtures of the tests, into the folder given.

What a byte in front of an input chooses is said in crates/proofs/src.
"""

import json
import pathlib
import random
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CRATES = ROOT / "crates"
ROUTES = ["chat", "completions", "messages", "count_tokens", "responses", "input_tokens", "embeddings", "tokenize",
          "detokenize"]


def names(folder):
    """Families by fixture folder; which byte chooses a family does not matter to a seed: all of them are tried."""
    for family in sorted((CRATES / "text/tests/parsers" / folder).iterdir()):
        for text in sorted(family.glob("*.txt")):
            yield text.read_bytes()


def bodies():
    for file in ("accepted.json", "refused.json"):
        for case in json.loads((CRATES / "protocols/tests/data" / file).read_text()):
            body = case["body"]
            raw = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False)
            if case["route"] in ROUTES:
                yield bytes([ROUTES.index(case["route"])]) + raw.encode()


def sse():
    yield b"\x01data: {\"a\": 1}\n\ndata: [DONE]\n\n"
    yield b"\x02\xef\xbb\xbfevent: x\r\nid: 7\r\ndata: a\r\ndata: b\r\n\r\n: comment\r\nretry: 10\r\n\r\n"
    yield b"\x03data\rdata:\rdata: \r\rid: a\x00b\rdata:x\r\r"
    yield b"\x04data: " + b"x" * 70 + b"\n\n"
    yield b"\x05data: " + b"x" * 40 + b"\ndata: " + b"y" * 40 + b"\n\n"
    yield b"\x06data: \xff\xfe\xf0\x9f\x98\n\nevent: only\n\n"
    yield b"\x07" + "data: 안녕 😀\u2028\n\n".encode()


def kserve():
    def field(number, value):
        if isinstance(value, int):
            return bytes([number << 3, value])
        value = value.encode() if isinstance(value, str) else value
        size = len(value)
        return bytes([number << 3 | 2]) + (bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])) + value

    def tensor(name, kind, contents=b"", shape=b"\x01"):
        inner = field(5, contents) if contents else b""
        return field(5, field(1, name) + field(2, kind) + field(3, shape) + inner)

    def parameter(name, value):
        return field(4, field(1, name) + field(2, value))

    head = field(1, "m") + field(3, "7")
    prompt = tensor("text_input", "BYTES", field(8, "hello"))
    raw = tensor("text_input", "BYTES") + field(7, b"\x05\0\0\0hello")
    options = '{"temperature": "0.1", "stop": ["a"]}'
    messages = [b"", head, head + prompt, head + raw, head + prompt + tensor("streaming", "BOOL", field(1, b"\x01")),
                head + prompt + parameter("max_tokens", field(2, 5)) + parameter("odd", field(1, 1)),
                head + prompt + parameter("stop", field(3, '["a", "b"]')) + parameter("temperature", b"\x21" + struct.pack("<d", 0.5)),
                head + prompt + tensor("sampling_parameters", "BYTES", field(8, options)),
                head + prompt + field(6, field(1, "text_output")), head + prompt + field(6, field(1, "scores")),
                head + prompt + field(2, "9"), head + tensor("text_input", "INT32", b"", b"\x02"),
                head + prompt + parameter("min_p", b"\x21" + struct.pack("<d", float("nan")))]
    frames = [b"\0" + struct.pack(">I", len(message)) + message for message in messages]
    for number, (message, frame) in enumerate(zip(messages, frames)):
        yield bytes([number]) + message
        yield bytes([number]) + frame
    yield b"\x05" + b"".join(frames)
    yield b"\x06" + b"".join(frames)[:-3]
    yield b"\x07\x01\0\0\0\0"
    yield b"\x08\0\xff\xff\xff\xff"


def template_messages():
    conversations = json.loads((CRATES / "text/tests/data/conversations.json").read_text())
    for index, conversation in enumerate(conversations.values()):
        for template in range(index % 2, 14, 2):
            yield bytes([template, index % 4]) + json.dumps(conversation, ensure_ascii=False).encode()


def template_source():
    for source in sorted((CRATES / "text/tests/data/templates").glob("*.jinja")):
        yield source.read_bytes()
    for line in ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
                 "{{ messages[0].content.0.type }}\n\n<tool>\n", "{{ raise_exception('no: ' ~ messages|length) }}",
                 "{{ strftime_now('%d %b %Y') }}{{ tools|tojson(indent=2) }}",
                 "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
                 "{% for i in range(100000) %}{% for j in range(100000) %}{{ j }}{% endfor %}{% endfor %}",
                 "{{ 'x'.center(99) }}{{ 'a,b'.split(',')[-1:] }}{{ '%s' % 1 }}{{ ns.x }}",
                 "{%- set ns = namespace(a=1) -%}{% if not loop %}{% endif %}{% generation %}{% endgeneration %}"):
        yield line.encode()


def parsers(*folders, families=1):
    for folder in folders:
        for index, text in enumerate(names(folder)):
            for family in range(index % 16, 64, 16):
                head = [family] if families == 1 else [family, (family * 7 + index) % 64]
                yield bytes([*head, index % 3, index % 2, index % 251, 0]) + text


def tokenizer_text():
    texts = ["The quick brown fox's 12345 dogs, don't they?  It'LL\n\n\tindent\r\n", "안녕하세요, 세계! 你好，世界。こんにちは",
             "<|begin|>a<|end|><|end|>x<|en", "e\u0301 \u1100\u1161 ﬁ ½ Ⅷ ٣٤ \u00a0\u3000\u2003", "👨‍👩‍👧‍👦👍🏽😀 a", "▁a▁▁</s><unk>",
             " ".join("the in ing a 's ..." for _ in range(40)), "x" * 300, "\u0345ᾳǅıſ'ſ\u0000\ue000𝒳"]
    for text in texts:
        for tokenizer in range(7):
            yield bytes([tokenizer]) + text.encode()


def tokenizer_ids():
    draw = random.Random(1)
    for tokenizer in range(7):
        yield bytes([tokenizer]) + struct.pack("<64H", *range(200, 264))
        yield bytes([tokenizer]) + struct.pack("<32H", *(draw.randrange(300) for _ in range(32)))
        yield bytes([tokenizer]) + struct.pack("<12H", 0xF0, 0x9F, 0x98, 0x80, 0x41, 65535, 257, 258, 0xC3, 0xA9, 3, 4)


def guides():
    for number, case in enumerate(json.loads((CRATES / "guide/tests/data/schemas.json").read_text())):
        yield bytes([0, number]) + json.dumps(case["schema"], ensure_ascii=False).encode()
    for pattern in (r"[a-z]+@[a-z]+\.com", r"(a|b)*abb", r"\d{3}-\d{4}", r"(?i)yes|no", r"[^\x00-\x7f]{2,9}", r".*",
                    r"(((a{9}){9}){9}){9}", r"\p{L}+", r"a&~b", "(" * 40 + ")" * 40):
        yield b"\x01\x07" + pattern.encode()
    for text in ('start: "a" b*\nb: /[0-9]+/ | "(" start ")"\n', "start: start start | \"a\"\n", 'start: WORD\nWORD: /\\w+/\n%ignore " "\n',
                 'start: %json {"type": "object"}\n', 'start: a{2,5}\na: "x" | "y"\n'):
        yield b"\x02\x03" + text.encode()
    for choice in ("red\ngreen\nblue", "a\nab\nabc", "\n", "東京\n京都\n\"quoted\"\\", ".*\n(x"):
        yield b"\x03\x01" + choice.encode()
    # Flags, eight markers, and lines: a name, the answer's schema, one for the arguments of each tool.
    city = '{"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": false}'
    for flags in (0b0001_0000, 0b0101_0001, 0b0101_0110, 0b0000_0000, 0b1110_1101, 0b0100_0111, 0b0000_0001):
        for markers in (bytes([0, 1, 7, 7, 6, 7, 7, 2]), bytes([2, 0, 4, 5, 6, 2, 3, 2]), bytes([7] * 8), bytes([4, 4, 3, 3, 2, 2, 1, 1])):
            for lines in (f'f\n{city}\n{city}\n{{"type": "object"}}', 'say "hi"\\\n{"enum": [1, null]}\n{"type": "object", "maxProperties": 1}', "東京\n{"):
                yield bytes([4, flags]) + bytes([flags]) + markers + lines.encode()


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf_file(entries, tensors=b"", tensor_count=0, version=3):
    body = b"".join(entries)
    return b"GGUF" + struct.pack("<IQQ", version, tensor_count, len(entries)) + body + tensors


def gguf():
    integer = lambda key, value: text(key) + struct.pack("<II", 4, value)
    real = lambda key, value: text(key) + struct.pack("<If", 6, value)
    word = lambda key, value: text(key) + struct.pack("<I", 8) + text(value)
    words = lambda key, values: text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(text, values))
    numbers = lambda key, values: text(key) + struct.pack("<IIQ", 9, 5, len(values)) + struct.pack(f"<{len(values)}i", *values)
    llama = [word("general.architecture", "llama"), integer("llama.block_count", 1), integer("llama.context_length", 16),
             integer("llama.embedding_length", 4), integer("llama.feed_forward_length", 4),
             integer("llama.attention.head_count", 2), integer("llama.attention.head_count_kv", 1),
             real("llama.rope.freq_base", 10000.0), real("llama.attention.layer_norm_rms_epsilon", 1e-5)]
    tokens = [word("tokenizer.ggml.model", "gpt2"), word("tokenizer.ggml.pre", "smollm"),
              words("tokenizer.ggml.tokens", ["a", "b", "ab", "<|end|>"]), numbers("tokenizer.ggml.token_type", [1, 1, 1, 3]),
              words("tokenizer.ggml.merges", ["a b"]), integer("tokenizer.ggml.bos_token_id", 3),
              integer("tokenizer.ggml.eos_token_id", 3), word("tokenizer.chat_template", "{{ messages }}")]
    shapes = [("token_embd", 4, 4), ("blk.0.attn_q", 4, 4), ("blk.0.attn_k", 2, 4), ("blk.0.attn_v", 2, 4),
              ("blk.0.attn_output", 4, 4), ("blk.0.ffn_gate", 4, 4), ("blk.0.ffn_up", 4, 4), ("blk.0.ffn_down", 4, 4),
              ("blk.0.attn_norm", 1, 4), ("blk.0.ffn_norm", 1, 4), ("output_norm", 1, 4)]
    tensors, offset = b"", 0
    for name, rows, columns in shapes:
        sizes = [columns] if rows == 1 else [columns, rows]
        tensors += text(name + ".weight") + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, 0, offset)
        offset += -(-rows * columns * 4 // 32) * 32
    whole = gguf_file(llama + tokens, tensors, len(shapes))
    whole += bytes(-len(whole) % 32) + bytes(offset)
    yield whole
    yield whole[:-40]
    yield gguf_file(llama + tokens)
    yield gguf_file(llama)
    yield gguf_file([], version=2)
    yield gguf_file([text("general.alignment") + struct.pack("<II", 4, 3)])
    yield b"GGUF" + struct.pack("<IQQ", 3, 2**60, 2**60)
    yield gguf_file([text("k") + struct.pack("<IIQ", 9, 9, 1) + struct.pack("<IQ", 4, 0)])
    yield gguf_file([text("k") + struct.pack("<IIQ", 9, 8, 2**62)])
    for kind, size in ((0, 1), (1, 1), (2, 2), (3, 2), (5, 4), (7, 1), (10, 8), (11, 8), (12, 8)):
        yield gguf_file([text("k") + struct.pack("<I", kind) + bytes(size)])


def safetensors():
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4, "intermediate_size": 4,
              "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 4,
              "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}
    for extra in ({}, {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                                        "high_freq_factor": 4.0, "original_max_position_embeddings": 8}},
                  {"head_dim": 2, "eos_token_id": [3]}, {"num_attention_heads": 0}, {"hidden_size": -1},
                  {"vocab_size": 2**63}):
        yield b"\x00" + json.dumps({**config, **extra}).encode()
    shapes = {"embed_tokens": [4, 4], "layers.0.self_attn.q_proj": [4, 4], "layers.0.self_attn.k_proj": [2, 4], "norm": [4]}
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[f"model.{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    raw = json.dumps(header).encode()
    yield b"\x01" + struct.pack("<Q", len(raw)) + raw + bytes(offset)
    yield b"\x01" + struct.pack("<Q", 2**63) + raw
    yield b"\x01" + struct.pack("<Q", 2) + b"{}"
    tokenizer = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "c": 3},
                                                                "merges": ["a b"]}}
    yield b"\x02" + json.dumps(tokenizer).encode()
    yield b"\x02" + b"[" * 200
    yield b"\x03" + json.dumps({"eos_token": {"content": "c"}, "bos_token": "a", "add_bos_token": True,
                                "chat_template": [{"name": "default", "template": "{{ messages }}"}]}).encode()
    yield b"\x03" + json.dumps({"eos_token": 1, "chat_template": []}).encode()


SEEDS = {
    "bodies": bodies,
    "sse": sse,
    "kserve": kserve,
    "template_messages": template_messages,
    "template_source": template_source,
    "tool_parsers": lambda: parsers("tool", "both"),
    "reasoning_parsers": lambda: parsers("reasoning", "both"),
    "parser_chains": lambda: parsers("both", "reasoning", families=2),
    "tokenizer_text": tokenizer_text,
    "tokenizer_ids": tokenizer_ids,
    "guides": guides,
    "gguf": gguf,
    "safetensors": safetensors,
}


def main():
    folder, wanted = pathlib.Path(sys.argv[1]), sys.argv[2:] or list(SEEDS)
    for target in wanted:
        place = folder / target
        place.mkdir(parents=True, exist_ok=True)
        for number, data in enumerate(SEEDS[target]()):
            (place / f"seed-{number:04}").write_bytes(data)


if __name__ == "__main__":
    main()
