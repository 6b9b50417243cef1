"""Checks of captions and photos before anything is learned from them."""

from __future__ import annotations

import hashlib
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from captioner.data.images import open_image
from captioner.data.splits import CaptionedImage, ImagePath, Split
from captioner.data.tokenizers import unspaced_runs
from captioner.data.vocabulary import Tokenizer
from captioner.errors import ImageError, listed

SMALL_PX = 32  # an image whose shorter side is less shows little
SAME_CAPTION = 0.5  # share of the images with the same caption, above which it is likely a mistake
MARKED = 0.9  # share of the captions with the same marker, above which it is one
_MOST_MARKERS = 3  # at each end, as in "<start> caption: a dog"
_SAMPLED = 200  # captions that candidates for markers are taken from

_HTML_TAG = r"</?(?:a|b|br|div|em|font|h\d|i|img|li|p|small|span|strong|sub|sup|u|ul)\b[^<>]*>"
# Markers of tutorials and of other programs: startseq, <start>, [BOS], <|endoftext|>, "caption:".
_TOKEN = (
    rf"(?!{_HTML_TAG})<\|?[^<>|\s]{{1,20}}\|?>|\[/?[A-Za-z_]{{1,12}}\]"
    r"|#+[A-Za-z]{2,12}#+|\b(?:startseq|endseq|startofseq|endofseq|start|end|sos|eos|bos)\b"
)
_FIRST = re.compile(rf"^(?:{_TOKEN}|[A-Za-z][A-Za-z ]{{0,20}}:)(?=\s|\w|$)", re.IGNORECASE)
_LAST = re.compile(rf"(?:{_TOKEN})$", re.IGNORECASE)
_NOTHING = frozenset(("nan", "null", "none", "n/a", "<na>", "na", "undefined"))
_HTML = re.compile(rf"&(?:#\d+|#x[0-9a-f]+|[a-z]{{2,8}});|{_HTML_TAG}", re.IGNORECASE)


def has_words(text: str) -> bool:
    """Return whether a text has a letter or digit of any script."""
    return any(map(str.isalnum, text))


def is_caption(text: str) -> bool:
    """Return whether a text has words, and is not what programs write for none, such as nan."""
    return has_words(text) and text.strip().lower() not in _NOTHING


@dataclass(frozen=True)
class Markers:
    """Texts, in lower case, with which nearly all captions of a data set begin or end."""

    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()

    @classmethod
    def of(cls, captions: Iterable[str]) -> Markers:
        """Find the markers of the captions of a data set."""
        texts = [text.strip() for text in captions]
        markers: dict[str, list[str]] = {"first": [], "last": []}
        for end, pattern in (("first", _FIRST), ("last", _LAST)):
            while len(texts) > 1 and len(markers[end]) < _MOST_MARKERS:
                found = (pattern.search(text) for text in texts[:_SAMPLED])
                counts = Counter(match[0].lower() for match in found if match)
                likeliest = [marker for marker, _ in counts.most_common(1)]
                shorter = list(map(cls(**{end: tuple(likeliest)}).stripped, texts))
                if sum(map(operator.ne, texts, shorter)) < MARKED * len(texts):
                    break
                texts = shorter
                markers[end] += likeliest
        return cls(tuple(markers["first"]), tuple(markers["last"]))

    def __str__(self) -> str:
        ends = (("begin", self.first), ("end", self.last[::-1]))
        return " and ".join(f"{e} with {listed(map(repr, found))}" for e, found in ends if found)

    def stripped(self, text: str) -> str:
        """Return a caption without the markers that it has."""
        for marker in self.first:
            if text.lower().startswith(marker):
                text = text[len(marker) :].strip()
        for marker in self.last:
            if text.lower().endswith(marker):
                text = text[: -len(marker)].strip()
        return text


