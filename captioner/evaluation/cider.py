"""CIDEr-D as a reward: many captions of a few photos, with document frequencies counted before."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

MAX_N = 4
SIGMA = 6.0


class CiderD:
    """CIDEr-D (Vedantam et al., 2015, section 8), as coco-caption computes it.

    Document frequencies are those of the references given here, one document a photo: for rewards,
    the training captions. Captions are sequences of tokens; a token for the end makes the reward
    count how a caption ends.
    """

    def __init__(self, references: Sequence[Sequence[Sequence[str]]]) -> None:
        self.references = references
        self.frequency: Counter[tuple[str, ...]] = Counter()
        for photo in references:
            self.frequency.update({gram for caption in photo for gram in _grams(caption)})
        self.log_photos = math.log(max(1, len(references)))

    def scores(self, photos: Sequence[int], captions: Sequence[Sequence[str]]) -> np.ndarray:
        """CIDEr-D, from 0 to 10, of each caption against the references of its photo, float64.

        photos: their indices into the references.
        """
        found = np.zeros(len(captions))
        rows_of: dict[int, list[int]] = {}
        for row, photo in enumerate(photos):
            rows_of.setdefault(photo, []).append(row)
        for photo, rows in rows_of.items():
            found[rows] = self._each([captions[row] for row in rows], photo).mean(1)
        return found

    def agreement(self, photo: int) -> np.ndarray:
        """CIDEr-D, from 0 to 10, of each reference of a photo against the photo's others.

        Zeros where there are no others.
        """
        references = self.references[photo]
        each = self._each(references, photo)
        np.fill_diagonal(each, 0.0)
        return each.sum(1) / max(1, len(references) - 1)

    def _each(self, captions: Sequence[Sequence[str]], photo: int) -> np.ndarray:
        """[captions, references of the photo]."""
        references = self.references[photo]
        counts = [_grams(caption) for caption in [*captions, *references]]
        columns: dict[tuple[str, ...], int] = {}
        for grams in counts:
            for gram in grams:
                columns.setdefault(gram, len(columns))
        idf = np.array(
            [self.log_photos - math.log(max(1.0, self.frequency[gram])) for gram in columns]
        )
        order = np.array([len(gram) for gram in columns])
        vectors = np.zeros((len(counts), len(columns)))  # tf-idf
        bigrams = np.zeros(len(counts))  # coco-caption measures lengths in bigrams
        for row, grams in enumerate(counts):
            places = [columns[gram] for gram in grams]
            vectors[row, places] = list(grams.values())
            bigrams[row] = vectors[row, order == 2].sum()
        vectors *= idf
        own, their = vectors[: len(captions)], vectors[len(captions) :]
        penalty = np.exp(
            -((bigrams[: len(captions), None] - bigrams[len(captions) :]) ** 2) / (2 * SIGMA**2)
        )
        total = np.zeros((len(captions), len(references)))
        for n in range(1, MAX_N + 1):
            a, b = own[:, order == n], their[:, order == n]
            clipped = np.minimum(a[:, None], b[None])  # [captions, references, n-grams]
            norms = np.sqrt((a**2).sum(1))[:, None] * np.sqrt((b**2).sum(1))
            dots = np.einsum("crg,rg->cr", clipped, b)
            total += np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
        return 10.0 * total * penalty / MAX_N


def _grams(caption: Sequence[str]) -> Counter[tuple[str, ...]]:
    """How often each n-gram of one to four tokens occurs."""
    return Counter(
        tuple(caption[first : first + n])
        for n in range(1, MAX_N + 1)
        for first in range(len(caption) - n + 1)
    )
