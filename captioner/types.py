"""The types that flow through the packages, and the legend of all tensor shapes.

Shape legend: B images in a batch, K hypotheses per image (beams, or 1), N captions in a training
batch, L grid cells (row-major, L = rows x columns), D feature size, H decoder size, A attention
size, E embedding size, V vocabulary, T words.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from captioner.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image
    from torch import Tensor

    from captioner.visualization.style import OverlayStyle


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
        features: [B, L, D], row-major, L = height x width.
        height: Rows of cells.
        width: Columns of cells.
        local: [B, L, D], the same cells before self-attention mixed them with each other; None
            where the encoder has no self-attention.
        seeds: int64 [B], of what hard attention draws for each image in training; None draws from
            PyTorch's own generator.
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
        return replace(
            self,
            features=self.features[index],
            local=None if self.local is None else self.local[index],
            seeds=None if self.seeds is None else self.seeds[index],
        )

    def float(self) -> Grid:
        """Return the grid in float32."""
        return replace(
            self,
            features=self.features.float(),
            local=None if self.local is None else self.local.float(),
        )


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


@dataclass(frozen=True, repr=False, eq=False)
class Caption:
    """A caption of one image with the attention to each word.

    Attributes:
        words: T words, without the start and end tokens.
        maps: float32 [T, rows, columns]; each map sums to 1. Row-major cells of the network's
            input.
        beta: float32 [T], the gate's mean for each word; None where the decoder has no gate.
        log_probs: float32 [T], natural log-probability of each word given the ones before.
        end_log_prob: Log-probability of ending there; None if the search was cut off before.
        cells: int [T] ([T, heads] with several heads), cell that hard attention chose for each
            word, else None.
        heads: float32 [T, layers, heads, rows, columns], all maps where there are several heads.
        paths: int [M, T], cells of M sampled attention paths for the same words, or None. With
            several heads each sample has a path of every head, in their order.
        geometry: Carries cells back to pixels of the original photo.
        confidence: Probability in [0, 1] that the caption is right; None without a calibrator.
        confidence_threshold: The caption is unsure below this; None without a calibrator.
        image: What was captioned (a path, the bytes of a file, or a PIL image), to draw pictures
            on; None where it is not known.
    """

    words: list[str]
    maps: np.ndarray
    beta: np.ndarray | None
    log_probs: np.ndarray
    geometry: Geometry
    end_log_prob: float | None = None
    cells: np.ndarray | None = None
    heads: np.ndarray | None = None
    paths: np.ndarray | None = None
    confidence: float | None = None
    confidence_threshold: float | None = None
    text: str = ""
    image: str | Path | bytes | Image.Image | None = None

    # The functions that draw captions; set by captioner.visualization, which stands above.
    drawing: ClassVar[ModuleType]

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", " ".join(self.words))
        count = len(self.words)
        for name in ("maps", "beta", "log_probs", "cells", "heads"):
            values = getattr(self, name)
            if values is not None and len(values) != count:
                raise ValueError(f"{count} words with {len(values)} {name}")

    @property
    def is_unsure(self) -> bool:
        """Whether its confidence is below its model's threshold, where it has both."""
        confidence, threshold = self.confidence, self.confidence_threshold
        return confidence is not None and threshold is not None and confidence < threshold

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole caption, in nats, its end included where it has one."""
        return float(self.log_probs.sum()) + (self.end_log_prob or 0.0)

    def of_head(self, layer: int | None = None, head: int | None = None) -> Caption:
        """Return the caption with the maps of one layer and head, both counted from 1.

        layer None is the last; head None is the mean of its heads. Cells and paths belong to the
        last layer.

        Raises:
            ConfigError: There is no such layer or head.
        """
        layers, heads = (1, 1) if self.heads is None else self.heads.shape[1:3]
        check_head(layer, head, layers, heads)
        if self.heads is None:
            return self
        maps = self.heads[:, (layer or layers) - 1]  # [T, heads, rows, columns]
        cells, paths = (self.cells, self.paths) if layer in (None, layers) else (None, None)
        if head is None:
            return replace(self, maps=maps.mean(1), cells=cells, paths=paths)
        if cells is not None and cells.ndim == 2:
            cells = cells[:, head - 1]
        if paths is not None:
            paths = paths[head - 1 :: heads]
        return replace(self, maps=maps[:, head - 1], cells=cells, paths=paths)

    def save(self, path: str | Path, style: OverlayStyle | str | None = None) -> None:
        """Draw the caption with its attention maps and write it to a file.

        Args:
            path: Its suffix says what is drawn: .png, .pdf or .svg the attention sheet, .gif an
                animation, .html a page to explore, .npz the raw maps.
            style: How attention is shown; None is the default style.

        Raises:
            CaptionerError: The caption has no image, the suffix is another, or the file cannot be
                written.
        """
        self.drawing.save_caption(self, path, style)

    def show(self, style: OverlayStyle | str | None = None) -> None:
        """Show the attention sheet: in the notebook, or in the system's image viewer."""
        self.drawing.show_caption(self, style)

    def figure(self, style: OverlayStyle | str | None = None) -> Figure:
        """Return the attention sheet as a matplotlib figure."""
        return self.drawing.caption_figure(self, style)

    def _repr_html_(self) -> str | None:
        """Return the page to explore, for notebooks; None without an image."""
        return None if self.image is None else self.drawing.caption_html(self)

    def _repr_png_(self) -> bytes | None:
        """Return the attention sheet, for notebooks without HTML; None without an image."""
        return None if self.image is None else self.drawing.picture_bytes(self, "png")

    def __repr__(self) -> str:
        return f"Caption({self.text!r}, {len(self.words)} words)"

    def to_dict(self, *, maps: bool = False) -> dict[str, Any]:
        """Return plain values for JSON, rounded to six places; all programs and pages use them.

        The keys are caption, words, log_probs, end_log_prob, beta and confidence, with a calibrator
        confidence_threshold, and for hard attention cells and paths.

        Args:
            maps: Also `maps` (T x rows x columns), where there are several `heads` (T x layers x
                heads x rows x columns), and `geometry`, by which a page lays them on the photo.
        """
        content: dict[str, Any] = {
            "caption": self.text,
            "words": self.words,
            "log_probs": _rounded(self.log_probs),
            "end_log_prob": None if self.end_log_prob is None else round(self.end_log_prob, 6),
            "beta": None if self.beta is None else _rounded(self.beta),
            "confidence": None if self.confidence is None else round(self.confidence, 6),
        }
        if self.confidence_threshold is not None:
            content["confidence_threshold"] = round(self.confidence_threshold, 6)
        for name in ("cells", "paths"):
            if getattr(self, name) is not None:
                content[name] = getattr(self, name).tolist()
        if maps:
            content["maps"] = _rounded(self.maps)
            if self.heads is not None:
                content["heads"] = _rounded(self.heads)
            content["geometry"] = asdict(self.geometry)
        return content


def check_head(layer: int | None, head: int | None, layers: int, heads: int) -> None:
    """Check a layer and a head, counted from 1, against a model's number of them.

    Raises:
        ConfigError: There is no such layer or head.
    """
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 1 <= number <= count:
            raise ConfigError(
                f"there is no {name} {number}: this model has {layers} attention "
                f"{'layer' if layers == 1 else 'layers'} of {heads} "
                f"{'head' if heads == 1 else 'heads'}; use 1 to {count}"
            )


def _rounded(values: np.ndarray) -> list[Any]:
    return values.astype(np.float64).round(6).tolist()
