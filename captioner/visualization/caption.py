"""A caption with the attention to each word: its values, and the pictures of them."""

from __future__ import annotations

import html
import io
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from captioner.data.images import open_image, png, upright_rgb
from captioner.errors import CaptionerError, ConfigError, ImageError
from captioner.files import save_bytes
from captioner.types import Geometry
from captioner.visualization.sheet import attention_sheet, vector_sheet
from captioner.visualization.style import Style
from captioner.visualization.word_pictures import caption_gif

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from captioner.generation import Hypothesis

SUFFIXES = (".png", ".pdf", ".svg", ".gif", ".html", ".npz")


@dataclass(frozen=True, repr=False, eq=False)
class Caption:
    """A caption of one image with the attention to each word.

    Attributes:
        words: T words, without the start and end tokens.
        maps: float32 [T, rows, columns]; each sums to 1. Row-major cells of the network's input.
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
            on; None where it is not known. Pictures raise a CaptionerError without it.
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

    def __post_init__(self) -> None:
        if not self.text:
            object.__setattr__(self, "text", " ".join(self.words))

    @classmethod
    def from_hypothesis(
        cls,
        hypothesis: Hypothesis,
        words: list[str],
        geometry: Geometry,
        grid_shape: tuple[int, int],
        **more: Any,
    ) -> Caption:
        """Return a hypothesis as a caption; `more` are further fields, such as `image`."""
        maps, heads = hypothesis.maps, hypothesis.heads
        if heads is not None:
            heads = heads.reshape(*heads.shape[:-1], *grid_shape).astype(np.float32)
        return cls(
            words=words,
            maps=maps.reshape(len(words), *grid_shape).astype(np.float32),
            beta=hypothesis.beta,
            log_probs=hypothesis.log_probs,
            geometry=geometry,
            end_log_prob=hypothesis.end_log_prob,
            cells=hypothesis.cells,
            heads=heads,
            **more,
        )

    @property
    def is_unsure(self) -> bool:
        """Whether its confidence is below its model's threshold, where it has both."""
        confidence, threshold = self.confidence, self.confidence_threshold
        return confidence is not None and threshold is not None and confidence < threshold

    @property
    def confidence_digits(self) -> list[str]:
        """Its confidence and threshold to two places, or three where an unsure one needs them."""
        values = [x for x in (self.confidence, self.confidence_threshold) if x is not None]
        shown = [f"{value:.2f}" for value in values]
        is_same = self.is_unsure and shown[0] == shown[1]
        return [f"{value:.3f}" for value in values] if is_same else shown

    @property
    def log_prob(self) -> float:
        """Log-probability of the whole caption, in nats, its end included where it has one."""
        return float(self.log_probs.sum()) + (self.end_log_prob or 0.0)

    def of_head(self, layer: int | None = None, head: int | None = None) -> Caption:
        """Return the caption with the maps of one layer and head, both counted from 1.

        layer None is the last; head None is the mean of its heads. Cells and paths are the last's.
        """
        layers, heads = (1, 1) if self.heads is None else self.heads.shape[1:3]
        check_head(layer, head, layers, heads)
        if self.heads is None or (layer is None and head is None):
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

    def save(self, path: str | Path, style: Style = None) -> None:
        """Draw the caption with its attention maps and write it to a file.

        Args:
            path: Its suffix says what is drawn: .png, .pdf or .svg the attention sheet, .gif an
                animation, .html a page to explore, .npz the raw maps.
            style: How attention is shown; None is the default style.
        """
        path = Path(path)
        save_bytes(self.picture_bytes(path.suffix[1:].lower(), style, name=path.stem), path)

    def picture_bytes(
        self, kind: str, style: Style = None, *, name: str = "photo", model: str = "caption"
    ) -> bytes:
        """Return a picture of the caption with its attention maps as the bytes of a file.

        Args:
            kind: png, pdf, svg (a sheet), gif (word after word), html (the viewer) or npz (maps).
            name, model: Names of the photo and of the model, in a page.
        """
        if f".{kind}" not in SUFFIXES:
            raise CaptionerError(
                f"{name}.{kind}: cannot be saved; use a name that ends in {', '.join(SUFFIXES)}"
            )
        if kind == "npz":
            values = {field.name: getattr(self, field.name) for field in fields(self)}
            values |= {**asdict(self.geometry), "geometry": None, "image": None}
            arrays = {name: np.asarray(x) for name, x in values.items() if x is not None}
            arrays["words"] = np.array(self.words, dtype=np.str_)
            file = io.BytesIO()
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
            return file.getvalue()
        image = self._upright_image()
        if kind == "gif":
            return caption_gif(image, self, style)
        if kind == "html":
            from captioner.visualization.page import caption_page

            page = caption_page(image, [(model, self)], name=name, style=style)
            return page.encode(errors="replace")
        if kind in ("pdf", "svg"):
            return vector_sheet(image, [("", self)], style).to_bytes(kind)
        return png(attention_sheet(image, self, style))

    def show(self, style: Style = None) -> None:
        """Show the attention sheet: in the notebook, or in the system's image viewer."""
        sheet = attention_sheet(self._upright_image(), self, style)
        display = sys.modules.get("IPython.display")  # loaded wherever it can display anything
        if display is not None and sys.modules["IPython"].get_ipython() is not None:
            display.display(sheet)
        else:
            sheet.show()

    def figure(self, style: Style = None) -> Figure:
        """Return the attention sheet as a matplotlib figure, which needs no display."""
        return vector_sheet(self._upright_image(), [("", self)], style).figure

    def _repr_html_(self) -> str | None:
        """Return the page to explore in a frame, for notebooks; None without an image."""
        if self.image is None:
            return None
        page = self.picture_bytes("html").decode()
        height = 620 if self.geometry.photo_width_px >= self.geometry.photo_height_px else 760
        return (
            f'<iframe srcdoc="{html.escape(page)}" title="{html.escape(self.text)}" '
            f'sandbox="allow-scripts" style="border: 0; height: {height}px; width: 100%"></iframe>'
        )

    def _repr_png_(self) -> bytes | None:
        """Return the attention sheet, for notebooks without HTML; None without an image."""
        return None if self.image is None else self.picture_bytes("png")

    def _upright_image(self) -> Image.Image:
        """Return the image, upright in RGB; a CaptionerError without one that can be read."""
        if self.image is None:
            raise CaptionerError(
                "the caption has no image to draw on: caption a photo or an image, or set it by "
                "dataclasses.replace(caption, image=...)"
            )
        if isinstance(self.image, Image.Image):
            return upright_rgb(self.image)  # as it was captioned
        try:
            return open_image(self.image)
        except ImageError as error:
            where = "" if isinstance(self.image, bytes) else f"{self.image}: "
            raise ImageError(f"{where}{error}") from None

    def __repr__(self) -> str:
        return f"Caption({self.text!r}, {len(self.words)} words)"

    def to_dict(self, *, maps: bool = False) -> dict[str, Any]:
        """Return plain values for JSON, rounded to six places; all programs and pages use them.

        The keys are caption, words, log_probs, end_log_prob, beta and confidence, with a calibrator
        confidence_threshold, and for hard attention cells and paths. With `maps`, also maps (T x
        rows x columns), where there are several heads (T x layers x heads x rows x columns), and
        geometry, by which a page lays them on the photo.
        """

        def plain(name: str) -> Any:
            value = getattr(self, name)
            if not isinstance(value, np.ndarray):
                return None if value is None else round(value, 6)
            exact = value if value.dtype.kind == "i" else value.astype(np.float64)
            return exact.round(6).tolist()

        content: dict[str, Any] = {"caption": self.text, "words": self.words}
        always = ("log_probs", "end_log_prob", "beta", "confidence")
        content |= {each: plain(each) for each in always}
        more = ("confidence_threshold", "cells", "paths", *(("maps", "heads") if maps else ()))
        content |= {each: plain(each) for each in more if getattr(self, each) is not None}
        if maps:
            content["geometry"] = asdict(self.geometry)
        return content


def check_head(layer: int | None, head: int | None, layers: int, heads: int) -> None:
    """Check a layer and a head, counted from 1, against a model's number of them."""
    for name, number, count in (("layer", layer, layers), ("head", head, heads)):
        if number is not None and not 1 <= number <= count:
            raise ConfigError(f"there is no {name} {number}: the highest of this model is {count}")


def caption_from_arrays(arrays: Mapping[str, np.ndarray]) -> Caption:
    """Return the caption of an .npz file; those of earlier versions lack text and confidence."""
    # An array without dimensions is a number or a text.
    values: dict[str, Any] = {name: a if a.ndim else a.item() for name, a in arrays.items()}
    geometry = Geometry(**{field.name: values[field.name] for field in fields(Geometry)})
    values |= {"geometry": geometry, "words": arrays["words"].tolist()}
    known = {field.name: values[field.name] for field in fields(Caption) if field.name in values}
    return Caption(**{"beta": None, **known})
