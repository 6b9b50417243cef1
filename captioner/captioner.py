"""Photo in, Caption out: the Python interface that commands and servers stand on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeAlias, get_args

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from captioner.checkpoint import load_model, model_folder
from captioner.config import ModelConfig, check_search
from captioner.data.transforms import open_image
from captioner.data.vocabulary import Vocabulary, tokenize
from captioner.errors import ConfigError, ImageError
from captioner.generation import Hypothesis, score, search
from captioner.models.attention import hard_attention_mode
from captioner.models.attention.select import AtTest
from captioner.models.build import CaptionModel, image_transform
from captioner.runtime.device import choose_device
from captioner.runtime.parallel import prefetch
from captioner.types import Caption, Geometry, Grid

Precision = Literal["float32", "bfloat16"]

# A path, the bytes of a file, a PIL image, or what `Captioner.transform` made of one.
Photo: TypeAlias = "str | Path | bytes | Image.Image | tuple[Tensor, Geometry]"


class Captioner:
    """A trained model with its vocabulary, preprocessing and search settings.

    It makes the model its own: in evaluation mode, its batch norms folded into its
    convolutions, and on a CPU in oneDNN's own order.

    >>> captioner = Captioner.from_pretrained()  # doctest: +SKIP
    >>> captioner.caption("photo.jpg").text  # doctest: +SKIP
    'two dogs run through the snow'
    """

    def __init__(
        self,
        model: CaptionModel,
        config: ModelConfig,
        vocabulary: Vocabulary,
        device: torch.device | str = "cpu",
        precision: Precision = "float32",
    ) -> None:
        """precision: what the encoder, most of the work, computes in; the decoder in float32."""
        if precision not in get_args(Precision):
            raise ConfigError(f"precision: '{precision}' is not accepted; use float32 or bfloat16")
        self.device = torch.device(device)
        self.dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
        self.model = model.inference_copy(self.device, self.dtype)
        self.config = config
        self.vocabulary = vocabulary
        self.transform = image_transform(config.preprocess)

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = "soft",
        *,
        device: str = "auto",
        precision: Precision = "float32",
    ) -> Captioner:
        """Load a bundled model by its name, or a model folder (or a run's best) by its path.

        A string that names a bundled model is that model, even where a folder has the same name;
        a Path is always a path. precision: the encoder's; bfloat16 is about twice as fast on
        CPUs that have it (AVX-512 BF16), and about one caption in five is then another.

        Raises:
            CheckpointError: there is no such model, or it is damaged.
            ConfigError: the device cannot be used, or there is no such precision.
        """
        chosen = choose_device(device)
        network, config, vocabulary = load_model(model_folder(model))
        return cls(network, config, vocabulary, chosen, precision)

    def caption(
        self,
        photo: Photo,
        *,
        beam_size: int | None = None,
        max_words: int | None = None,
        length_penalty: float | None = None,
        at_test: AtTest | None = None,
        paths: int = 0,
    ) -> Caption:
        """Caption one photo: a path, the bytes of a file, or a PIL image.

        Settings that are None are the model's own. at_test: how hard attention looks. paths: with
        hard attention, also sample so many ways of looking while the caption is read again.

        Raises:
            ImageError: the photo cannot be read.
            ConfigError: a setting that cannot be used.
        """
        return self.caption_batch(
            [photo],
            beam_size=beam_size,
            max_words=max_words,
            length_penalty=length_penalty,
            at_test=at_test,
            paths=paths,
        )[0]

    def caption_batch(
        self,
        photos: Sequence[Photo],
        *,
        beam_size: int | None = None,
        max_words: int | None = None,
        length_penalty: float | None = None,
        at_test: AtTest | None = None,
        paths: int = 0,
    ) -> list[Caption]:
        """Caption several photos at once; as `caption`, but faster."""
        found = self.n_best(
            photos,
            1,
            beam_size=beam_size,
            max_words=max_words,
            length_penalty=length_penalty,
            at_test=at_test,
            paths=paths,
        )
        return [captions[0] for captions in found]

    def n_best(
        self,
        photos: Sequence[Photo],
        count: int,
        *,
        beam_size: int | None = None,
        max_words: int | None = None,
        length_penalty: float | None = None,
        at_test: AtTest | None = None,
        paths: int = 0,
    ) -> list[list[Caption]]:
        """For each photo the `count` captions that the search ranks highest, best first.

        The first is that of `caption_batch`. Fewer where the search found fewer: it never finds
        more than `beam_size`.

        Raises:
            ImageError: a photo cannot be read.
            ConfigError: a setting that cannot be used; count below 1.
        """
        if count < 1:
            raise ConfigError(f"count: {count} is too small; use a whole number from 1 up")
        own = self.config.decoding
        decoding = replace(
            own,
            beam_size=own.beam_size if beam_size is None else beam_size,
            max_words=own.max_words if max_words is None else max_words,
            length_penalty=own.length_penalty if length_penalty is None else length_penalty,
        )
        check_search(decoding)
        if not photos:
            return []
        grid, geometries = self.encode(photos)
        with self.looking(at_test):
            found = search(self.model.decoder, grid, **vars(decoding))
        results = []
        for index, (hypotheses, geometry) in enumerate(zip(found, geometries, strict=True)):
            captions = [self._caption(h, geometry, grid) for h in hypotheses[:count]]
            if paths:
                photo = grid.select(slice(index, index + 1))
                captions = [
                    replace(caption, paths=self._paths(photo, h.tokens, paths))
                    for caption, h in zip(captions, hypotheses, strict=False)
                ]
            results.append(captions)
        return results

    def score(
        self, photo: Photo, text: str, *, at_test: AtTest | None = None, paths: int = 0
    ) -> Caption:
        """Where the model looks while it reads a caption that you bring, and how likely it is.

        A word that the model does not know is read as `<unk>`, and its log-probability is that of
        any unknown word.

        Raises:
            ImageError: the photo cannot be read.
            ConfigError: the text has no words.
        """
        words = tokenize(text)
        if not words:
            raise ConfigError(f"the caption {text!r} has no words; give at least one")
        tokens = self.vocabulary.encode(words)
        grid, geometries = self.encode([photo])
        with self.looking(at_test):
            hypothesis = score(self.model.decoder, grid, tokens)[0]
        caption = self._caption(hypothesis, geometries[0], grid, words)
        return replace(caption, paths=self._paths(grid, tokens, paths)) if paths else caption

    @property
    def looks_hard(self) -> bool:
        """Whether its attention is hard: `at_test` and `paths` are for such models only."""
        return self.config.attention.select == "hard"

    def looking(self, at_test: AtTest | None) -> AbstractContextManager[None]:
        """Return a context in which hard attention is in this mode; None is the model's own."""
        if at_test is None:
            return nullcontext()
        return hard_attention_mode(self.model.decoder, at_test)

    def _paths(self, grid: Grid, tokens: list[int], count: int) -> np.ndarray:
        """Cells [count, T] (of several heads: [count * heads, T]) of sampled ways of looking."""
        with self.looking("sample"):
            readings = score(self.model.decoder, grid, tokens, times=count)
        cells = [np.atleast_2d(h.cells.T) for h in readings if h.cells is not None]
        return np.concatenate(cells)

    def encode(self, photos: Sequence[Photo]) -> tuple[Grid, list[Geometry]]:
        """The grids of B photos, and how each leads back to its photo's pixels.

        Raises:
            ImageError: a photo cannot be read.
        """
        ready = all(isinstance(photo, tuple) for photo in photos)  # as a server's are
        read = list(
            map(self._input, photos) if ready else prefetch(self._input, photos, self.device)
        )
        batch = torch.stack([pixels for pixels, _ in read])
        batch = batch.to(self.device, self.dtype, memory_format=torch.channels_last)
        with torch.inference_mode():
            grid = self.model.encoder(batch).float()
        return grid, [geometry for _, geometry in read]

    def _input(self, photo: Photo) -> tuple[Tensor, Geometry]:
        if isinstance(photo, tuple):
            if not photo[0].isfinite().all():  # oneDNN's ReLU6 would make zeros of it
                raise ImageError("has pixels that are not finite; make it by Captioner.transform")
            return photo
        image = photo if isinstance(photo, Image.Image) else open_image(photo)
        if image.mode != "RGB":
            raise ImageError(f"is a PIL image of mode {image.mode}; convert it to RGB")
        return self.transform(image)

    def _caption(
        self,
        hypothesis: Hypothesis,
        geometry: Geometry,
        grid: Grid,
        words: list[str] | None = None,
    ) -> Caption:
        words = self.vocabulary.decode(hypothesis.tokens) if words is None else words
        return hypothesis.to_caption(words, geometry, height=grid.height, width=grid.width)
