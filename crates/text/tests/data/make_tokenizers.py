"""Small tokenizers of the shapes that models publish, and what Hugging Face's `tokenizers` for Python makes of random
text with them, for tests/text/published.rs.

    pip install tokenizers && python make_tokenizers.py [seed]

Writes tokenizers.json: the seed, and a list of {"name", "gguf", "json", "texts", "ids", "decoded"}. `gguf` is the keyword
by which GGUF files name the way of cutting words. The regular expressions are those of the published tokenizer.json
files; the reference runs them in its own engine.
"""

import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
TEXTS = 60

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
HEAD = r"[^\r\n\p{L}\p{N}]?"
TEKKEN = rf"{HEAD}{UPPER}*{LOWER}+|{HEAD}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK = [
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
]

CORPUS = [
    "The quick brown fox jumps over the lazy dog, doesn't it? It's what we've learnt: they'll say I'm late.\n"
    "fn main() {\n    let total: u32 = values.iter().sum();\n    println!(\"{total:>8}\");\n}\n"
    "안녕하세요, 세계! 오늘은 날씨가 좋네요. 你好，世界。今天天气很好。こんにちは世界、元気ですか。\n"
    "Привет, мир! Как дела? Γειά σου Κόσμε. שלום עולם. مرحبا بالعالم. Élève, naïve, Straße, œuvre. HTTPServer camelCase\n"
    "😀😃🎉👍🏽 1234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤ end\r\n  indented\r\n"
] * 20

ODD = [
    "'s", "'S", "'LL", "'", " ", "  ", "\n", "\r\n", "\t", " \n", "\u00a0", "\u3000", "\u2028", "<|end|>", "</s>", "<s>", "<|en",
    "0", "12", "12345", "½", "ⅷ", "٣", "e\u0301", "\u1100\u1161", "한국어", "漢字", "カタカナ", "😀", "👩‍💻", "\u0345", "ǅ", "ı", "ſ", "'ſ",
    "...", "--", "_x_", "$1.00", "\ue000", "𝒳", "/path/to", "\r\n//", "HTTPServer", "iPhone", "ÉTÉ", "été", "▁", "▁▁", "\u0000",
]
WORDS = CORPUS[0].split(" ")


def text(rng):
    def piece():
        kind = rng.randint(0, 9)
        if kind < 4:
            return rng.choice(WORDS) + rng.choice(["", " ", " ", "\n"])
        if kind < 8:
            return rng.choice(ODD)
        if kind == 8:
            return chr(rng.choice([rng.randint(1, 0x24F), rng.randint(0x300, 0x2FFF), rng.randint(0x3000, 0xD7FF), rng.randint(0x1F000, 0x1FAFF)]))
        return "".join(rng.choice("abcXYZ019 .'-") for _ in range(rng.randint(1, 10)))

    return "".join(piece() for _ in range(rng.randint(0, 14)))


def byte_level(patterns, normalizer=None, ignore_merges=False, digits=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer:
        tokenizer.normalizer = normalizer
    if digits:
        steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    elif patterns is None:
        steps = [pre_tokenizers.ByteLevel(add_prefix_space=False)]
    else:
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


SPECIAL = ["<unk>", "<s>", "</s>"]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_fallback(normalizer, pre_tokenizer, decoder):
    """As Llama 2, Mistral's first models and Gemma: BPE over characters, with bytes for those it lacks."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    if normalizer:
        tokenizer.normalizer = normalizer
    if pre_tokenizer:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoder
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL + BYTES, limit_alphabet=150, show_progress=False)
    tokenizer.train_from_iterator(words() if pre_tokenizer is None else CORPUS, trainer)
    # The byte tokens are words of the model and not added ones.
    described = json.loads(tokenizer.to_str())
    described["added_tokens"] = [token for token in described["added_tokens"] if token["content"] in SPECIAL]
    return Tokenizer.from_str(json.dumps(described))


def words():
    """Without a pre-tokenizer a text is one word, so the trainer is given words."""
    return [word for line in CORPUS for word in line.replace(" ", " ▁").split("▁")]


def llama2_decoder(strip):
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def unigram(byte_fallback):
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0)]
    pieces += [(byte, -20.0) for byte in BYTES] if byte_fallback else []
    seen = {piece for piece, _ in pieces}
    rng = random.Random(7)
    for word in sorted({"▁" + word for word in CORPUS[0].replace("\n", " ").split()}):
        for end in range(1, len(word) + 1):
            for piece in (word[:end], word[end - 1 : end], word[-end:]):
                if piece not in seen and len(pieces) < 900:
                    seen.add(piece)
                    pieces.append((piece, -rng.uniform(3, 12)))
    tokenizer = Tokenizer(models.Unigram(pieces, 0, byte_fallback))
    tokenizer.normalizer = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]) if byte_fallback else decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIAL])
    return tokenizer


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 20260203
    print("seed", seed)
    rng = random.Random(seed)
    prepend = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    shapes = [
        ("gpt2", ["gpt-2", "default"], byte_level(None)),
        ("gpt2 as a split", [], byte_level([GPT2])),
        ("smollm", ["smollm"], byte_level(None, digits=True)),
        ("llama3", ["llama-bpe"], byte_level([LLAMA3], ignore_merges=True)),
        ("qwen2", ["qwen2"], byte_level([QWEN2], normalizers.NFC())),
        ("deepseek r1 on qwen", ["deepseek-r1-qwen"], byte_level([QWEN2])),
        ("tekken", ["tekken"], byte_level([TEKKEN], ignore_merges=True)),
        ("deepseek v3", ["deepseek-v3"], byte_level(DEEPSEEK)),
        ("llama 2", [], byte_fallback(prepend, None, llama2_decoder(True))),
        ("gemma", [], byte_fallback(normalizers.Replace(" ", "▁"), None, llama2_decoder(False))),
        ("mistral", [], byte_fallback(None, pre_tokenizers.Metaspace(prepend_scheme="first", split=False), llama2_decoder(True))),
        ("unigram", [], unigram(False)),
        ("unigram with bytes", [], unigram(True)),
    ]
    out = []
    for name, gguf, tokenizer in shapes:
        texts = [text(rng) for _ in range(TEXTS)]
        ids = [tokenizer.encode(text).ids for text in texts]
        decoded = [[tokenizer.decode(list_, skip_special_tokens=skip) for skip in (False, True)] for list_ in ids]
        out.append({"name": name, "gguf": gguf, "json": json.loads(tokenizer.to_str()), "texts": texts, "ids": ids, "decoded": decoded})
    lines = ",\n".join(json.dumps(shape, ensure_ascii=True) for shape in out)
    (HERE / "tokenizers.json").write_text('{"seed": %d, "shapes": [\n%s\n]}\n' % (seed, lines))


if __name__ == "__main__":
    main()
