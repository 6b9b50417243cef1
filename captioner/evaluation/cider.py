"""CIDEr-D of many captions of a few images, with document frequencies counted beforehand."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import chain

import numpy as np

MAX_N = 4
SIGMA = 6.0


class CiderD:
    """CIDEr-D (Vedantam et al., 2015, section 8), as coco-caption computes it.

    Args:
        references: For each image its reference captions, as sequences of tokens.
        corpus: Captions of each image from which document frequencies are counted, one document an
            image; None counts those of the references.
    """

    def __init__(
        self,
        references: Sequence[Sequence[Sequence[str]]],
        corpus: Sequence[Sequence[Sequence[str]]] | None = None,
    ) -> None:
        self.references = references
        corpus = references if corpus is None else corpus
        self.frequency: Counter[tuple[str, ...]] = Counter()
        for image in corpus:
            self.frequency.update({gram for caption in image for gram in _grams(caption)})
        self.log_images = math.log(max(1, len(corpus)))

    def scores(self, images: Sequence[int], captions: Sequence[Sequence[str]]) -> np.ndarray:
        """Return CIDEr-D, float64 [N] from 0 to 10, of captions of the images of these indices."""
        result = np.zeros(len(captions))
        rows_of: dict[int, list[int]] = {}
        for row, image in enumerate(images):
            rows_of.setdefault(image, []).append(row)
        for image, rows in rows_of.items():
            result[rows] = self._pairwise([captions[row] for row in rows], image).mean(1)
        return result

    def _pairwise(self, captions: Sequence[Sequence[str]], image: int) -> np.ndarray:
        """Return CIDEr-D [captions, references] of captions against each reference of an image."""
        counts = [_grams(caption) for caption in [*captions, *self.references[image]]]
        columns = {gram: column for column, gram in enumerate(dict.fromkeys(chain(*counts)))}
        idf = [self.log_images - math.log(max(1.0, self.frequency[gram])) for gram in columns]
        order = np.array([len(gram) for gram in columns])
        vectors = np.zeros((len(counts), len(columns)))
        for row, grams in enumerate(counts):
            vectors[row, [columns[gram] for gram in grams]] = list(grams.values())
        bigrams = vectors[:, order == 2].sum(1)  # coco-caption measures lengths in bigrams
        vectors *= idf
        written = len(captions)
        penalty = np.exp(-((bigrams[:written, None] - bigrams[written:]) ** 2) / (2 * SIGMA**2))
        total = np.zeros_like(penalty)
        for n in range(1, MAX_N + 1):
            a, b = np.split(vectors[:, order == n], [written])
            clipped = np.minimum(a[:, None], b[None])  # [captions, references, n-grams]
            norms = np.sqrt((a**2).sum(1))[:, None] * np.sqrt((b**2).sum(1))
            dots = np.einsum("crg,rg->cr", clipped, b)
            total += np.divide(dots, norms, out=np.zeros_like(dots), where=norms > 0)
        return 10.0 * total * penalty / MAX_N


def _grams(caption: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count how often each n-gram of one to four tokens occurs."""
    return Counter(
        tuple(caption[first : first + n])
        for n in range(1, MAX_N + 1)
        for first in range(len(caption) - n + 1)
    )
