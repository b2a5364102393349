"""Trains a small SentencePiece vocabulary as Llama's is, and encodes texts with it, for tests/sentencepiece.rs.

    pip install sentencepiece && python make_sentencepiece.py [seed]

Writes sentencepiece.json: pieces, scores and kinds as a GGUF file has them, and a list of [text, ids], with the space in
front (`prefixed`) and without.
"""

import io
import json
import pathlib
import random
import sys

import sentencepiece

HERE = pathlib.Path(__file__).parent
COUNT = 400
CORPUS = """
The quick brown fox jumps over the lazy dog, and then it jumps again and again.
To be or not to be, that is the question; whether it is nobler in the mind to suffer.
Größe und Maß: der schnelle braune Fuchs springt über den faulen Hund, 12345 mal.
def main(argument, *rest):  # a comment
    return {"key": [1, 2, 3], 'other': None}
Le cœur a ses raisons que la raison ne connaît point. Où est la bibliothèque?
Numbers 0 1 2 3 42 1000 2024 3.14159, and <html> tags &amp; such.
東京は日本の首都です。 Привет, мир! 
"""
# UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE as GGUF numbers them; NORMAL is 1.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def train(prefixed):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.splitlines() * 20),
        model_writer=model,
        model_type="bpe",
        vocab_size=640,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefixed,
        user_defined_symbols=["<tool>", "fox-trot"],
        split_digits=True,
        allow_whitespace_only_pieces=True,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind(model, piece):
    for test, number in (
        (model.is_unknown, UNKNOWN), (model.is_control, CONTROL), (model.is_unused, UNUSED), (model.is_byte, BYTE),
    ):
        if test(piece):
            return number
    return USER_DEFINED if model.id_to_piece(piece) in ("<tool>", "fox-trot") else NORMAL


def texts(rng):
    yield from ["", " ", "  ", "a", " a", "a ", "\n", "\t", "  two  spaces  ", "▁", "a▁b", "😀", "\u0000", "é", "e\u0301", "\r\n\r\n"]
    yield from CORPUS.splitlines()
    words = CORPUS.split() + ["  ", "\n", "😀", "the", "ing", "ﬁ", "١", "日本", "123", "...", "<0x41>", "un", "\t"]
    for _ in range(COUNT):
        between = rng.choice(["", " ", " ", "  "])
        yield between.join(rng.choice(words)[: rng.randint(1, 9)] for _ in range(rng.randint(1, 12)))


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 20260203
    print("seed", seed)
    vocabularies = []
    for prefixed in (True, False):
        model = train(prefixed)
        size = model.get_piece_size()
        # A user's own piece is matched before the space in front is added; the texts are those without.
        cases = [text for text in texts(random.Random(seed)) if "<tool>" not in text and "fox-trot" not in text]
        vocabularies.append({
            "prefixed": prefixed,
            "pieces": [model.id_to_piece(piece) for piece in range(size)],
            "scores": [model.get_score(piece) for piece in range(size)],
            "kinds": [kind(model, piece) for piece in range(size)],
            "cases": [[text, model.encode(text), model.decode(model.encode(text))] for text in cases],
        })
        print(size, "pieces,", len(cases), "texts")
    (HERE / "sentencepiece.json").write_text(json.dumps({"seed": seed, "vocabularies": vocabularies}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
