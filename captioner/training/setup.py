"""Build from a recipe everything that the training loop works with."""

from __future__ import annotations

import functools
import os
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from captioner.checkpoint import load_vocabulary, load_weights, model_folder, verify
from captioner.config.settings import Config, DataConfig
from captioner.config.validation import data_sources, unused_settings, validate
from captioner.data.augmentation import Augmentation
from captioner.data.dataset import CaptionBatches, CaptionDataset, EncodedCaptions, encode_captions
from captioner.data.feature_cache import FeatureCache, build_feature_cache, crop_features
from captioner.data.images import open_image
from captioner.data.sources import captions_digest, read_sources
from captioner.data.splits import CaptionedImage
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError, ConfigError, DataError, ImageError
from captioner.log import logger
from captioner.models.build import build_model, resolved
from captioner.models.model import CaptionModel
from captioner.registry import TASKS, TOKENIZERS
from captioner.runtime.parallel import available_cores
from captioner.training.pretrained import load_pretrained
from captioner.training.task import TrainingTask
from captioner.training.validation import ValidationData

MOST_READING = 16  # processes that read images for a GPU: more than an H200 needs
SHARED_MEMORY, READING_BYTES = Path("/dev/shm"), 64 << 20  # bytes that each may fill
OTHER_LANGUAGE = 0.6  # share of words that a model knows, below which they are of another language
KNOWN_WORDS = 0.9  # below this share of known words the user is warned; rare words are less


@dataclass(frozen=True)
class Setup:
    """Everything that the training loop works with."""

    config: Config
    vocabulary: Vocabulary
    task: TrainingTask
    dataset: CaptionDataset
    batches: CaptionBatches
    validation: ValidationData
    data_digests: dict[str, str]  # tell these captions from others, wherever they lie


def prepare(config: Config, device: torch.device, checkpoint: Path | None = None) -> Setup:
    """Read the data, build the task, and fill the feature cache if one is asked for.

    Without a verified checkpoint to resume from, the run begins as `train.start_from` says.
    """
    validate(config)
    start = None
    if checkpoint is None and config.train.start_from is not None:
        try:
            start = model_folder(config.train.start_from)
            verify(start)
        except CheckpointError as error:
            raise CheckpointError(
                f"train.start_from: {error}; train that first, or name another model"
            ) from None
    images = read_sources(config.data, max_validation_images=config.train.val_photos)
    for members in (images.training, *images.validation.values()):
        _check_one_is_readable(members)
    if config.train.metric == "CIDEr" and any(len(i) == 1 for i in images.validation.values()):
        raise ConfigError(
            "train.metric: CIDEr of a single validation photo is always 0; use Bleu_4 or "
            "ROUGE_L, or give more photos"
        )
    if checkpoint is not None:
        vocabulary = load_vocabulary(checkpoint)
    else:
        texts = [text for image in images.training for text in image.captions]
        vocabulary = build_vocabulary(config, texts, start)
    torch.manual_seed(config.train.seed)
    model = build_model(config, len(vocabulary))
    # Weights are loaded before the cache is filled with what the frozen ones compute.
    if checkpoint is not None:
        load_weights(model, checkpoint)
    elif start is not None and config.train.start_with != "vocabulary":
        only = "encoder." if config.train.start_with == "encoder" else ""
        load_pretrained(model, vocabulary, start, seed=config.train.seed, only=only)
    # Convolutions are up to twice as fast on channels-last tensors, on CPUs and GPUs.
    model = model.to(device).to(memory_format=torch.channels_last)
    config = resolved(config, model)
    data, whole = config.data, config.preprocess
    captions = encode_captions(images.training, vocabulary, max_words=data.max_words)
    _check_words(config, captions, vocabulary)
    for sentence in unused_settings(config, captions=len(captions)):
        logger.warning(sentence)
    tasks = (kind.from_recipe(config, model, vocabulary, images) for kind in TASKS.values())
    task = next(task for task in tasks if task is not None).to(device)

    size = {key: round(vars(whole)[key] * data.view_scale) for key in ("height_px", "width_px")}
    augmentation = Augmentation(data.flip, data.min_area, data.colour)
    transform = ImageTransform(**vars(whole) | size, augmentation=augmentation)
    plain = ImageTransform(**vars(whole))
    validation = ValidationData(images.validation, plain, decisive_source=config.train.val_source)
    cache = cache_crop = None
    if data.cache_min_area < 1:
        cache_crop = partial(crop_features, min_area=data.cache_min_area, flip=data.flip)
    if data.cache:  # all that can be wrong is found before the caches, which take long
        fill = partial(build_cache, config, model, device)
        validation = replace(validation, cache=fill(validation.images, validation.transform))
        cache = fill(images.training, transform, views=data.cache_views)
    dataset = CaptionDataset(
        images.training,
        captions,
        transform,
        seed=config.train.seed,
        weights=images.loss_weights(captions),
        cache=cache,
        cache_crop=cache_crop,
    )
    batches = CaptionBatches(
        captions,
        batch_size=data.batch_size,
        by=data.batch_by,
        seed=config.train.seed,
        source_of=images.source_of,
        weights=[source.weight for source in images.sources],
    )
    digests = {
        "training captions": captions_digest(images.training),
        "validation captions": captions_digest(validation.images),
    }
    return Setup(config, vocabulary, task, dataset, batches, validation, digests)


