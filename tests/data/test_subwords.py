"""Subwords are learned from captions, saved and joined again."""

from __future__ import annotations

from pathlib import Path

import pytest

from captioner.data.vocabulary import Vocabulary, WordTokenizer, load_tokenizer
from captioner.registry import TOKENIZERS


@pytest.mark.parametrize(
    ("captions", "new"),
    [
        (["一只狗在草地上跑。", "一只猫在草地上睡觉"] * 3, "猫跑"),
        (["a dog runs", "dogs are running", "a cat runs"] * 3, "cats are running"),
        (["الكلب يركض", "القط يركض"] * 3, "الكلب القط"),
    ],
)
def test_subwords_are_learned_saved_and_joined_again(
    tmp_path: Path, captions: list[str], new: str
) -> None:
    pytest.importorskip("tokenizers")
    fitted = TOKENIZERS["subwords"]().fitted(captions, min_count=1, max_size=None)
    fitted.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    vocabulary = Vocabulary.build(captions, loaded, min_count=1)
    for text in (*captions, new):
        tokens = loaded.split(text)
        assert tokens == fitted.split(text)
        assert loaded.join(tokens) == " ".join(WordTokenizer().split(text))
        assert vocabulary.unknown not in vocabulary.encode(tokens) or text == new
    again = TOKENIZERS["subwords"]().fitted(captions, min_count=1, max_size=None)
    assert again.settings() == fitted.settings()  # nothing is drawn at random
    assert 1 < len(loaded.split(captions[0])) <= len(captions[0])
    assert loaded.split("ж")[-1] == "<unk>"
