"""Characters are tokens where there are no spaces, and other text is told to use them."""

from __future__ import annotations

import pytest

from captioner.data.characters import CharacterTokenizer, unspaced_runs
from captioner.data.vocabulary import Vocabulary

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
    assert said is not None
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
