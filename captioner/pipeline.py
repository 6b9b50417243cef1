"""Photo in, Caption out: the Python interface that commands and servers stand on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from PIL import Image

from captioner.checkpoint import MANIFEST, load_model
from captioner.config import ModelConfig
from captioner.data.transforms import open_photo
from captioner.data.vocabulary import Vocabulary, tokenize
from captioner.decoding import Hypothesis, score, search
from captioner.device import choose_device
from captioner.errors import CheckpointError, ConfigError, PhotoError
from captioner.grid import Caption, Geometry, Grid
from captioner.model import CaptionModel, photo_transform

MODELS = Path(__file__).parent / "models"
Photo: TypeAlias = "str | Path | bytes | Image.Image"


def bundled_models() -> list[str]:
    """Names of the models that ship in the package."""
    if not MODELS.is_dir():
        return []
    return sorted(folder.name for folder in MODELS.iterdir() if (folder / MANIFEST).is_file())


class Captioner:
    """A trained model with its vocabulary, preprocessing and search settings.

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
    ) -> None:
        self.device = torch.device(device)
        # The convolutions of a CPU are up to twice as fast on channels-last tensors.
        self.model = model.eval().to(self.device).to(memory_format=torch.channels_last)
        self.config = config
        self.vocabulary = vocabulary
        self.transform = photo_transform(config.preprocess)

    @classmethod
    def from_pretrained(cls, model: str | Path = "soft", *, device: str = "auto") -> Captioner:
        """Load a bundled model by its name, or a model folder (or a run's best) by its path.

        Raises:
            CheckpointError: there is no such model, or it is damaged.
            ConfigError: the device cannot be used.
        """
        chosen = choose_device(device)
        network, config, vocabulary = load_model(model_folder(model))
        return cls(network, config, vocabulary, chosen)

    def caption(
        self,
        photo: Photo,
        *,
        beam_size: int | None = None,
        max_words: int | None = None,
        length_penalty: float | None = None,
    ) -> Caption:
        """Caption one photo: a path, the bytes of a file, or a PIL image.

        Settings that are None are the model's own.

        Raises:
            PhotoError: the photo cannot be read.
            ConfigError: a setting that cannot be used.
        """
        return self.caption_batch(
            [photo], beam_size=beam_size, max_words=max_words, length_penalty=length_penalty
        )[0]

    def caption_batch(
        self,
        photos: Sequence[Photo],
        *,
        beam_size: int | None = None,
        max_words: int | None = None,
        length_penalty: float | None = None,
    ) -> list[Caption]:
        """Caption several photos at once; as `caption`, but faster."""
        decoding = self.config.decoding
        beam_size = decoding.beam_size if beam_size is None else beam_size
        max_words = decoding.max_words if max_words is None else max_words
        for name, value in (("beam_size", beam_size), ("max_words", max_words)):
            if value < 1:
                raise ConfigError(f"{name}: {value} is too small; use a whole number from 1 up")
        if not photos:
            return []
        grid, geometries = self._look(photos)
        found = search(
            self.model.decoder,
            grid,
            beam_size=beam_size,
            max_words=max_words,
            length_penalty=decoding.length_penalty if length_penalty is None else length_penalty,
            no_repeat_ngram=decoding.no_repeat_ngram,
        )
        return [
            self._caption(hypotheses[0], geometry, grid)
            for hypotheses, geometry in zip(found, geometries, strict=True)
        ]

    def score(self, photo: Photo, text: str) -> Caption:
        """Where the model looks while it reads a caption that you bring, and how likely it is.

        A word that the model does not know is read as `<unk>`, and its log-probability is that of
        any unknown word.

        Raises:
            PhotoError: the photo cannot be read.
            ConfigError: the text has no words.
        """
        words = tokenize(text)
        if not words:
            raise ConfigError(f"the caption {text!r} has no words; give at least one")
        grid, geometries = self._look([photo])
        hypothesis = score(self.model.decoder, grid, self.vocabulary.encode(words))
        return self._caption(hypothesis, geometries[0], grid, words)

    def _look(self, photos: Sequence[Photo]) -> tuple[Grid, list[Geometry]]:
        inputs, geometries = [], []
        for photo in photos:
            image = photo if isinstance(photo, Image.Image) else open_photo(photo)
            if image.mode != "RGB":
                raise PhotoError(f"is a PIL image of mode {image.mode}; convert it to RGB")
            pixels, geometry = self.transform(image)
            inputs.append(pixels)
            geometries.append(geometry)
        batch = torch.stack(inputs).to(self.device, memory_format=torch.channels_last)
        with torch.inference_mode():
            return self.model.encoder(batch), geometries

    def _caption(
        self,
        hypothesis: Hypothesis,
        geometry: Geometry,
        grid: Grid,
        words: list[str] | None = None,
    ) -> Caption:
        words = self.vocabulary.decode(hypothesis.tokens) if words is None else words
        return hypothesis.to_caption(words, geometry, height=grid.height, width=grid.width)


def model_folder(model: str | Path) -> Path:
    """Folder of a bundled model by name, of a model by path, or of a run's best model."""
    folder = Path(model)
    if isinstance(model, str) and model in bundled_models() and not folder.exists():
        return MODELS / model
    if not folder.exists() and folder.name == str(model):
        raise CheckpointError(
            f"there is no model '{model}'; the bundled ones are "
            f"{', '.join(bundled_models()) or 'none'}, or name a model folder"
        )
    if not (folder / MANIFEST).exists() and (folder / "best" / MANIFEST).exists():
        return folder / "best"
    return folder
