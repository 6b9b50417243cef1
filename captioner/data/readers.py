"""Reading captioned images: a split of a data set, or the sources of a training run.

Readers go by file names only; no image is opened.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from captioner.config import SourceConfig
from captioner.data.captioned import CaptionedImage, DataFiles, Split, with_words
from captioner.data.check import same_caption
from captioner.data.formats.table import misspelt_splits
from captioner.errors import DataError
from captioner.registry import DATA_FORMATS

if TYPE_CHECKING:
    from captioner.data.dataset import EncodedCaptions


def read_split(
    *,
    format: str,
    root: str | Path,
    split: str,
    file: str | Path | None = None,
    coco_splits: str | Path | None = None,
) -> Split:
    """Read one split, or several joined with "+" such as "train+restval", of a data set.

    Args:
        split: Name of the split; "val" of Flickr8k is its "dev".
        format, root, file, coco_splits: As in `DataFiles`.

    Raises:
        DataError: Something is missing, malformed or empty, or no image is on disk; one sentence
            that names the file and, where it has lines, the line.
    """
    data = DataFiles(format, root, file, coco_splits)
    named, wordless = with_words(_named_images(data, split))
    present = [image for image in named if image.path in data.existing]
    missing = [image.path for image in named if image.path not in data.existing]
    if not present:
        raise DataError(
            f"none of the {len(named)} images of split {split!r} is on disk, the first is expected "
            f"at {missing[0]}; put the images there or correct the data root"
        )
    return Split(
        images=[image for image in present if image.captions],
        missing=missing,
        uncaptioned=[image for image in present if not image.captions],
        wordless=wordless,
    )


def read_captions(data: DataFiles, split: str) -> list[str]:
    """Read all captions of a split, also of images that are not on disk; as `read_split`."""
    return [text for image in _named_images(data, split) for text in image.captions]


def read_references(data: DataFiles, split: str) -> list[CaptionedImage]:
    """Read the captioned images of a split, whether they are on disk or not; as `read_split`."""
    images, _ = with_words(_named_images(data, split))
    return [image for image in images if image.captions]


def _named_images(data: DataFiles, split: str) -> list[CaptionedImage]:
    """Return the images that the files of a split name."""
    root = data.root
    if data.format not in DATA_FORMATS:
        raise DataError(
            f"unknown data format {data.format!r}; use one of {', '.join(DATA_FORMATS)}"
        )
    if isinstance(root, str) and "://" in root:
        if data.format != "webdataset":
            raise DataError(
                f"{root}: format {data.format} reads folders of this machine alone; copy the data "
                "set, or write it as shards (captioner shards) and train from these"
            )
    elif not os.path.exists(root):  # Path.exists raises for some names
        raise DataError(f"there is no file or folder {root}; correct the path of the data")
    elif os.path.isfile(root) and (data.format != "table" or data.file is not None):
        raise DataError(f"the data root {root} is a file; name its folder as the root")
    splits = list(dict.fromkeys(name.strip() for name in split.split("+")))
    if not all(splits):
        raise DataError(
            f'{split!r} is no split name; give one such as "train", or several joined with "+"'
        )
    images: list[CaptionedImage] = DATA_FORMATS[data.format](data, splits)
    if not images:
        raise DataError(f"split {split!r} of {root} is empty; ask for another or fill it")
    return images


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
    val_share: float = 0.0,
    seed: int = 0,
    warn: Callable[[str], None] = lambda sentence: None,
) -> SourceImages:
    """Read the training and validation images of all sources.

    Args:
        sources: The data sets, as `captioner.config.data_sources` returns them.
        max_validation_images: Validate on this many first images of each source; None takes all.
        val_share: As in `captioner.config.DataConfig`.
        seed: Seed of the choice of the images that it holds back.
        warn: Receives a sentence for what is left out or is likely a mistake.

    Raises:
        DataError: A source cannot be read, or has no image to learn from or to validate on.
    """
    training: list[CaptionedImage] = []
    validation: list[tuple[str, list[CaptionedImage]]] = []
    for position, source in enumerate(sources):
        learned = held_back = None
        if source.train_split is not None:
            learned = _read_source(source, source.train_split, warn)
        if source.val_split is not None:
            held_back = _read_source(source, source.val_split, warn)
        usual = {source.train_split, source.val_split} <= {"train", "val", None}
        if source.format == "table" and usual:
            misspelt = misspelt_splits(Path(source.root), source.file)
            if misspelt:
                warn(f"{source.root}: {misspelt}")
        if val_share and learned is not None and learned == held_back:
            learned, held_back = _divided(learned, val_share, seed)
            warn(f"{source.root}: {len(held_back)} photos are held back for validation")
        training += [replace(image, source=position) for image in learned or []]
        if held_back is not None:
            members = held_back[:max_validation_images]
            validation.append((source.name, [replace(image, source=position) for image in members]))
    trained = {image.path for image in training}
    shared = sum(image.path in trained for _, images in validation for image in images)
    if shared:
        warn(
            f"{shared} of the validation photos are training photos too, so that validation "
            "metrics are too good; correct data.val_split"
        )
    return SourceImages(sources, training, validation)


def _divided(
    images: list[CaptionedImage], share: float, seed: int
) -> tuple[list[CaptionedImage], list[CaptionedImage]]:
    """Return the images without a random share of them, and that share.

    The share has at least two images, because CIDEr of a single one is always 0.
    """
    count = max(2, round(share * len(images)))
    if count >= len(images):
        raise DataError(
            f"{len(images)} photos are too few to learn from and to validate on; give at least 3"
        )
    order = np.random.default_rng(seed).permutation(len(images)).tolist()
    chosen, others = sorted(order[:count]), sorted(order[count:])
    return [images[index] for index in others], [images[index] for index in chosen]


def _read_source(
    source: SourceConfig, split_name: str, warn: Callable[[str], None]
) -> list[CaptionedImage]:
    """Return the captioned images of a split; warn of what is left out or likely a mistake."""
    split = read_split(
        format=source.format,
        root=source.root,
        split=split_name,
        file=source.file,
        coco_splits=source.coco_splits,
    )
    for sentence in split.left_out(split_name):
        warn(sentence)
    if repeated := same_caption(split.images):
        warn(f"{split_name}: {repeated}")
    if not split.images:
        raise DataError(f"{source.root}: no photo of split {split_name!r} has a caption to learn")
    return split.images


def captions_digest(images: Iterable[CaptionedImage]) -> str:
    """Return a hash of the images' sources, ids and captions, wherever the files lie."""
    facts = [[image.source, str(image.image_id), list(image.captions)] for image in images]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()
