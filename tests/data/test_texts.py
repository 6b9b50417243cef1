"""Captions without photos: the file, and batches that are a function of seed and step."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from captioner.data.batch import words_read
from captioner.data.texts import TextCaptions, read_texts
from captioner.data.vocabulary import Vocabulary
from captioner.errors import DataError

PHOTOS = [
    ["a dog runs", "a brown dog on grass", "the dog"],
    ["one caption only"],
    ["two men", "men sit on a bench"],
    ["", "no second with words"],
]
VOCABULARY = Vocabulary("a dog runs brown on grass the two men sit bench".split())


def texts(seed: int = 1) -> TextCaptions:
    return TextCaptions(PHOTOS, VOCABULARY, max_words=4, seed=seed)


def test_lines_of_one_id_are_one_photo_s_wherever_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "captions.tsv"
    path.write_text("7\tA dog.\n8\tTwo men\n\n7\tIt  runs\n", encoding="utf-8")
    assert read_texts(path) == [["A dog.", "It runs"], ["Two men"]]
    path.write_text("7.jpg#0\tA dog.\n7.jpg#1\tIt runs\n", encoding="utf-8")
    assert read_texts(path) == [["A dog.", "It runs"]]


@pytest.mark.parametrize("line", ["no tab", "\tno id", "#1\tno id", "7\t "])
def test_a_line_of_another_form_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "captions.tsv"
    path.write_text(f"7\tA dog\n{line}\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"captions\.tsv, line 2: expected an id, a tab and a cap"):
        read_texts(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.tsv"):
        read_texts(tmp_path / "none.tsv")


def test_photos_with_one_caption_teach_nothing() -> None:
    with pytest.raises(DataError, match=r"has two with words .* text\.file"):
        TextCaptions([["a dog"], ["two men", "...", "zebras"]], VOCABULARY, max_words=4, seed=1)


def test_captions_that_are_validated_on_are_left_out() -> None:
    held = ["The dog!", "A brown dog, on grass"]
    captions = TextCaptions(
        [*PHOTOS, [*held, "a dog"]], VOCABULARY, max_words=4, seed=1, without=held
    )
    assert [len(photo) for photo in captions.images] == [2]  # of the men; the dog's has one left
    assert captions.images[0][0].tolist() == VOCABULARY.encode(["two", "men"])


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    def drawn(seed: int, step: int) -> list[torch.Tensor]:
        return list(vars(texts(seed).batch(step, size=6, cells=5)).values())

    assert all(map(torch.equal, drawn(1, 4), drawn(1, 4)))
    assert not torch.equal(drawn(1, 4)[0], drawn(1, 5)[0])
    assert not torch.equal(drawn(1, 4)[0], drawn(2, 4)[0])


def test_each_caption_keeps_its_seed_in_the_share_of_a_process() -> None:
    """So that hard attention draws the same cells for it with any number of processes."""
    whole = texts().batch(3, size=6, cells=5)
    assert len(set(whole.seeds.tolist())) == 6
    assert torch.equal(whole.share(1, 2).seeds, whole.seeds[1::2])
    assert not set(whole.seeds.tolist()) & set(texts().batch(4, size=6, cells=5).seeds.tolist())


def test_cells_are_words_of_the_photo_s_other_captions() -> None:
    batch = texts().batch(0, size=200, cells=7)
    assert batch.cells.shape == (200, 7)
    assert batch.lengths.tolist() == sorted(batch.lengths.tolist(), reverse=True)
    others: dict[tuple[str, ...], set[str]] = {}
    for photo in PHOTOS:
        split = [caption.split()[:4] for caption in photo]
        for index, caption in enumerate(split):
            rest = split[:index] + split[index + 1 :]
            others[tuple(caption)] = {word for words in rest for word in words}
    found = set()
    for row, length in enumerate(batch.lengths.tolist()):
        targets = batch.targets[row].tolist()
        assert targets[length - 1] == VOCABULARY.end
        assert not any(targets[length:])
        assert words_read(batch.targets)[row].tolist()[:length] == [
            VOCABULARY.start,
            *targets[: length - 1],
        ]
        caption = tuple(VOCABULARY.decode(targets))
        found.add(caption)
        seen = set(VOCABULARY.decode(batch.cells[row].tolist()))
        assert seen <= others[caption]
    assert found == {tuple(c.split()[:4]) for i in (0, 2) for c in PHOTOS[i]}


def test_frequent_words_are_drawn_less_often_than_they_come() -> None:
    """By the square root of how far they exceed the share of 0.005."""
    rare = [f"w{number}" for number in range(400)]
    photos = [[f"a {word}", f"a {other}"] for word, other in zip(rare, rare[::-1], strict=True)]
    captions = TextCaptions(photos, Vocabulary(["a", *rare]), max_words=4, seed=1)
    words = captions.batch(0, size=2000, cells=4).cells.flatten().tolist()
    share = Counter(words)[4] / len(words)  # "a" comes as often as all others together
    weight = (0.005 / 0.5) ** 0.5
    assert share == pytest.approx(weight / (weight + 1), abs=0.02)


def test_unknown_words_are_no_cells() -> None:
    captions = TextCaptions([["dog zebra", "zebra men"]], VOCABULARY, max_words=4, seed=1)
    cells = captions.batch(0, size=50, cells=3).cells.numpy()
    assert not np.isin(cells, [VOCABULARY.unknown]).any()
