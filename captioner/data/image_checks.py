"""Checks of a data set: unusable files, duplicates, and likely mistakes."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np

from captioner.data.captioned import CaptionedImage, Split
from captioner.data.tars import ImagePath
from captioner.data.tokenizer import Tokenizer
from captioner.data.transforms import open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError

SMALL_PX = 32  # an image whose shorter side is less shows little
OTHER_LANGUAGE = 0.6  # share of words that a model knows, below which they are of another language
_COUNTED = 10_000  # captions at most that this share is computed of


class ImageFacts(NamedTuple):
    """Size of an upright image, and the SHA-256 sum of its file."""

    width_px: int
    height_px: int
    digest: str


def read_images(
    images: Iterable[CaptionedImage], done: Callable[[], object]
) -> tuple[dict[ImagePath, ImageFacts], dict[ImagePath, str]]:
    """Read every image; return facts of those that can be read, and why others cannot.

    Args:
        images: An image in several splits is read once.
        done: Called after each.
    """
    facts: dict[ImagePath, ImageFacts] = {}
    unreadable: dict[ImagePath, str] = {}
    for path in dict.fromkeys(image.path for image in images):
        try:
            width, height = open_image(path).size
            facts[path] = ImageFacts(width, height, hashlib.sha256(path.read_bytes()).hexdigest())
        except ImageError as error:
            unreadable[path] = str(error)
        done()
    return facts, unreadable


def duplicates(facts: Mapping[ImagePath, ImageFacts]) -> list[tuple[ImagePath, ImagePath]]:
    """Return pairs of files with the same bytes."""
    first: dict[str, ImagePath] = {}
    pairs = [(first.setdefault(fact.digest, path), path) for path, fact in facts.items()]
    return [(one, other) for one, other in pairs if one != other]


def caption_statistics(images: Sequence[CaptionedImage], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return counts of captions and words of a split.

    Returns:
        captions, captions_a_photo (fewest, most), words_a_caption (fewest, median, most),
        words, and rare_words (that occur fewer than five times).
    """
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


def known_share(
    texts: Iterable[str], vocabulary: Vocabulary, tokenizer: Tokenizer | None = None
) -> float:
    """Return the share of the words of some captions that a vocabulary has.

    Args:
        texts: Captions, of which the first 10,000 are counted.
        vocabulary: Vocabulary of a model.
        tokenizer: Splits the captions; None is the vocabulary's.
    """
    split = (tokenizer or vocabulary.tokenizer).split
    words = [word for text in islice(texts, _COUNTED) for word in split(text)]
    return sum(word in vocabulary for word in words) / max(1, len(words))


def split_problems(splits: Mapping[str, Split]) -> list[str]:
    """Return a sentence for each two splits that share files: those must not be trained on."""
    found = []
    for (one, first), (other, second) in combinations(splits.items(), 2):
        shared = {i.path for i in first.images} & {i.path for i in second.images}
        if shared:
            found.append(
                f"{len(shared)} photos are in {one} and in {other}, as {min(map(str, shared))}; "
                "keep each in one split"
            )
    return found
