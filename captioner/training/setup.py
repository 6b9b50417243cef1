"""Build from a recipe everything that the training loop works with."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from captioner.checkpoint import load_vocabulary, load_weights
from captioner.config.settings import Config
from captioner.config.validation import data_sources, unused_settings, validate
from captioner.data.captioned import CaptionedImage
from captioner.data.checks import OTHER_LANGUAGE, known_share
from captioner.data.dataset import CaptionBatches, CaptionDataset, EncodedCaptions, encode_captions
from captioner.data.feature_cache import FeatureCache, FeatureCrop, build_feature_cache
from captioner.data.images import open_image
from captioner.data.sources import SourceImages, captions_digest, read_sources
from captioner.data.transforms import Augmentation, ImageTransform, image_transform
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ConfigError, DataError, ImageError
from captioner.log import logger, progress_bar
from captioner.models.build import build_model, resolved
from captioner.models.model import CaptionModel
from captioner.registry import TASKS, TOKENIZERS
from captioner.runtime.distributed import rank
from captioner.training.pretrained import load_pretrained
from captioner.training.task import TaskData, TrainingTask

KNOWN_WORDS = 0.9  # below this share of known words the user is warned; rare words are less


@dataclass(frozen=True)
class Setup:
    """Everything that the training loop works with.

    Args:
        validation_sources: Validation images by source; their ids are distinct among all.
        data_digests: Hashes by name that tell these captions from others, wherever they lie.
    """

    config: Config
    vocabulary: Vocabulary
    task: TrainingTask
    dataset: CaptionDataset
    batches: CaptionBatches
    validation_sources: dict[str, list[CaptionedImage]]
    validation_transform: ImageTransform
    validation_cache: FeatureCache | None
    data_digests: dict[str, str]

    @property
    def validation(self) -> list[CaptionedImage]:
        """The validation images of all sources."""
        return [image for images in self.validation_sources.values() for image in images]


def prepare(
    config: Config,
    device: torch.device,
    start_from: Path | None = None,
    *,
    resume: bool = False,
) -> Setup:
    """Read the data, build the task, and fill the feature cache if one is asked for.

    Args:
        start_from: Verified model folder that the model begins with: its words and those of the
            training captions that it lacks, and its weights. They are loaded before the cache is
            filled with what the frozen weights compute.
        resume: `start_from` is a checkpoint of this run, whose vocabulary is complete.

    Raises:
        CaptionerError: Something cannot be used; one sentence says what.
    """
    validate(config)
    images, validation_sources = read_images(config)
    validation = [image for members in validation_sources.values() for image in members]
    vocabulary = build_vocabulary(config, images.captions, start_from, resume=resume)
    model = build_initial_model(config, vocabulary, images.captions, start_from, resume=resume)
    # Convolutions are up to twice as fast on channels-last tensors, on CPUs and GPUs.
    model = model.to(device).to(memory_format=torch.channels_last)
    config = resolved(config, model)
    captions = encode_captions(images.training, vocabulary, max_words=config.data.max_words)
    _check_words(config, captions, vocabulary, start_from)
    for sentence in unused_settings(config, captions=len(captions)):
        _warn(sentence)
    kind = next(kind for kind in TASKS.values() if kind.is_asked_for(config))
    task = kind.from_data(TaskData(config, model, vocabulary, images, device)).to(device)

    data = config.data
    augmentation = Augmentation(data.flip, data.min_area, data.colour)
    whole = config.preprocess
    views = replace(
        whole,
        height_px=round(whole.height_px * data.view_scale),
        width_px=round(whole.width_px * data.view_scale),
    )
    train_transform = image_transform(views, augmentation)
    validation_transform = image_transform(whole)
    cache = validation_cache = None
    if data.cache:  # all that can be wrong is found before the caches, which take long
        fill = partial(_cache, config, model, device)
        validation_cache = fill(validation, validation_transform, views=1)
        cache = fill(images.training, train_transform, views=data.cache_views)
    crop = FeatureCrop(data.cache_min_area, data.flip) if data.cache_min_area < 1 else None
    dataset = CaptionDataset(
        images.training,
        captions,
        train_transform,
        seed=config.train.seed,
        weights=images.loss_weights(captions),
        cache=cache,
        cache_crop=crop,
    )
    batches = CaptionBatches(
        captions,
        batch_size=data.batch_size,
        by=data.batch_by,
        seed=config.train.seed,
        source_of=images.source_of,
        weights=[source.weight for source in images.sources],
    )
    return Setup(
        config=config,
        vocabulary=vocabulary,
        task=task,
        dataset=dataset,
        batches=batches,
        validation_sources=validation_sources,
        validation_transform=validation_transform,
        validation_cache=validation_cache,
        data_digests={
            "training captions": captions_digest(images.training),
            "validation captions": captions_digest(validation),
        },
    )


def read_images(config: Config) -> tuple[SourceImages, dict[str, list[CaptionedImage]]]:
    """Read the images of all sources, and return the validation images by source.

    Raises:
        DataError: A source cannot be read, or none of its images.
        ConfigError: The validation metric cannot be computed on so few images.
    """
    images = read_sources(
        config.data, max_validation_images=config.train.val_photos, note=_note, warn=_warn
    )
    by_source = dict(images.validation)
    if len(by_source) > 1:  # ids are distinct within a source only
        by_source = {
            name: [replace(image, image_id=f"{name}/{image.image_id}") for image in members]
            for name, members in by_source.items()
        }
    _check_one_is_readable(images.training, "training")
    for members in by_source.values():
        _check_one_is_readable(members, "validation")
        if config.train.metric == "CIDEr" and len(members) == 1:
            raise ConfigError(
                "train.metric: CIDEr of a single validation photo is always 0; use Bleu_4 or "
                "ROUGE_L, or give more photos"
            )
    return images, by_source


def build_vocabulary(
    config: Config, captions: list[str], start_from: Path | None, *, resume: bool
) -> Vocabulary:
    """Return the words of the model to start from and those of the training captions."""
    min_count, max_size = config.data.min_count, config.data.vocabulary_size
    if resume and start_from is not None:
        return load_vocabulary(start_from)
    start = None
    if start_from is not None and config.train.start_with != "encoder":
        start = load_vocabulary(start_from)
        tokenizer = start.tokenizer
    else:
        chosen = TOKENIZERS[config.data.tokenizer]()
        tokenizer = chosen.fitted(captions, min_count=min_count, max_size=max_size)
    vocabulary = Vocabulary.build(
        captions,
        tokenizer,
        min_count=1 if tokenizer.is_learned else min_count,  # it has left rare ones out
        max_size=max_size,
    )
    if start:
        return start.extended(vocabulary)
    if not vocabulary.words:
        raise DataError(
            f"{_roots(config)}: no word occurs {min_count} times in the training captions; "
            "lower data.min_count"
        )
    return vocabulary


def build_initial_model(
    config: Config,
    vocabulary: Vocabulary,
    captions: list[str],
    start_from: Path | None,
    *,
    resume: bool,
) -> CaptionModel:
    """Build the model with the run's seed, and load the weights that it begins with.

    Raises:
        ConfigError: The decoder to start from is another; attention alone may begin anew.
    """
    torch.manual_seed(config.train.seed)
    model = build_model(config, len(vocabulary))
    if start_from is not None and resume:
        load_weights(model, start_from)
    elif start_from is not None and config.train.start_with != "vocabulary":
        only = "encoder." if config.train.start_with == "encoder" else ""
        report = load_pretrained(model, vocabulary, start_from, seed=config.train.seed, only=only)
        lacks = [n for n in report.left if re.match(r"decoder\.(?!attention\.)", n)]
        if lacks:
            raise ConfigError(
                f"train.start_from: {start_from} is of another architecture: it lacks {lacks[0]} "
                f"and {len(lacks) - 1} more weights of the decoder; use captioner finetune, which "
                "takes over its settings, or train.start_with encoder"
            )
        if not only:
            known = known_share(captions, load_vocabulary(start_from))
            if known < OTHER_LANGUAGE:
                _warn(
                    f"{start_from} knows {known:.0%} of the words of the captions, which look like "
                    "another language; to train a model of it: captioner train --config table"
                )
        for sentence in report.sentences():
            _warn(sentence)
    return model


def _check_words(
    config: Config, captions: EncodedCaptions, vocabulary: Vocabulary, start_from: Path | None
) -> None:
    """Refuse captions without a word that is known, and warn where many are unknown."""
    if not len(captions):
        raise DataError(f"{_roots(config)}: the training captions hold no words")
    start = None if config.train.start_with == "encoder" else start_from
    words = np.concatenate([target[:-1] for target in captions.targets])  # without the end token
    known = float((words != vocabulary.unknown).mean())
    if not known:
        raise DataError(
            f"train.start_from: {start} knows none of the words of the training captions; "
            "begin with a model of their language, or without one"
        )
    if known < KNOWN_WORDS:
        _warn(
            f"{start or 'data.min_count'}: the vocabulary knows {known:.0%} of the words of "
            "the training captions; the others are left unknown"
        )


def _check_one_is_readable(images: list[CaptionedImage], kind: str) -> None:
    """Refuse data without a readable image; usually the first image is readable."""
    reason = ""
    for image in images:
        try:
            open_image(image.path)
            return
        except ImageError as error:
            reason = f"{image.path}: {error}"
    raise DataError(f"none of the {kind} photos can be read ({reason}); check data.root")


def _cache(
    config: Config,
    model: CaptionModel,
    device: torch.device,
    images: list[CaptionedImage],
    transform: ImageTransform,
    *,
    views: int,
) -> FeatureCache:
    """Return the cache of the frozen features of these images, made where it is missing."""
    encoder = model.encoder.eval()
    if encoder.frozen_stages == 0:
        raise ConfigError(
            "data.cache: nothing is frozen to be cached; fine-tune from a later stage or leave "
            "data.cache out"
        )

    def encode(batch: Tensor) -> Tensor:
        return encoder.frozen_features(batch.to(device, memory_format=torch.channels_last))

    def progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    with progress_bar(desc="caching features", unit="photo", disable=rank() > 0) as bar:
        return build_feature_cache(
            Path(str(config.data.cache)),
            [image.path for image in images],
            transform,
            encode,
            fingerprint=encoder.backbone.fingerprint(encoder.frozen_stages),
            views=views,
            seed=config.train.seed,
            # On a CPU the encoder needs the cores; for a GPU they read as many images as they can.
            workers=min(1, config.data.workers) if device.type == "cpu" else config.data.workers,
            progress=progress,
        )


def _roots(config: Config) -> str:
    """Name where the training data lie."""
    return ", ".join(s.root for s in data_sources(config.data) if s.train_split is not None)


def _note(sentence: str) -> None:
    if rank() == 0:
        logger.info(sentence)


def _warn(sentence: str) -> None:
    if rank() == 0:  # the others find the same
        logger.warning(sentence)
