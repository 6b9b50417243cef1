"""The types that flow through the packages, and the legend of all tensor shapes.

Shape legend: B images in a batch, K hypotheses per image (beams, or 1), N captions in a training
batch, L grid cells (row-major, L = rows x columns), D feature size, H decoder size, A attention
size, E embedding size, V vocabulary, T words.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from captioner.config import HardAttentionMode


@dataclass(frozen=True)
class Geometry:
    """Which rectangle of the photo the network saw, so that grid cells go back to photo pixels.

    The network's input covers the rectangle (left_px, top_px, width_px, height_px) of the photo,
    in pixels of the photo after its EXIF orientation was applied. Squashing the whole photo gives
    (0, 0, photo width, photo height); a letterbox covers a rectangle larger than the photo, a crop
    a smaller one. `flipped` says that the input was mirrored left to right.
    """

    photo_width_px: int
    photo_height_px: int
    left_px: float
    top_px: float
    width_px: float
    height_px: float
    flipped: bool = False

    def scaled(self, photo_width_px: int, photo_height_px: int) -> Geometry:
        """Return the geometry for the photo in another size.

        >>> Geometry(200, 100, 50, 0, 100, 100).scaled(100, 50) == Geometry(100, 50, 25, 0, 50, 50)
        True
        """
        across = photo_width_px / self.photo_width_px
        down = photo_height_px / self.photo_height_px
        return replace(
            self,
            photo_width_px=photo_width_px,
            photo_height_px=photo_height_px,
            left_px=self.left_px * across,
            top_px=self.top_px * down,
            width_px=self.width_px * across,
            height_px=self.height_px * down,
        )

    def cell_box_px(
        self, row: int, column: int, rows: int, columns: int
    ) -> tuple[float, float, float, float]:
        """Return the box (x0, y0, x1, y1) of one grid cell in photo pixels.

        It may reach beyond the photo where the input was letterboxed.

        >>> Geometry(200, 100, 0, 0, 200, 100).cell_box_px(0, 1, rows=2, columns=4)
        (50.0, 0.0, 100.0, 50.0)
        """
        if self.flipped:
            column = columns - 1 - column
        cell_width, cell_height = self.width_px / columns, self.height_px / rows
        x0 = self.left_px + column * cell_width
        y0 = self.top_px + row * cell_height
        return (float(x0), float(y0), float(x0 + cell_width), float(y0 + cell_height))


@dataclass(frozen=True)
class Grid:
    """Annotation vectors a_i of a batch of images (Show, Attend and Tell, section 3.1.1).

    Args:
        features: [B, L, D], row-major, L = height x width, rows x columns.
        local: [B, L, D], the same cells before self-attention mixed them with each other; None
            where the encoder has no self-attention.
        seeds: int64 [B], by which hard attention draws in training which images take the
            expectation; without them none does.
        at_random: Attention ignores its scores and weighs all cells of the window alike, so that
            hard attention draws random cells: for training that compares with them.
    """

    features: Any  # tensors, or NumPy arrays where exported graphs compute
    height: int
    width: int
    local: Any = None
    seeds: Tensor | None = None
    at_random: bool = False

    def select(self, index: Any) -> Grid:
        """Return the grid of the images of `index`, [B'] or a slice."""
        parts = {name: getattr(self, name) for name in ("features", "local", "seeds")}
        return replace(self, **{n: x[index] for n, x in parts.items() if x is not None})


@dataclass(frozen=True)
class AttentionOutput:
    """Result of attending to the grid once, for B images and K hypotheses.

    Attributes:
        context: [B, K, D], the vector that the decoder receives (after the gate, once gated).
        weights: [B, K, L], the attention distribution over the cells; sums to 1.
        entropy: [B, K], entropy of the map in nats.
        log_prob: [B, K], log-probability of the sampled cell; zero where nothing is sampled.
        beta: [B, K], mean of the gate in [0, 1] (section 4.2.1); None before or without the gate.
        cells: [B, K] index of the sampled cell ([B, K, heads] with several heads); None for soft
            attention.
        heads: [B, K, layers, heads, L], the maps of all heads where there are several; `weights` is
            the mean of the last layer's.
    """

    context: Tensor
    weights: Tensor
    entropy: Tensor
    log_prob: Tensor
    beta: Tensor | None = None
    cells: Tensor | None = None
    heads: Tensor | None = None


# How hard attention chooses its cell outside of training, where it is not the model's own way. Per
# context and not per model: the threads of a server share the model.
given_mode: ContextVar[HardAttentionMode | None] = ContextVar("hard_attention_mode", default=None)


@contextmanager
def hard_attention_mode(at_test: HardAttentionMode | None) -> Iterator[None]:
    """Let all hard attention outside of training choose by `at_test`, in this thread's context.

    None is the model's own way.
    """
    token = given_mode.set(at_test)
    try:
        yield
    finally:
        given_mode.reset(token)
