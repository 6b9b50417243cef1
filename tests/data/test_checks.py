"""What in captions would spoil training is found, and removed if that is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import read_split

from captioner.data.checks import Markers, caption_findings
from captioner.data.splits import CaptionedImage, Split
from captioner.data.vocabulary import Tokenizer

CAPTIONS = ["a dog runs", "two cats: one sleeps", "The man looks up", "a red <b>bus</b>"]


def findings(*captions: tuple[str, ...], max_words: int | None = 25) -> list[str]:
    images = [CaptionedImage(Path(f"{n}.jpg"), texts, n) for n, texts in enumerate(captions)]
    markers = Markers.of(text for texts in captions for text in texts)
    return caption_findings(Split(images, [], markers=str(markers)), Tokenizer(), max_words)


@pytest.mark.parametrize(
    ("form", "first", "last"),
    [
        ("{}", (), ()),
        ("startseq {} endseq", ("startseq",), ("endseq",)),
        ("<start> {} <end>", ("<start>",), ("<end>",)),
        ("<s>{}</s>", ("<s>",), ("</s>",)),
        ("caption: {}", ("caption:",), ()),
        ("<start> A photo of: {}", ("<start>", "a photo of:"), ()),
        ("{} <eos> <pad>", (), ("<pad>", "<eos>")),
        ("a {}", (), ()),
        ("<b>{}</b>", (), ()),
    ],
)
def test_markers_are_found_and_stripped(
    form: str, first: tuple[str, ...], last: tuple[str, ...]
) -> None:
    texts = [form.format(caption) for caption in CAPTIONS]
    markers = Markers.of(texts)
    assert (markers.first, markers.last) == (first, last)
    if first or last:
        assert [markers.stripped(text) for text in texts] == CAPTIONS


def test_markers_of_some_captions_are_words() -> None:
    assert not str(Markers.of(["<start> a dog", *CAPTIONS]))
    assert Markers.of([*[f"startseq {n} dogs" for n in range(20)], "a cat"]).first == ("startseq",)


def test_markers_are_removed_when_asked_for_and_reported_otherwise(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.jpg").touch()
    rows = "".join(f"{n}.jpg,startseq a dog {n} endseq\n" for n in range(3))
    (tmp_path / "t.csv").write_text("image,caption\n" + rows)
    (sentence,) = caption_findings(read_split(root=tmp_path, split="all"), Tokenizer(), 25)
    assert "begin with 'startseq' and end with 'endseq'" in sentence
    assert "data.strip_markers" in sentence
    stripped = read_split(root=tmp_path, split="all", strip_markers=True)
    assert [i.captions for i in stripped.images] == [(f"a dog {n}",) for n in range(3)]
    assert caption_findings(stripped, Tokenizer(), 25) == []


@pytest.mark.parametrize(
    ("captions", "facts"),
    [
        ([("a dog",), ("a cat",)], []),
        ([("1 2 3 4 5 6 7",), ("a cat",)], ["1 of 2 captions have more than 6 words", "data"]),
        ([("a dog &amp; a cat",), ("a cat",)], ["1 of 2 captions have HTML", "of 0.jpg"]),
        ([("a dog", "a dog", "it runs"), ("a",)], ["1 photos have a caption twice, as 0.jpg"]),
        ([("a dog",)] * 3, ["3 of 3 photos have the same caption, 'a dog'"]),
    ],
)
def test_each_kind_is_one_sentence_with_its_count(
    captions: list[tuple[str, ...]], facts: list[str]
) -> None:
    found = findings(*captions, max_words=6)
    assert len(found) == bool(facts), found
    assert all(fact in found[0] for fact in facts), found
