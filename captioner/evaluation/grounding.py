"""Does attention lie on the object that a word names? Attention correctness and pointing game.

Attention correctness (Liu et al. 2017, "Attention Correctness in Neural Image Captioning"): the
share of a word's attention that lies inside the true region of what the word names. Pointing game
(Zhang et al. 2018, "Top-down Neural Attention by Excitation Backprop"): whether the point of most
attention hits it. Both beside what a map without knowledge would have: a uniform one, and a
Gaussian at the centre, where photographers put their objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from captioner.evaluation.intervals import interval_of_mean
from captioner.evaluation.objects import Objects, named_categories
from captioner.types import Caption, Geometry

TOLERANCE_PX = 15.0  # of the pointing game, as its authors have it
FIGURES = ("correctness", "hit")
CENTRE_SIGMA = 0.25  # of the centred map, in sides of the photo


@dataclass(frozen=True)
class GroundedWord:
    """One word of a caption that names an object in the photo.

    correctness and hit are the model's; those named uniform and centre a map's without knowledge.
    hit_uniform is the chance of a cell drawn at random.
    """

    image: int
    word: str
    category: str
    correctness: float
    correctness_uniform: float
    correctness_centre: float
    hit: float
    hit_uniform: float
    hit_centre: float


def ground(
    caption: Caption, image: int, objects: Objects, *, boxes: bool = False
) -> Iterator[GroundedWord]:
    """The words of a caption that name a category of which the photo shows an object.

    image: the photo's number in the file of objects. boxes: their boxes, not their outlines. What
    lies on a letterbox's bars lies on no photo: neither figure counts it.
    """
    rows, columns = caption.maps.shape[-2:]
    uniform = np.full((rows, columns), 1 / (rows * columns))
    centre = centred_map(caption.geometry, rows, columns)
    categories = named_categories(caption.words)
    for word, category, attention in zip(caption.words, categories, caption.maps, strict=True):
        mask = None if category is None else objects.mask(image, category, boxes=boxes)
        if category is None or mask is None:
            continue
        covered, seen = coverage(mask, caption.geometry, rows, columns)
        hits = cell_hits(mask, caption.geometry, rows, columns)

        def correctness(
            weights: np.ndarray, covered: np.ndarray = covered, seen: np.ndarray = seen
        ) -> float:
            inside = weights * seen
            total = inside.sum()
            # all of it beside the photo: nothing lies on the object
            return float((inside * covered).sum() / total) if total > 0 else 0.0

        yield GroundedWord(
            image=image,
            word=word,
            category=category,
            correctness=correctness(attention),
            correctness_uniform=correctness(uniform),
            correctness_centre=correctness(centre),
            hit=float(hits.flat[(attention * seen).argmax()]),
            hit_uniform=float(np.average(hits, weights=seen)),
            hit_centre=float(point_hits(mask, mask.shape[1] / 2, mask.shape[0] / 2)),
        )


def centred_map(geometry: Geometry, rows: int, columns: int) -> np.ndarray:
    """A Gaussian [rows, columns] at the middle of the photo, a quarter of its sides wide."""

    def side(cells: int, start_px: float, length_px: float, photo_px: int) -> np.ndarray:
        middles = start_px + (np.arange(cells) + 0.5) * length_px / cells
        return np.exp(-0.5 * ((middles / photo_px - 0.5) / CENTRE_SIGMA) ** 2)

    down = side(rows, geometry.top_px, geometry.height_px, geometry.photo_height_px)
    across = side(columns, geometry.left_px, geometry.width_px, geometry.photo_width_px)
    weights = np.outer(down, across[::-1] if geometry.flipped else across)
    return weights / weights.sum()


def coverage(
    mask: np.ndarray, geometry: Geometry, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray]:
    """Share of each cell's part of the photo that a mask covers, and how much of a cell is photo.

    mask: bool [height, width] of the photo. Both results are [rows, columns], from 0 to 1; cells
    that lie beside the photo have 0 of both.
    """
    down = _overlaps(
        mask.shape[0], geometry.photo_height_px, geometry.top_px, geometry.height_px, rows
    )
    across = _overlaps(
        mask.shape[1], geometry.photo_width_px, geometry.left_px, geometry.width_px, columns
    )
    if geometry.flipped:
        across = across[::-1]
    seen = np.outer(down.sum(1), across.sum(1))
    inside = down @ mask.astype(float) @ across.T
    return np.divide(inside, seen, out=np.zeros_like(inside), where=seen > 0), seen


def _overlaps(
    pixels: int, photo_px: int, start_px: float, length_px: float, cells: int
) -> np.ndarray:
    """Share of each cell of one side that each pixel of a mask takes; [cells, pixels]."""
    edges = (np.arange(pixels + 1) * (photo_px / pixels) - start_px) * (cells / length_px)
    low = np.maximum(edges[:-1], np.arange(cells)[:, None])
    high = np.minimum(edges[1:], np.arange(cells)[:, None] + 1)
    overlaps: np.ndarray = np.maximum(high - low, 0.0)
    return overlaps


def cell_hits(mask: np.ndarray, geometry: Geometry, rows: int, columns: int) -> np.ndarray:
    """Whether the centre of each cell hits a mask; bool [rows, columns].

    The mask may have another size than the photo: the tolerance is in its pixels.
    """
    down = mask.shape[0] / geometry.photo_height_px
    across = mask.shape[1] / geometry.photo_width_px
    hits = np.zeros((rows, columns), bool)
    for row in range(rows):
        for column in range(columns):
            x0, y0, x1, y1 = geometry.cell_box_px(row, column, rows, columns)
            hits[row, column] = point_hits(mask, across * (x0 + x1) / 2, down * (y0 + y1) / 2)
    return hits


def point_hits(mask: np.ndarray, x_px: float, y_px: float) -> bool:
    """Whether a point lies within TOLERANCE_PX of the middle of a pixel of the mask."""
    # Only what is near can be: photos are large.
    top, left = max(0, int(y_px - TOLERANCE_PX) - 1), max(0, int(x_px - TOLERANCE_PX) - 1)
    bottom, right = int(y_px + TOLERANCE_PX) + 2, int(x_px + TOLERANCE_PX) + 2
    ys, xs = np.nonzero(mask[top : max(0, bottom), left : max(0, right)])
    distances = np.hypot(xs + left + 0.5 - x_px, ys + top + 0.5 - y_px)
    return bool((distances <= TOLERANCE_PX).any())


def summary(words: Sequence[GroundedWord]) -> dict[str, Any]:
    """Means over words with their 95 % intervals, and means by category, most frequent first.

    The intervals are of the percentile bootstrap over photos, whose words go together. No words,
    no means.
    """

    figures = [name + kind for name in FIGURES for kind in ("", "_uniform", "_centre")]

    def means(of: Sequence[GroundedWord]) -> dict[str, Any]:
        return {
            "num_words": len(of),
            **{name: float(np.mean([getattr(word, name) for word in of])) for name in figures},
        }

    if not words:
        return {"num_words": 0}
    by_category: dict[str, list[GroundedWord]] = {}
    for word in words:
        by_category.setdefault(word.category, []).append(word)
    ranked = sorted(by_category.items(), key=lambda entry: (-len(entry[1]), entry[0]))
    return {
        **means(words),
        "intervals": {name: _interval(words, name) for name in figures},
        "by_category": {name: means(of) for name, of in ranked},
    }


def _interval(words: Sequence[GroundedWord], figure: str) -> tuple[float, float]:
    by_photo: dict[int, list[float]] = {}
    for word in words:
        by_photo.setdefault(word.image, []).append(getattr(word, figure))
    return interval_of_mean(list(by_photo.values()))
