"""Characters where there are no spaces between words, and subwords, learned and saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from captioner.data.tokenizers import CharacterTokenizer, unspaced_runs
from captioner.data.vocabulary import Tokenizer, Vocabulary, load_tokenizer
from captioner.registry import TOKENIZERS

CHINESE = ["一只狗在草地上跑。", "两个人坐在桌子旁", "一个红色的苹果"]
characters = CharacterTokenizer()


@pytest.mark.parametrize(
    ("text", "tokens", "joined"),
    [
        ("一只狗。", ["一", "只", "狗"], "一只狗"),
        ("T恤 Red", ["t", "恤", "red"], "t 恤 red"),
        ("ペン", ["ペ", "ン"], "ペン"),
        ("สุนัข", ["สุ", "นั", "ข"], "สุนัข"),  # vowel signs stay with their consonant
        ("a dog's t-shirt", ["a", "dog's", "t-shirt"], "a dog's t-shirt"),
        ("개가 달린다", ["개가", "달린다"], "개가 달린다"),  # Korean puts spaces
    ],
)
def test_characters_are_tokens_where_there_are_no_spaces_and_words_elsewhere(
    text: str, tokens: list[str], joined: str
) -> None:
    assert characters.split(text) == tokens
    assert characters.join(tokens) == joined


def test_text_that_words_would_take_for_huge_words_is_noticed() -> None:
    said = unspaced_runs(CHINESE)
    assert "data.tokenizer: characters" in said
    assert "\n" not in said
    assert unspaced_runs(["a dog runs", "ein Hund läuft", "собака бежит"] * 9) is None
    assert unspaced_runs([*["a sign that says something"] * 50, CHINESE[0]]) is None
    assert unspaced_runs([]) is None


def test_a_caption_of_characters_is_written_without_spaces() -> None:
    import tiny

    from captioner import Captioner

    model, config, vocabulary = tiny.model()
    words = "一 只 红 绿 蓝 方 圆 盘 场 在 上 的".split()
    captioner = Captioner(model, config, Vocabulary(words[: len(vocabulary.words)], characters))
    caption = captioner.score(tiny.photo(1)[0], "红方在绿场上")
    assert caption.words == list("红方在绿场上")
    assert caption.text == "红方在绿场上"
    assert " " not in captioner.caption(tiny.photo(1)[0]).text


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
        assert loaded.join(tokens) == " ".join(Tokenizer().split(text))
        assert vocabulary.unknown not in vocabulary.encode(tokens) or text == new
    again = TOKENIZERS["subwords"]().fitted(captions, min_count=1, max_size=None)
    assert again.settings() == fitted.settings()  # nothing is drawn at random
    assert 1 < len(loaded.split(captions[0])) <= len(captions[0])
    assert loaded.split("ж")[-1] == "<unk>"
