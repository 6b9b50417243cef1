"""Text to tokens, tokens to numbers, and back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from captioner.data.vocabulary import Tokenizer, Vocabulary, load_tokenizer
from captioner.registry import TOKENIZERS

tokenize = Tokenizer().split


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("", []),
        ("... !!! --- '", []),
        ("two_words", ["two", "words"]),
        ("rock 'n' roll", ["rock", "n", "roll"]),
        ("the dogs' ball", ["the", "dogs", "ball"]),
        ("MAN’S HAT", ["man's", "hat"]),
        ("a black-and-white dog - running", ["a", "black-and-white", "dog", "running"]),
        ("no.5 at 10:30", ["no", "5", "at", "10", "30"]),
        ("ein Café in Köln", ["ein", "café", "in", "köln"]),
        ("cafe\u0301", ["café"]),  # the accent as a character of its own
        ("ﬁsh １２", ["fish", "12"]),  # a ligature and full-width digits
        ("हिन्दी தமிழ்", ["हिन्दी", "தமிழ்"]),  # vowel signs are combining marks, but of the word
        ("dog\u200b \ufeffcat\x00", ["dog", "cat"]),
        ("1\ufe0f\u20e3 ❤\ufe0f \u0301 dog", ["1", "dog"]),  # emoji and a lone mark are no words
    ],
)
def test_captions_are_split_into_lower_case_words(caption: str, words: list[str]) -> None:
    assert tokenize(caption) == words


TEXTS = ["一只狗在草地上跑。", "两个人坐在桌子旁", "一个红色的苹果", "A man's T-shirt, red",
         "3 只狗 and 2 cats", "สุนัขวิ่ง", "ペンを持つ人", "개가 달린다", "", "!?", "Café 3"]  # fmt: skip


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_tokenizer_comes_back_from_its_file_and_splits_what_it_joined(
    tmp_path: Path, name: str
) -> None:
    file = tmp_path / "tokenizer.json"
    assert type(load_tokenizer(file)) is Tokenizer, "without a file"
    tokenizer: Tokenizer = TOKENIZERS[name]()
    assert tokenizer.name == name
    tokenizer.save(file)
    loaded = load_tokenizer(file)
    assert type(loaded) is type(tokenizer)
    for text in TEXTS:
        tokens = tokenizer.split(text)
        assert tokenizer.split(tokenizer.join(tokens)) == tokens == loaded.split(text)


def test_words_are_ordered_by_falling_count_then_by_the_alphabet_and_rare_ones_left_out() -> None:
    captions = ["b a c", "b c d", "b e e E"]
    ordered = {count: Vocabulary.build(captions, min_count=count).words for count in (1, 2, 3, 4)}
    assert ordered == {1: ["b", "e", "c", "a", "d"], 2: ["b", "e", "c"], 3: ["b", "e"], 4: []}
    for size in (1, 3, 100):
        assert Vocabulary.build(captions, min_count=1, max_size=size).words == ordered[1][:size]


def test_the_special_tokens_have_the_indices_that_the_search_counts_on() -> None:
    from captioner.generation.beam_search import END, PAD, START, UNKNOWN

    vocabulary = Vocabulary(["dog"])
    fixed = [vocabulary.pad, vocabulary.start, vocabulary.end, vocabulary.unknown]
    assert fixed == [PAD, START, END, UNKNOWN] == [0, 1, 2, 3]
    assert vocabulary.tokens[:4] == ["<pad>", "<start>", "<end>", "<unk>"]


def test_words_are_encoded_and_decoded_up_to_the_end() -> None:
    vocabulary = Vocabulary(["a", "dog"])
    assert vocabulary.encode(["a", "dog", "flies", "<end>x"]) == [4, 5, 3, 3]
    assert vocabulary.decode([1, 4, 0, 5, 2, 4]) == ["a", "dog"]
    assert vocabulary.decode([2, 4]) == []
    assert vocabulary.decode([4, 3]) == ["a", "<unk>"]


def test_a_saved_vocabulary_is_readable_json_and_comes_back_in_order(tmp_path: Path) -> None:
    words = ["zebra", "a", "café", "собака", 'quo"te', "back\\slash", "line\nbreak", "😀"]
    Vocabulary(words).save(tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_bytes().decode("utf-8")) == {"words": words}
    assert Vocabulary.load(tmp_path / "v.json").tokens == Vocabulary(words).tokens
