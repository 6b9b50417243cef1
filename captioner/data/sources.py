"""The captioned images of a training run, from one data set or several, and their hashes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from captioner.config.settings import SourceConfig
from captioner.data.captioned import CaptionedImage
from captioner.data.checks import caption_findings
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.data.splits import VAL_SHARE
from captioner.data.tokenizer import Tokenizer, WordTokenizer
from captioner.errors import DataError

if TYPE_CHECKING:
    from captioner.data.dataset import EncodedCaptions


@dataclass(frozen=True)
class SourceImages:
    """The images of all sources of a training run.

    Args:
        training: Training images of all sources; `CaptionedImage.source` is the position of the
            image's source in `sources`, and `image_id` is distinct within a source only.
        validation: For each source that is validated on, its name and its images.
    """

    sources: Sequence[SourceConfig]
    training: list[CaptionedImage]
    validation: list[tuple[str, list[CaptionedImage]]]

    @property
    def captions(self) -> list[str]:
        """The training captions of all sources."""
        return [caption for image in self.training for caption in image.captions]

    @property
    def source_of(self) -> np.ndarray:
        """int64 [images], the source of each training image."""
        return np.array([image.source for image in self.training], dtype=np.int64)

    @property
    def weights(self) -> list[float]:
        """For each source, the number of times that an epoch shows each of its images."""
        return [source.weight for source in self.sources]

    def loss_weights(self, captions: EncodedCaptions) -> np.ndarray | None:
        """Return float32 [C], the weights of the captions in the loss; None weighs all alike."""
        by_source = np.array([source.loss_weight for source in self.sources], dtype=np.float32)
        if (by_source == 1).all():
            return None
        weights: np.ndarray = by_source[self.source_of[captions.image_of]]
        return weights


def read_sources(
    sources: Sequence[SourceConfig],
    *,
    max_validation_images: int | None = None,
    val_share: float = VAL_SHARE,
    strip_markers: bool = False,
    max_words: int | None = None,
    tokenizer: Tokenizer | None = None,
    note: Callable[[str], None] = lambda sentence: None,
    warn: Callable[[str], None] = lambda sentence: None,
) -> SourceImages:
    """Read the training and validation images of all sources.

    Args:
        sources: The data sets, as `captioner.config.validation.data_sources` returns them.
        max_validation_images: Validate on this many first images of each source; None takes all.
        val_share, strip_markers, max_words: As in `captioner.config.settings.DataConfig`.
        tokenizer: How captions are split, to find those that will be cut.
        note: Receives a sentence for each source: what was recognised.
        warn: Receives a sentence for what is left out or would spoil training.

    Raises:
        DataError: A source cannot be read, or has no image to learn from or to validate on.
    """
    training: list[CaptionedImage] = []
    validation: list[tuple[str, list[CaptionedImage]]] = []
    for position, source in enumerate(sources):
        data = CaptionedData(
            DataFiles(
                source.format,
                source.root,
                source.file,
                source.coco_splits,
                source.image_column,
                source.caption_column,
                strip_markers,
            ),
            # Where nothing is validated on, everything is learned from.
            val_share=0.0 if source.val_split is None else val_share,
            divides_train=source.val_split is not None and source.val_split != source.train_split,
        )
        splits = {
            name: data.split(name)
            for name in dict.fromkeys((source.train_split, source.val_split))
            if name is not None
        }
        note(data.description())
        problems: dict[str, str] = {}
        for name, split in splits.items():
            problems |= {sentence: sentence for sentence in split.left_out(name)}
            cut = max_words if name == source.train_split else None
            for sentence in caption_findings(split, tokenizer or WordTokenizer(), cut):
                problems.setdefault(sentence, f"{name}: {sentence}")
        for sentence in problems.values():
            warn(sentence)
        images: dict[str | None, list[CaptionedImage]] = {}
        for name, split in splits.items():
            if not split.images:
                raise DataError(f"{source.root}: no photo of split {name!r} has a caption to learn")
            images[name] = [replace(image, source=position) for image in split.images]
        training += images.get(source.train_split, ())
        if source.val_split is not None:
            validation.append((source.name, images[source.val_split][:max_validation_images]))
    trained = {image.path for image in training}
    shared = sum(image.path in trained for _, images in validation for image in images)
    if shared:
        warn(
            f"{shared} of the validation photos are training photos too, so that validation "
            "metrics are too good; correct data.val_split"
        )
    return SourceImages(sources, training, validation)


def captions_digest(images: Iterable[CaptionedImage]) -> str:
    """Return a hash of the images' sources, ids and captions, wherever the files lie."""
    facts = [[image.source, str(image.image_id), list(image.captions)] for image in images]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
