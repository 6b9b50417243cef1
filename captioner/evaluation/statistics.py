"""Statistics of a set of captions besides the scores."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from captioner.evaluation.metrics import tokenize

# Words that no complete caption ends in: such a caption was broken off, by a reward without the end
# token or by the longest length. The list is that of reports on self-critical training.
BAD_ENDINGS = frozenset(
    "a an the in for at of with before after on upon near to is are am and or by from that".split()
)


def corpus_statistics(
    captions: Sequence[str], training: Iterable[str] | None = None
) -> dict[str, float | None]:
    """Count how varied and well formed captions are, in lower-cased words without punctuation.

    Returns:
        num_captions; distinct_ratio, different captions / captions; novel_ratio, those that are
        none of the `training` captions (None without these); vocabulary_used, different words;
        mean_length_words, sd_length_words; bad_ending_rate, captions that end in BAD_ENDINGS;
        repeated_N_gram_rate, captions that say N words twice (of N 1, twice in a row).
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
