"""Checks of a data set: unusable files, duplicates, and likely mistakes."""

from __future__ import annotations

import hashlib
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Any

import numpy as np
from PIL import Image

from captioner.data.captioned import CaptionedImage, Split
from captioner.data.tars import ImagePath
from captioner.data.tokenizer import Tokenizer
from captioner.data.transforms import open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError

SMALL_PX = 32  # an image whose shorter side is less shows little
OTHER_LANGUAGE = 0.6  # share of words that a model knows, below which they are of another language
_COUNTED = 10_000  # captions at most that this share is computed of
_NEAR_BITS = 4  # of 64: bits by which difference hashes of near duplicates differ at most
_NEAR_LEVELS = 6.0  # of 255, mean difference of two thumbnails
_MOST_IN_A_BUCKET = 50  # images with a part of a hash in common; more are blank images


@dataclass(frozen=True)
class ImageFacts:
    """Facts about an image file that was read.

    Attributes:
        width_px: Width of the upright image.
        height_px: Its height.
        digest: SHA-256 sum of the file.
        thumbnail: uint8 [8, 9], in grey.
    """

    width_px: int
    height_px: int
    digest: str
    thumbnail: np.ndarray


def image_facts(path: ImagePath) -> ImageFacts:
    """Read an image.

    Raises:
        ImageError: It cannot be read.
    """
    image = open_image(path)
    return ImageFacts(
        *image.size,
        digest=hashlib.sha256(path.read_bytes()).hexdigest(),
        thumbnail=np.asarray(image.convert("L").resize((9, 8), Image.Resampling.BOX)),
    )


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
            facts[path] = image_facts(path)
        except ImageError as error:
            unreadable[path] = str(error)
        done()
    return facts, unreadable


def duplicates(facts: Mapping[ImagePath, ImageFacts]) -> list[tuple[ImagePath, ImagePath, str]]:
    """Return pairs of files that hold the same image.

    Returns:
        Two paths, and `same file` or `near duplicates`: resized, or saved again.
    """
    found = []
    by_digest: dict[str, ImagePath] = {}
    for path, fact in facts.items():
        first = by_digest.setdefault(fact.digest, path)
        if first != path:
            found.append((first, path, "same file"))
    # Hashes that differ in _NEAR_BITS bits share at least one of one part more than that.
    paths = list(by_digest.values())
    thumbnails = [facts[path].thumbnail.astype(np.float32) for path in paths]
    hashes = [(t[:, 1:] > t[:, :-1]).ravel() for t in thumbnails]
    buckets: dict[tuple[int, bytes], list[int]] = defaultdict(list)
    for index, value in enumerate(hashes):
        for number, part in enumerate(np.array_split(value, _NEAR_BITS + 1)):
            buckets[number, part.tobytes()].append(index)
    candidates = {
        pair
        for members in buckets.values()
        if len(members) <= _MOST_IN_A_BUCKET
        for pair in combinations(members, 2)
    }
    for a, b in sorted(candidates):
        if (hashes[a] != hashes[b]).sum() > _NEAR_BITS:
            continue
        if np.abs(thumbnails[a] - thumbnails[b]).mean() <= _NEAR_LEVELS:
            found.append((paths[a], paths[b], "near duplicates"))
    return found


def caption_statistics(images: Sequence[CaptionedImage], tokenizer: Tokenizer) -> dict[str, Any]:
    """Return counts of captions and words of a split.

    Returns:
        captions, captions_a_photo (fewest, most), words_a_caption (fewest, median, most),
        words, rare_words (that occur fewer than five times) and scripts, the shares of letters.
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
        "scripts": _scripts(texts),
    }


def _scripts(texts: Iterable[str]) -> dict[str, float]:
    """Return the shares of letters of the three most frequent scripts, such as `latin`."""
    letters = Counter(c for text in texts for c in text if c.isalpha())
    scripts: Counter[str] = Counter()
    for letter, count in letters.items():
        scripts[unicodedata.name(letter, "OTHER").partition(" ")[0].lower()] += count
    return {name: count / scripts.total() for name, count in scripts.most_common(3)}


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