def caption_findings(split: Split, tokenizer: Tokenizer, max_words: int | None) -> list[str]:
    """Return a sentence for each thing in the captions of a split that would spoil training.

    Training cuts captions after `max_words`; None cuts none.
    """
    pairs = [(image, text) for image in split.images for text in image.captions]

    def count(applies: Callable[[str], bool], what: str) -> str | None:
        matching = [(image, text) for image, text in pairs if applies(text)]
        if not matching:
            return None
        image, text = matching[0]
        return f"{len(matching)} of {len(pairs)} captions {what}, as {text[:60]!r} of {image.path}"

    found = [
        split.markers
        and f"nearly all captions {split.markers}, which a model would learn to write; "
        "--strip-markers (data.strip_markers true) removes this",
        same_caption(split.images),
        tokenizer.name == "words" and unspaced_runs(text for _, text in pairs),
        count(lambda text: bool(_HTML.search(text)), "have HTML in them"),
    ]
    if max_words is not None and not tokenizer.is_learned:
        long = count(
            # a character is a word at most, and counting characters is quicker
            lambda text: len(text) > max_words and len(tokenizer.split(text)) > max_words,
            f"have more than {max_words} words",
        )
        found.append(long and f"{long}; training cuts them there (data.max_words)")
    if twice := [image for image in split.images if len(set(image.captions)) < len(image.captions)]:
        found.append(
            f"{len(twice)} photos have a caption twice, as {twice[0].path}; remove one, or it "
            "counts double"
        )
    return [str(sentence) for sentence in found if sentence]


def same_caption(images: Sequence[CaptionedImage]) -> str | None:
    """Return a warning if many images have the same caption, else None."""
    counts = Counter(text for image in images for text in set(image.captions))
    text, count = counts.most_common(1)[0] if counts else ("", 0)
    if len(images) < (20 if len(counts) > 1 else 3) or count <= SAME_CAPTION * len(images):
        return None
    return (
        f"{count} of {len(images)} photos have the same caption, {text!r}; check that photos and "
        "captions belong together"
    )


def read_images(
    paths: Iterable[ImagePath], done: Callable[[], object]
) -> tuple[
    dict[ImagePath, tuple[int, int]], dict[ImagePath, str], list[tuple[ImagePath, ImagePath]]
]:
    """Return the sizes of upright images, why others cannot be read, and pairs with equal bytes."""
    sizes: dict[ImagePath, tuple[int, int]] = {}
    unreadable: dict[ImagePath, str] = {}
    first: dict[bytes, ImagePath] = {}
    equal: list[tuple[ImagePath, ImagePath]] = []
    for path in paths:
        try:
            sizes[path] = open_image(path).size
        except ImageError as error:
            unreadable[path] = str(error)
        else:
            other = first.setdefault(hashlib.sha256(path.read_bytes()).digest(), path)
            equal += [(other, path)] if other != path else []
        done()
    return sizes, unreadable, equal


def caption_statistics(images: Sequence[CaptionedImage], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return counts of the captions and words of a split, by what they count."""
    texts = [text for image in images for text in image.captions]
    split = list(map(tokenizer.split, texts))
    counts = Counter(word for words in split for word in words)
    lengths = [len(words) for words in split] or [0]
    each = [len(image.captions) for image in images] or [0]
    return {
        "captions": len(texts),
        "captions_a_photo": [min(each), max(each)],
        "words_a_caption": [min(lengths), int(np.median(lengths)), max(lengths)],
        "words": len(counts),
        "rare_words": sum(count < 5 for count in counts.values()),
    }


def split_problems(splits: Mapping[str, Split]) -> list[str]:
    """Return a sentence for each two splits that share files: those must not be trained on."""
    paths = {name: {image.path for image in split.images} for name, split in splits.items()}
    return [
        f"{len(shared)} photos are in {one} and in {other}, as {min(map(str, shared))}; keep each "
        "in one split"
        for one, other in combinations(paths, 2)
        if (shared := paths[one] & paths[other])
    ]
