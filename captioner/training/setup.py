"""Build from a recipe everything that the training loop works with."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from captioner.checkpoint import VOCABULARY, load_matching_weights
from captioner.config import Config, DataConfig, unused_settings, validate
from captioner.data.captioned import CaptionedImage
from captioner.data.dataset import CaptionBatches, CaptionDataset
from captioner.data.feature_cache import FeatureCache, build_feature_cache
from captioner.data.feature_views import FeatureCrop
from captioner.data.readers import Split, read_split
from captioner.data.texts import TextCaptions, read_texts
from captioner.data.transforms import Augmentation, ImageTransform, open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ConfigError, DataError, ImageError
from captioner.models.build import CaptionModel, build_model, image_transform, resolved
from captioner.training.caption_consensus import caption_reward, consensus_weights
from captioner.training.cross_entropy import CrossEntropyTask
from captioner.training.distillation import load_teachers
from captioner.training.reinforce import build_reinforce
from captioner.training.self_critical import SelfCriticalTask
from captioner.training.task import TrainingTask
from captioner.training.word_concepts import WordConcepts, WordConceptTable

KNOWN_WORDS = 0.9  # rare words make up a few hundredths of captions; fewer known than this is news


@dataclass(frozen=True)
class Setup:
    """Everything that the training loop works with.

    Args:
        config: The recipe with the backbone's own preprocessing written out.
        vocabulary: Words of the model.
        task: Owns the model.
        dataset: Training captions and images.
        batches: Their order.
        validation: Validation images of all sources, one source after another.
        validation_transform: From a validation image to the model's input.
        validation_cache: Features of the validation images, or None.
        data_digest: Tells these images and captions from others, wherever they lie.
        reported_unreadable: Unreadable images that were reported when the caches were made.
    """

    config: Config
    vocabulary: Vocabulary
    task: TrainingTask
    dataset: CaptionDataset
    batches: CaptionBatches
    validation: list[CaptionedImage]
    validation_transform: ImageTransform
    validation_cache: FeatureCache | None
    data_digest: str
    reported_unreadable: set[str]


def prepare(config: Config, device: torch.device, start_from: Path | None = None) -> Setup:
    """Read the data, build the task, and fill the feature cache if one is asked for.

    Args:
        config: The recipe.
        device: Where the task is put.
        start_from: Verified model folder whose vocabulary and weights the model begins with. They
            are loaded before the cache is filled with what the frozen weights compute.

    Raises:
        CaptionerError: Something cannot be used; one sentence says what.
    """
    validate(config)
    train_images = _read(config.data, config.data.train_split)
    validation = _read(config.data, config.data.val_split)[: config.train.val_photos]
    _check_one_is_readable(train_images, "training")
    _check_one_is_readable(validation, "validation")
    if len(validation) == 1 and config.train.metric == "CIDEr":
        raise ConfigError(
            "train.metric: CIDEr of a single validation photo is always 0; use Bleu_4 or ROUGE_L, "
            "or give more photos"
        )
    vocabulary = _vocabulary(config.data, train_images, start_from)
    torch.manual_seed(config.train.seed)
    model = build_model(config, len(vocabulary))
    if start_from is not None:
        loaded, of = load_matching_weights(model, start_from)
        if loaded < of:
            print(f"{start_from}: {loaded} of {of} weights taken", file=sys.stderr)
    # Convolutions are up to twice as fast on channels-last tensors, on CPUs and GPUs.
    model = model.to(device).to(memory_format=torch.channels_last)
    config = resolved(config, model)
    augmentation = Augmentation(config.data.flip, config.data.min_area, config.data.colour)
    train_transform = image_transform(config.preprocess, augmentation)
    validation_transform = image_transform(config.preprocess)
    # All that can be wrong is found before the caches, which take long.
    dataset = CaptionDataset(
        train_images,
        vocabulary,
        train_transform,
        max_words=config.data.max_words,
        seed=config.train.seed,
    )
    if not len(dataset):
        raise DataError(f"{config.data.root}: the training captions hold no words")
    _check_vocabulary(dataset, vocabulary, start_from)
    for sentence in unused_settings(config, captions=len(dataset)):
        print(sentence, file=sys.stderr)
    task = _task(config, model, dataset, vocabulary, validation, device).to(device)
    validation_cache = None
    if config.data.cache:
        validation_cache = _cache(config, model, device, validation, validation_transform, views=1)
        views = config.data.cache_views
        dataset.cache = _cache(config, model, device, train_images, train_transform, views=views)
    if config.data.cache_min_area < 1:
        dataset.cache_crop = FeatureCrop(config.data.cache_min_area, config.data.flip)
    if config.loss.consensus:
        dataset.weights = consensus_weights(train_images, config.loss.consensus)
    batches = CaptionBatches(
        dataset.photo_of,
        dataset.lengths,
        batch_size=config.data.batch_size,
        by=config.data.batch_by,
        seed=config.train.seed,
    )
    caches = ((train_images, dataset.cache), (validation, validation_cache))
    return Setup(
        config=config,
        vocabulary=vocabulary,
        task=task,
        dataset=dataset,
        batches=batches,
        validation=validation,
        validation_transform=validation_transform,
        validation_cache=validation_cache,
        data_digest=_digest(train_images),
        reported_unreadable={
            str(images[index].path)
            for images, cache in caches
            if cache is not None
            for index in cache.unreadable
        },
    )


def _vocabulary(
    data: DataConfig, images: list[CaptionedImage], start_from: Path | None
) -> Vocabulary:
    if start_from is not None:
        return Vocabulary.load(start_from / VOCABULARY)
    captions = (caption for image in images for caption in image.captions)
    vocabulary = Vocabulary.build(captions, min_count=data.min_count)
    if len(vocabulary) < 5:
        raise DataError(
            f"{data.root}: no word occurs {data.min_count} times in the training captions; lower "
            "data.min_count"
        )
    return vocabulary


def _digest(images: list[CaptionedImage]) -> str:
    facts = [[str(image.image_id), list(image.captions)] for image in images]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _task(
    config: Config,
    model: CaptionModel,
    dataset: CaptionDataset,
    vocabulary: Vocabulary,
    validation: list[CaptionedImage],
    device: torch.device,
) -> TrainingTask:
    """Return self-critical training where `self_critical.samples` asks for it, or cross-entropy."""
    if config.self_critical.samples:
        return SelfCriticalTask(
            model,
            caption_reward(dataset.photos),
            vocabulary,
            samples=config.self_critical.samples,
            baseline=config.self_critical.baseline,
            max_words=config.data.max_words or config.decoding.max_words,
        )
    word_concepts = None
    texts = _texts(config, vocabulary, validation)
    if config.loss.visual_concepts or texts is not None:
        word_concepts = WordConcepts(
            WordConceptTable(len(vocabulary), model.encoder.dim),
            dataset.words_of_photos(),
            texts,
            detection_weight=config.loss.visual_concepts,
            text_weight=config.text.weight,
            text_batch_size=config.text.batch_size,
            text_cells=config.text.cells,
            label_smoothing=config.loss.label_smoothing,
        )
    return CrossEntropyTask(
        model,
        config.loss,
        reinforce=build_reinforce(config) if config.attention.select == "hard" else None,
        samples=config.hard.samples,
        teachers=(
            load_teachers(config, model, vocabulary, device) if config.loss.teachers else None
        ),
        word_concepts=word_concepts,
    )


def _texts(
    config: Config, vocabulary: Vocabulary, validation: list[CaptionedImage]
) -> TextCaptions | None:
    """Return captions without images, where `text.file` names them.

    Those of the validation images are left out.

    Raises:
        DataError: The file cannot be read.
    """
    if config.text.file is None:
        return None
    return TextCaptions(
        read_texts(Path(config.text.file)),
        vocabulary,
        max_words=config.data.max_words,
        seed=config.train.seed,
        without=(caption for photo in validation for caption in photo.captions),
    )


def _read(data: DataConfig, split_name: str) -> list[CaptionedImage]:
    split: Split = read_split(
        format=data.format,
        root=data.root,
        split=split_name,
        file=data.file,
        coco_splits=data.coco_splits,
    )
    for path in split.missing[:10]:
        print(f"{path}: no such file, left out", file=sys.stderr)
    if split.missing:
        print(
            f"{split_name}: {len(split.missing)} of {len(split.missing) + len(split.photos)} "
            "photos are missing",
            file=sys.stderr,
        )
    if not split.photos:
        raise DataError(f"{data.root}: no photo of split {split_name!r} has a caption to learn")
    return split.photos


def _check_vocabulary(
    dataset: CaptionDataset, vocabulary: Vocabulary, start_from: Path | None
) -> None:
    """Report it when the vocabulary lacks much of the captions: such words cannot be learned.

    Raises:
        DataError: The model to start from knows no word at all.
    """
    words = np.concatenate([target[:-1] for target in dataset.targets])  # without the end token
    known = float((words != vocabulary.unknown).mean())
    if not known:
        raise DataError(
            f"train.start_from: {start_from} knows none of the words of the training captions; "
            "begin with a model of their language, or without one"
        )
    if known < KNOWN_WORDS:
        print(
            f"{start_from or 'data.min_count'}: the vocabulary knows {known:.0%} of the words of "
            "the training captions; the others are left unknown",
            file=sys.stderr,
        )


def _check_one_is_readable(photos: list[CaptionedImage], kind: str) -> None:
    """Refuse data of which no image can be read; mostly the first one can.

    Raises:
        DataError: Not one can be read.
    """
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
    encoder = model.encoder.eval()
    if encoder.frozen_stages == 0:
        raise ConfigError(
            "data.cache: nothing is frozen to be cached; fine-tune from a later stage or leave "
            "data.cache out"
        )
    bar = tqdm(desc="caching features", unit="photo", disable=None)

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
            # On a CPU the encoder needs the cores; a GPU needs all photos that they can read.
            workers=min(1, config.data.workers) if device.type == "cpu" else config.data.workers,
            progress=progress,
        )
    for photo, reason in cache.unreadable.items():
        print(f"{photos[photo].path}: {reason}, left out", file=sys.stderr)
    return cache
