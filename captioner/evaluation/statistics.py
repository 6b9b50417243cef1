"""Statistics of a set of captions besides the scores, and the scores by kinds of images."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from captioner.evaluation.intervals import ImageScores
from captioner.evaluation.metrics import tokenize

# Words that no complete caption ends in: such a caption was broken off, by a reward without the end
# token or by the longest length. The list is that of reports on self-critical training.
BAD_ENDINGS = frozenset(
    "a an the in for at of with before after on upon near to is are am and or by from that".split()
)

OBJECTS = (1, 3, 6, 10)  # bounds of groups by the number of objects in an image


def corpus_statistics(
    captions: Sequence[str], training: Iterable[str] | None = None
) -> dict[str, float | None]:
    """Count how varied and well formed captions are, in lower-cased words without punctuation.

    Returns num_captions; distinct_ratio, different captions / captions; novel_ratio, those that are
    none of the `training` captions (None without these); vocabulary_used, different words;
    mean_length_words and sd_length_words; bad_ending_rate, captions that end in one of BAD_ENDINGS;
    repeated_N_gram_rate, captions that say the same N words twice, and of N 1, twice in a row. All
    zero for no captions.
    """
    tokenised = [tokenize(caption).split() for caption in captions]
    count = max(1, len(tokenised))
    lengths = np.array([len(caption) for caption in tokenised] or [0])
    distinct = {" ".join(caption) for caption in tokenised}
    novel: float | None = None
    if training is not None:
        known = {tokenize(caption) for caption in training}
        novel = sum(" ".join(caption) not in known for caption in tokenised) / count
    return {
        "num_captions": len(tokenised),
        "distinct_ratio": len(distinct) / count,
        "novel_ratio": novel,
        "vocabulary_used": len({word for caption in tokenised for word in caption}),
        "mean_length_words": float(lengths.mean()),
        "sd_length_words": float(lengths.std()),
        "bad_ending_rate": sum(c[-1] in BAD_ENDINGS for c in tokenised if c) / count,
        **{
            f"repeated_{n}_gram_rate": sum(_repeats(c, n) for c in tokenised) / count
            for n in (1, 2, 3)
        },
    }


def _repeats(words: Sequence[str], n: int) -> bool:
    if n == 1:
        return any(a == b for a, b in itertools.pairwise(words))
    grams = list(zip(*(words[start:] for start in range(n)), strict=False))
    return len(set(grams)) < len(grams)


def scores_by_group(
    images: ImageScores, value_of: Mapping[Any, float], bounds: Sequence[float]
) -> list[dict[str, float | None]]:
    """Return corpus figures of the images between bounds of a value, such as an image's objects.

    Images without a value are in no group.

    Returns, for each group that has images, "from" and "to" (from <= value < to; None is open),
    num_images and the metrics.
    """
    values = np.array([value_of.get(image_id, np.nan) for image_id in images.image_ids])
    edges = [-np.inf, *sorted(set(bounds)), np.inf]
    groups = []
    for low, high in itertools.pairwise(edges):
        chosen = ((values >= low) & (values < high)).astype(float)
        if chosen.any():
            groups.append(
                {
                    "from": None if low == -np.inf else float(low),
                    "to": None if high == np.inf else float(high),
                    "num_images": int(chosen.sum()),
                    **{name: float(score) for name, score in images.corpus(chosen).items()},
                }
            )
    return groups


def scores_by_length(
    images: ImageScores, texts: Mapping[Any, Sequence[str]]
) -> list[dict[str, float | None]]:
    """Return scores by thirds of the mean length, in words, of texts such as references."""
    lengths = {
        image_id: float(np.mean([len(tokenize(text).split()) for text in texts[image_id]]))
        for image_id in images.image_ids
    }
    thirds = np.quantile(list(lengths.values()), [1 / 3, 2 / 3])
    return scores_by_group(images, lengths, [round(float(edge), 6) for edge in thirds])
