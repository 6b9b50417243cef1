"""Build from a recipe everything that the training loop works with."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from captioner.checkpoint import PretrainedReport, load_config, load_pretrained, load_vocabulary
from captioner.config import Config, DataConfig, data_sources, unused_settings, validate
from captioner.data.captioned import CaptionedImage
from captioner.data.check import OTHER_LANGUAGE, known_share
from captioner.data.dataset import CaptionBatches, CaptionDataset, EncodedCaptions, encode_captions
from captioner.data.feature_cache import FeatureCache, FeatureCrop, build_feature_cache
from captioner.data.readers import (
    SourceImages,
    captions_digest,
    content_digest,
    files_digest,
    read_sources,
)
from captioner.data.transforms import Augmentation, ImageTransform, image_transform, open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import CheckpointError, ConfigError, DataError, ImageError
from captioner.evaluation.average import TRAINING_ONLY
from captioner.log import logger, progress_bar
from captioner.models.build import build_model, resolved
from captioner.models.model import CaptionModel
from captioner.registry import TASKS, TOKENIZERS
from captioner.runtime.distributed import rank
from captioner.training.caption_consensus import consensus_weights
from captioner.training.task import TaskData, TrainingTask

SAMPLED_BYTES = 2**29  # of photos that are compared when a run is resumed
TEXTS = "captions without photos"  # name of the hash of `text.file`
KNOWN_WORDS = 0.9  # below this share of known words the user is warned; rare words are less


@dataclass(frozen=True)
class Setup:
    """Everything that the training loop works with.

    Args:
        validation: Validation images of all sources, with distinct ids.
        validation_sources: The same images by the names of their sources.
        data_digests: Hashes by name that tell this data from other data, wherever it lies.
        reported_unreadable: Unreadable images that were reported when the caches were made.
    """

    config: Config
    vocabulary: Vocabulary
    task: TrainingTask
    dataset: CaptionDataset
    batches: CaptionBatches
    validation: list[CaptionedImage]
    validation_sources: dict[str, list[CaptionedImage]]
    validation_transform: ImageTransform
    validation_cache: FeatureCache | None
    data_digests: dict[str, str]
    reported_unreadable: set[str]


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
    data, seed = config.data, config.train.seed
    images = read_sources(
        data_sources(data),
        max_validation_images=config.train.val_photos,
        val_share=data.val_share,
        seed=seed,
        warn=_warn,
    )
    validation_sources = _validation_sources(images)
    validation = [image for members in validation_sources.values() for image in members]
    _check_one_is_readable(images.training, "training")
    _check_one_is_readable(validation, "validation")
    if config.train.metric == "CIDEr" and any(
        len(members) == 1 for members in validation_sources.values()
    ):
        raise ConfigError(
            "train.metric: CIDEr of a single validation photo is always 0; use Bleu_4 or ROUGE_L, "
            "or give more photos"
        )
    vocabulary = _vocabulary(config, images, start_from, resume=resume)
    if data.tokenizer not in (DataConfig.tokenizer, vocabulary.tokenizer.name):
        _warn(
            f"data.tokenizer: {data.tokenizer} does nothing, because captions are split as by the "
            f"model that training starts from ({vocabulary.tokenizer.name}); remove it, or use "
            "train.start_with encoder"
        )
    if warning := vocabulary.tokenizer.warning(images.captions):
        _warn(warning)
    torch.manual_seed(seed)
    model = build_model(config, len(vocabulary))
    start_with = "all" if resume else config.train.start_with
    if start_from is not None and start_with != "vocabulary":
        only = "encoder." if start_with == "encoder" else ""
        report = load_pretrained(model, vocabulary, start_from, seed=seed, only=only)
        if resume:
            _check_complete(report)
        elif not only:
            _check_decoder(report, config)
            known = known_share(images.captions, load_vocabulary(start_from))
            if known < OTHER_LANGUAGE:
                _warn(
                    f"{start_from} knows {known:.0%} of the words of the captions, which look like "
                    "another language; to train a model of it: captioner train --config table"
                )
        for sentence in report.sentences():
            _warn(sentence)
    # Convolutions are up to twice as fast on channels-last tensors, on CPUs and GPUs.
    model = model.to(device).to(memory_format=torch.channels_last)
    config = resolved(config, model)
    augmentation = Augmentation(data.flip, data.min_area, data.colour)
    train_transform = image_transform(config.preprocess, augmentation)
    validation_transform = image_transform(config.preprocess)
    captions = encode_captions(images.training, vocabulary, max_words=data.max_words)
    if not len(captions):
        raise DataError(f"{_roots(config)}: the training captions hold no words")
    words_of = None if config.train.start_with == "encoder" else start_from
    _check_vocabulary(captions, vocabulary, words_of)
    for sentence in unused_settings(config, captions=len(captions)):
        _warn(sentence)
    kind = next(kind for kind in TASKS.values() if kind.is_asked_for(config))
    parts = TaskData(config, model, vocabulary, images, captions, validation, device)
    task = kind.from_data(parts).to(device)
    # All that can be wrong is found before the caches, which take long.
    cache = validation_cache = None
    if data.cache:
        validation_cache = _cache(config, model, device, validation, validation_transform, views=1)
        cache = _cache(
            config, model, device, images.training, train_transform, views=data.cache_views
        )
    caption_weights = None
    if config.loss.consensus and not config.self_critical.samples:
        caption_weights = consensus_weights(
            images.training, captions, vocabulary.tokenizer, config.loss.consensus
        )
    dataset = CaptionDataset(
        images.training,
        captions,
        train_transform,
        seed=seed,
        weights=images.loss_weights(captions, caption_weights),
        styles=images.styles_of(captions),
        cache=cache,
        cache_crop=(
            FeatureCrop(data.cache_min_area, data.flip) if data.cache_min_area < 1 else None
        ),
    )
    batches = CaptionBatches(
        captions,
        batch_size=data.batch_size,
        by=data.batch_by,
        seed=seed,
        source_of=images.source_of,
        weights=images.weights,
    )
    return Setup(
        config=config,
        vocabulary=vocabulary,
        task=task,
        dataset=dataset,
        batches=batches,
        validation=validation,
        validation_sources=validation_sources,
        validation_transform=validation_transform,
        validation_cache=validation_cache,
        data_digests=_data_digests(
            images.training, validation, data.check_photos, config.text.file
        ),
        reported_unreadable={
            str(members[index].path)
            for members, features in ((images.training, cache), (validation, validation_cache))
            if features is not None
            for index in features.unreadable
        },
    )


def _data_digests(
    training: list[CaptionedImage],
    validation: list[CaptionedImage],
    check: str,
    text_file: str | None,
) -> dict[str, str]:
    """Return the hashes by which a resumed run knows its data."""
    digests = {}
    for kind, images in (("training", training), ("validation", validation)):
        digests[f"{kind} captions"] = captions_digest(images)
        digests[f"{kind} photos"] = files_digest(images)
        # Where times of change differ, the bytes decide.
        digests[f"some bytes of {kind} photos"] = content_digest(images, max_bytes=SAMPLED_BYTES)
        if check == "all":
            digests[f"all bytes of {kind} photos"] = content_digest(images)
    if text_file is not None:
        digests[TEXTS] = hashlib.sha256(Path(text_file).read_bytes()).hexdigest()
    return digests


def _warn(sentence: str) -> None:
    if rank() == 0:  # the others find the same
        logger.warning(sentence)


def _validation_sources(images: SourceImages) -> dict[str, list[CaptionedImage]]:
    """Return the validation images of each source, with ids that are distinct among all."""
    if len(images.validation) == 1:
        return dict(images.validation)
    return {
        name: [replace(image, image_id=f"{name}/{image.image_id}") for image in members]
        for name, members in images.validation
    }


def _vocabulary(
    config: Config, images: SourceImages, start_from: Path | None, *, resume: bool
) -> Vocabulary:
    """Return the words of the model to start from and those of the training captions."""
    data, captions = config.data, images.captions
    min_count, max_size = data.min_count, data.vocabulary_size
    if start_from is not None:
        start = load_vocabulary(start_from)
        if resume:
            return start
        if config.train.start_with != "encoder":
            if start.tokenizer.is_learned:
                min_count = 1
            return start.extended(
                Vocabulary.build(captions, start.tokenizer, min_count=min_count, max_size=max_size)
            )
    chosen = TOKENIZERS[data.tokenizer]()
    tokenizer = chosen.fitted(captions, min_count=min_count, max_size=max_size)
    if tokenizer.is_learned:  # it has left rare ones out
        min_count = 1
    vocabulary = Vocabulary.build(captions, tokenizer, min_count=min_count, max_size=max_size)
    if not vocabulary.words:
        raise DataError(
            f"{_roots(config)}: no word occurs {data.min_count} times in the training captions; "
            "lower data.min_count"
        )
    return vocabulary


def _roots(config: Config) -> str:
    """Name where the training data lie."""
    return ", ".join(s.root for s in data_sources(config.data) if s.train_split is not None)


def _check_complete(report: PretrainedReport) -> None:
    """Refuse a checkpoint that lacks weights of its own run, although its manifest agrees."""
    odd = [*report.absent, *report.other_shape, *report.unused]
    if odd:
        raise CheckpointError(
            f"{report.folder}: damaged, {len(odd)} weights are not those of this run, the first is "
            f"{odd[0]:.100}; resume with the run's own settings or from another checkpoint"
        )


def _check_decoder(report: PretrainedReport, config: Config) -> None:
    """Refuse a start without the decoder's weights: what it writes would be noise for long.

    Attention alone may begin anew, as another mechanism does.
    """
    names = [
        name
        for name in (*report.absent, *report.other_shape)
        if name.startswith("decoder.") and not name.startswith("decoder.attention.")
    ]
    if not names:
        return
    start = load_config(report.folder)
    differing = [
        f"{section}.{key} {value}"
        for section in ("encoder", "attention", "decoder")
        for key, value in vars(getattr(start, section)).items()
        if value != getattr(getattr(config, section), key) and key not in TRAINING_ONLY
    ]
    raise ConfigError(
        f"train.start_from: {len(names)} weights of the decoder cannot be taken from "
        f"{report.folder} ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''}), so that it "
        "would begin untrained: the recipe is of another architecture; that model has "
        f"{', '.join(differing) or 'other settings'}; use captioner finetune, which takes these "
        "over, or train.start_with encoder"
    )


def _check_vocabulary(
    captions: EncodedCaptions, vocabulary: Vocabulary, start_from: Path | None
) -> None:
    """Refuse a vocabulary without a word of the captions, and warn of one that lacks many."""
    words = np.concatenate([target[:-1] for target in captions.targets])  # without the end token
    known = float((words != vocabulary.unknown).mean())
    if not known:
        raise DataError(
            f"train.start_from: {start_from} knows none of the words of the training captions; "
            "begin with a model of their language, or without one"
        )
    if known < KNOWN_WORDS:
        _warn(
            f"{start_from or 'data.min_count'}: the vocabulary knows {known:.0%} of the words of "
            "the training captions; the others are left unknown"
        )


def _check_one_is_readable(photos: list[CaptionedImage], kind: str) -> None:
    """Refuse data without a readable image; usually the first image is readable."""
    reason = ""
    for photo in photos:
        try:
            open_image(photo.path)
            return
        except ImageError as error:
            reason = f"{photo.path}: {error}"
    raise DataError(f"none of the {kind} photos can be read ({reason}); check data.root")


def _cache(
    config: Config,
    model: CaptionModel,
    device: torch.device,
    photos: list[CaptionedImage],
    transform: ImageTransform,
    *,
    views: int,
) -> FeatureCache:
    """Return the cache of the frozen features of these photos, made where it is missing."""
    encoder = model.encoder.eval()
    if encoder.frozen_stages == 0:
        raise ConfigError(
            "data.cache: nothing is frozen to be cached; fine-tune from a later stage or leave "
            "data.cache out"
        )
    bar = progress_bar(desc="caching features", unit="photo", disable=rank() > 0)

    def progress(done: int, total: int) -> None:
        bar.total = total
        bar.update(done - bar.n)

    def encode(batch: Tensor) -> Tensor:
        batch = batch.to(device, memory_format=torch.channels_last)
        return encoder.frozen_features(batch)

    with bar:
        cache = build_feature_cache(
            Path(str(config.data.cache)),
            [photo.path for photo in photos],
            transform,
            encode,
            fingerprint=encoder.backbone.fingerprint(encoder.frozen_stages),
            views=views,
            seed=config.train.seed,
            # On a CPU the encoder needs the cores; for a GPU they read as many photos as they can.
            workers=min(1, config.data.workers) if device.type == "cpu" else config.data.workers,
            progress=progress,
        )
    for photo, reason in cache.unreadable.items():
        _warn(f"{photos[photo].path}: {reason}, left out")
    return cache