def build_vocabulary(config: Config, captions: list[str], start: Path | None) -> Vocabulary:
    """Return the words of the model to start from, if any, and those of the training captions."""
    min_count, max_size = config.data.min_count, config.data.vocabulary_size
    known = None
    if start is not None and config.train.start_with != "encoder":
        known = load_vocabulary(start)
        tokenizer = known.tokenizer
        if config.data.tokenizer not in (tokenizer.name, DataConfig.tokenizer):
            raise ConfigError(
                f"data.tokenizer: {start} reads {tokenizer.name}, not {config.data.tokenizer}; "
                "train a model of its own: captioner train --config table --data.tokenizer "
                f"{config.data.tokenizer}"
            )
    else:
        chosen = TOKENIZERS[config.data.tokenizer]()
        tokenizer = chosen.fitted(captions, min_count=min_count, max_size=max_size)
    least = 1 if tokenizer.is_learned else min_count  # it has left rare ones out
    vocabulary = Vocabulary.build(captions, tokenizer, min_count=least, max_size=max_size)
    if known is not None:
        words = [word for text in captions[:10_000] for word in tokenizer.split(text)]
        share = sum(word in known for word in words) / max(1, len(words))
        if share < OTHER_LANGUAGE:
            logger.warning(
                f"{start} knows {share:.0%} of the words of the captions, which look like "
                "another language; to train a model of it: captioner train --config table"
            )
        new = [word for word in vocabulary.words if word not in known]
        return Vocabulary([*known.words, *new], tokenizer)
    if not vocabulary.words:
        roots = (s.root for s in data_sources(config.data) if s.train_split is not None)
        raise DataError(
            f"{', '.join(roots)}: no word occurs {min_count} times in the training captions; "
            "lower data.min_count"
        )
    return vocabulary


def _check_words(config: Config, captions: EncodedCaptions, vocabulary: Vocabulary) -> None:
    start = None if config.train.start_with == "encoder" else config.train.start_from
    words = np.concatenate([target[:-1] for target in captions.targets])  # without the end token
    known = float((words != vocabulary.unknown).mean())
    if not known:
        raise DataError(
            f"train.start_from: {start} knows none of the words of the training captions; "
            "begin with a model of their language, or without one"
        )
    if known < KNOWN_WORDS:
        logger.warning(
            f"{start or 'data.min_count'}: the vocabulary knows {known:.0%} of the words of "
            "the training captions; the others are left unknown"
        )


def _check_one_is_readable(images: list[CaptionedImage]) -> None:
    """Refuse data without a readable image; usually the first image is readable."""
    for image in images:
        try:
            open_image(image.path)
            return
        except ImageError as error:
            reason = f"{image.path}: {error}"
    raise DataError(f"none of the {len(images)} photos can be read ({reason}); check data.root")


def build_cache(
    config: Config,
    model: CaptionModel,
    device: torch.device,
    images: list[CaptionedImage],
    transform: ImageTransform,
    *,
    views: int = 1,
) -> FeatureCache:
    """Return the cache of the frozen features of these images, made where it is missing."""
    encoder = model.encoder.eval()
    if encoder.frozen_stages == 0:
        raise ConfigError(
            "data.cache: no whole stage of the network is frozen, so none can be cached; set "
            "data.cache null, or encoder.trainable_from to null or a later stage"
        )

    def encode(batch: Tensor) -> Tensor:
        return encoder.frozen_features(batch.to(device, memory_format=torch.channels_last))

    workers = reading_processes(config.data.workers, device)
    return build_feature_cache(
        Path(str(config.data.cache)),
        [image.path for image in images],
        transform,
        encode,
        fingerprint=encoder.backbone.fingerprint(encoder.frozen_stages),
        views=views,
        seed=config.train.seed,
        workers=min(1, workers) if device.type == "cpu" else workers,  # a CPU computes, too
    )


@functools.cache  # says only once that memory is short
def reading_processes(asked: int | None, device: torch.device) -> int:
    """Count the processes that read training images, as `data.workers` asks for them."""
    cores = available_cores()
    if asked is not None:
        return min(asked, cores)
    if device.type == "cpu":  # which needs the cores
        return min(1, cores - 1)
    share = cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # torchrun's, of this machine
    count = max(1, min(MOST_READING, share - 1))
    # They hand over batches in shared memory, of which Docker gives 64 MB.
    if SHARED_MEMORY.exists() and shutil.disk_usage(SHARED_MEMORY).free < count * READING_BYTES:
        logger.warning(
            f"{SHARED_MEMORY} has too little room for {count} processes that read photos, so one "
            "reads and trains, and a GPU waits for it; give a container more (docker run "
            "--shm-size 8g), or set data.workers"
        )
        return 0
    return count
