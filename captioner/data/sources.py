"""The captioned images of a training run, from one data set or several, and their hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from captioner.config.settings import DataConfig, SourceConfig
from captioner.config.validation import data_sources
from captioner.data.checks import caption_findings
from captioner.data.dataset import EncodedCaptions
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.splits import CaptionedImage
from captioner.data.vocabulary import Tokenizer
from captioner.errors import DataError
from captioner.log import logger
from captioner.registry import TOKENIZERS


@dataclass(frozen=True)
class SourceImages:
    """The images of all sources of a training run.

    Args:
        training: Training images of all sources; `CaptionedImage.source` is the position of the
            image's source in `sources`, and `image_id` is distinct within a source only.
        validation: By name, the images of each source that is validated on, with distinct ids.
    """

    sources: Sequence[SourceConfig]
    training: list[CaptionedImage]
    validation: dict[str, list[CaptionedImage]]

    @property
    def source_of(self) -> np.ndarray:
        """int64 [images], the source of each training image."""
        return np.array([image.source for image in self.training], dtype=np.int64)

    def loss_weights(self, captions: EncodedCaptions) -> np.ndarray | None:
        """Return float32 [C], the weights of the captions in the loss; None weighs all alike."""
        by_source = np.array([source.loss_weight for source in self.sources], dtype=np.float32)
        return None if (by_source == 1).all() else by_source[self.source_of[captions.image_of]]


def read_sources(data: DataConfig, *, max_validation_images: int | None = None) -> SourceImages:
    """Read the training and validation images of all sources of a recipe.

    The log says what was recognised, what is left out, and what would spoil training. Of each
    source, the first `max_validation_images` are validated on; None takes all.
    """
    sources = data_sources(data)
    tokenizer: Tokenizer = TOKENIZERS[data.tokenizer]()
    training: list[CaptionedImage] = []
    validation: dict[str, list[CaptionedImage]] = {}
    for position, source in enumerate(sources):
        settings = vars(data) | vars(source)
        place = {field.name: settings[field.name] for field in fields(DataFiles)}
        validated = source.val_split is not None
        found = CaptionedData(
            DataFiles(**place),
            val_share=data.val_share if validated else 0.0,  # else everything is learned from
            val_split=source.val_split,
        )
        problems: list[str] = []
        images: dict[str | None, list[CaptionedImage]] = {}
        for name in dict.fromkeys(filter(None, (source.train_split, source.val_split))):
            split = found.split(name)
            cut = data.max_words if name == source.train_split else None
            found_in_captions = caption_findings(split, tokenizer, cut)
            problems += [*split.left_out(name), *(f"{name}: {each}" for each in found_in_captions)]
            images[name] = [replace(image, source=position) for image in split.images]
        logger.info(found.description())
        for sentence in dict.fromkeys(problems):  # those of a file come with each of its splits
            logger.warning(sentence)
        if empty := [name for name, members in images.items() if not members]:
            raise DataError(f"{source.root}: no photo of split {empty[0]!r} has a caption to learn")
        training += images.get(source.train_split, ())
        if validated:
            validation[source.name] = images[source.val_split][:max_validation_images]
    trained = {image.path for image in training}
    shared = sum(image.path in trained for images in validation.values() for image in images)
    if shared:
        logger.warning(
            f"{shared} of the validation photos are training photos too, so that validation "
            "metrics are too good; correct data.val_split, or give more photos"
        )
    if len(validation) > 1:  # ids are distinct within a source only
        for name, members in validation.items():
            validation[name] = [replace(i, image_id=f"{name}/{i.image_id}") for i in members]
    return SourceImages(sources, training, validation)


def captions_digest(images: Iterable[CaptionedImage]) -> str:
    """Return a hash of the images' sources, ids and captions, wherever the files lie."""
    facts = [[image.source, str(image.image_id), list(image.captions)] for image in images]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
