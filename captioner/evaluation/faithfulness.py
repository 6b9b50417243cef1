"""Is attention faithful? Take away what it looks at, and see whether the word becomes less likely.

The deletion test (Petsiuk et al. 2018, "RISE", section 4.1; Jain and Wallace 2019 ask the question
of attention): for each word, cells are removed in the order of their attention, a growing share of
them, and the word's log-probability is read again, beside the same with cells in random order and
in the reverse order. Attention that matters makes the first fall fastest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image, ImageFilter

from captioner.evaluation.intervals import interval_of_mean
from captioner.generation import score
from captioner.models.decoders.base import Decoder
from captioner.types import Geometry, Grid

SHARES = (0.05, 0.1, 0.2, 0.4)
ORDERS = ("attention", "random", "reverse")


def removed_cells(attention: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Cells of one word to remove: bool [orders, shares, L]; at least one cell each.

    attention: [L]. Cells of equal attention are in random order.
    """
    cells = len(attention)
    shuffled = generator.permutation(cells)
    ranked = shuffled[np.argsort(-attention[shuffled], kind="stable")]
    removed = np.zeros((len(ORDERS), len(SHARES), cells), bool)
    for index, order in enumerate((ranked, generator.permutation(cells), ranked[::-1])):
        for share_index, share in enumerate(SHARES):
            removed[index, share_index, order[: max(1, round(share * cells))]] = True
    return removed


def deletion_in_grid(
    decoder: Decoder,
    grid: Grid,
    tokens: Sequence[int],
    maps: np.ndarray,
    generator: np.random.Generator,
) -> np.ndarray:
    """Remove cells from the grid: their features become the mean of the grid's.

    grid: of one photo; tokens: T word indices; maps: float [T, L], the attention of each word.

    Returns:
        Falls of the words' log-probability: float64 [orders, shares, T], in nats; more is a fall.
    """
    features = grid.features
    mean = features.mean(1, keepdim=True)

    def encode(removed: np.ndarray) -> Grid:
        gone = torch.from_numpy(removed).to(features.device)[..., None]  # [variants, L, 1]
        return Grid(torch.where(gone, mean, features), grid.height, grid.width)

    return _deletion(decoder, grid, tokens, maps, generator, encode)


def deletion_in_photo(
    decoder: Decoder,
    grid: Grid,
    tokens: Sequence[int],
    maps: np.ndarray,
    generator: np.random.Generator,
    *,
    photo: Image.Image,
    geometry: Geometry,
    encode: Callable[[list[Image.Image]], Grid],
) -> np.ndarray:
    """Remove cells from the photo, which is blurred where they lie, and encode it again.

    As `deletion_in_grid`; a cell's features also know of its surroundings, so this asks more.
    """
    cell_px = min(geometry.width_px / grid.width, geometry.height_px / grid.height)
    blurred = photo.filter(ImageFilter.GaussianBlur(cell_px))

    def encode_blurred(removed: np.ndarray) -> Grid:
        variants = []
        for cells in removed:
            variant = photo.copy()
            for row, column in np.argwhere(cells.reshape(grid.height, grid.width)):
                x0, y0, x1, y1 = geometry.cell_box_px(row, column, grid.height, grid.width)
                box = (
                    max(0, round(x0)),
                    max(0, round(y0)),
                    min(photo.width, round(x1)),
                    min(photo.height, round(y1)),
                )
                if box[0] < box[2] and box[1] < box[3]:
                    variant.paste(blurred.crop(box), box[:2])
            variants.append(variant)
        return encode(variants)

    return _deletion(decoder, grid, tokens, maps, generator, encode_blurred)


def _deletion(
    decoder: Decoder,
    grid: Grid,
    tokens: Sequence[int],
    maps: np.ndarray,
    generator: np.random.Generator,
    encode: Callable[[np.ndarray], Grid],
) -> np.ndarray:
    whole = score(decoder, grid, tokens)[0].log_probs
    falls = np.zeros((len(ORDERS), len(SHARES), len(tokens)))
    for position, attention in enumerate(maps):
        removed = removed_cells(attention, generator)
        # Later words say nothing of this one.
        read = score(decoder, encode(removed.reshape(-1, len(attention))), tokens[: position + 1])
        after = np.array([hypothesis.log_probs[-1] for hypothesis in read])
        falls[..., position] = (whole[position] - after).reshape(falls.shape[:2])
    return falls


def summary(deletions: Sequence[np.ndarray]) -> dict[str, object]:
    """Mean falls over all words of all deletions, one a photo: order -> one a share.

    intervals: the 95 % bootstrap interval of each, over photos. attention_beats_random: share of
    words whose mean fall is larger in the order of attention.
    """
    deletions = [each for each in deletions if each.shape[-1]]
    if not deletions:
        return {"num_words": 0}
    falls = np.concatenate(deletions, axis=-1)
    return {
        "num_words": falls.shape[-1],
        "shares": list(SHARES),
        **{order: falls[index].mean(-1).tolist() for index, order in enumerate(ORDERS)},
        "intervals": {
            order: [
                interval_of_mean([each[index, share] for each in deletions])
                for share in range(len(SHARES))
            ]
            for index, order in enumerate(ORDERS)
        },
        "attention_beats_random": float((falls[0].mean(0) > falls[1].mean(0)).mean()),
    }
