"""From a recipe to everything that the training loop works with."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from tqdm import tqdm

from captioner.checkpoint import VOCABULARY, load_pretrained
from captioner.config import Config, DataConfig, unused_settings, validate
from captioner.data.captioned import CaptionedImage, Split
from captioner.data.dataset import CaptionBatches, CaptionDataset, EncodedCaptions, encode_captions
from captioner.data.feature_cache import FeatureCache, FeatureCrop, build_feature_cache
from captioner.data.readers import captions_digest, read_split
from captioner.data.texts import TextCaptions, read_texts
from captioner.data.transforms import Augmentation, ImageTransform, open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ConfigError, DataError, ImageError
from captioner.models.build import CaptionModel, build_model, image_transform, resolved
from captioner.training.caption_consensus import caption_reward, consensus_weights
from captioner.training.cross_entropy import CrossEntropy, WithConcepts
from captioner.training.distillation import Teachers, load_teachers
from captioner.training.reinforce import build_hard_loss
from captioner.training.self_critical import SelfCritical
from captioner.training.task import TrainingTask
from captioner.training.word_concepts import Concepts

KNOWN_WORDS = 0.9  # rare words make up a few hundredths of captions; fewer known than this is news


@dataclass(frozen=True)
class Setup:
    """config is the recipe with the backbone's own preprocessing written out."""

    config: Config
    vocabulary: Vocabulary
    model: CaptionModel
    dataset: CaptionDataset
    batches: CaptionBatches
    validation: list[CaptionedImage]
    objective: TrainingTask
    validation_transform: ImageTransform
    validation_cache: FeatureCache | None

    @cached_property
    def data_digest(self) -> str:
        """Tells these training photos and captions from others, wherever they lie."""
        return captions_digest(self.dataset.images)

    @property
    def named(self) -> set[str]:
        """Unreadable photos that were told when the caches were made."""
        caches = (
            (self.dataset.images, self.dataset.cache),
            (self.validation, self.validation_cache),
        )
        return {str(photos[i].path) for photos, cache in caches if cache for i in cache.unreadable}


def prepare(config: Config, device: torch.device, start_from: Path | None = None) -> Setup:
    """Read the data, build the model, and fill the feature cache if one is asked for.

    start_from: whole model folder whose vocabulary and weights the model begins with. They are
    taken before the cache is filled, which holds what the frozen ones make of the photos.

    Raises:
        CaptionerError: in one sentence, whatever cannot be used.
    """
    validate(config)
    train = _read(config.data, config.data.train_split)
    validation = _read(config.data, config.data.val_split)[: config.train.val_photos]
    _check_one_is_readable(train, "training")
    _check_one_is_readable(validation, "validation")
    if len(validation) == 1 and config.train.metric == "CIDEr":
        raise ConfigError(
            "train.metric: CIDEr of a single validation photo is always 0; use Bleu_4 or ROUGE_L, "
            "or give more photos"
        )
    if start_from is not None:
        vocabulary = Vocabulary.load(start_from / VOCABULARY)
    else:
        known = (caption for photo in train for caption in photo.captions)
        vocabulary = Vocabulary.build(known, min_count=config.data.min_count)
    if len(vocabulary) < 5:
        raise DataError(
            f"{config.data.root}: no word occurs {config.data.min_count} times in the training "
            "captions; lower data.min_count"
        )
    torch.manual_seed(config.train.seed)
    # Convolutions are up to twice as fast on channels-last tensors, on CPUs and GPUs.
    model = build_model(config, len(vocabulary))
    if start_from is not None:
        for sentence in load_pretrained(model, vocabulary, start_from).sentences():
            print(sentence, file=sys.stderr)
    model = model.to(device).to(memory_format=torch.channels_last)
    whole = resolved(config, model)
    augmentation = Augmentation(config.data.flip, config.data.min_area, config.data.colour)
    train_transform = image_transform(whole.preprocess, augmentation)
    plain_transform = image_transform(whole.preprocess)
    # these before the cache, which takes long
    captions = encode_captions(train, vocabulary, max_words=config.data.max_words)
    if not len(captions):
        raise DataError(f"{config.data.root}: the training captions hold no words")
    _check_vocabulary(captions, vocabulary, start_from)
    for sentence in unused_settings(config, captions=len(captions)):
        print(sentence, file=sys.stderr)
    teachers = load_teachers(whole, model, vocabulary, device) if config.loss.teachers else None
    texts = _texts(whole, vocabulary, validation)
    validation_cache = cache = None
    if config.data.cache:
        validation_cache = _cache(whole, model, device, validation, plain_transform, views=1)
        views = config.data.cache_views
        cache = _cache(whole, model, device, train, train_transform, views=views)
    weights = None
    if config.loss.consensus and not config.self_critical.samples:
        weights = consensus_weights(train, captions, vocabulary.tokenizer, config.loss.consensus)
    crop = None
    if config.data.cache_min_area < 1:
        crop = FeatureCrop(config.data.cache_min_area, config.data.flip)
    dataset = CaptionDataset(
        train,
        captions,
        train_transform,
        seed=config.train.seed,
        weights=weights,
        cache=cache,
        cache_crop=crop,
    )
    batches = CaptionBatches(
        captions,
        batch_size=config.data.batch_size,
        by=config.data.batch_by,
        seed=config.train.seed,
    )
    return Setup(
        config=whole,
        vocabulary=vocabulary,
        model=model,
        dataset=dataset,
        batches=batches,
        objective=_objective(
            whole, dataset, vocabulary, teachers, texts, feature_dim=model.encoder.dim
        ).to(device),
        validation=validation,
        validation_transform=plain_transform,
        validation_cache=validation_cache,
    )


def _objective(
    config: Config,
    dataset: CaptionDataset,
    vocabulary: Vocabulary,
    teachers: Teachers | None,
    texts: TextCaptions | None,
    *,
    feature_dim: int,
) -> TrainingTask:
    """Cross-entropy, or self-critical training where `self_critical.samples` asks for it.

    feature_dim: D, the size of an annotation vector.
    """
    own = config.self_critical
    if own.samples:
        return SelfCritical(
            caption_reward(dataset.images, vocabulary.tokenizer),
            vocabulary,
            samples=own.samples,
            baseline=own.baseline,
            max_words=config.data.max_words or config.decoding.max_words,
        )
    hard = build_hard_loss(config) if config.attention.select == "hard" else None
    captions = CrossEntropy(config.loss, hard, samples=config.hard.samples, teachers=teachers)
    if not config.loss.visual_concepts and texts is None:
        return captions
    return WithConcepts(
        captions,
        Concepts(len(vocabulary), feature_dim),
        dataset.captions.words_of_images(len(dataset.images)),
        texts,
        loss=config.loss,
        text=config.text,
    )


def _texts(
    config: Config, vocabulary: Vocabulary, validation: list[CaptionedImage]
) -> TextCaptions | None:
    """Captions without photos, where `text.file` names them; none of the validation photos'.

    Raises:
        DataError: it cannot be read.
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
            f"{split_name}: {len(split.missing)} of {len(split.missing) + len(split.images)} "
            "photos are missing",
            file=sys.stderr,
        )
    if not split.images:
        raise DataError(f"{data.root}: no photo of split {split_name!r} has a caption to learn")
    return split.images


def _check_vocabulary(
    captions: EncodedCaptions, vocabulary: Vocabulary, start_from: Path | None
) -> None:
    """What the vocabulary lacks can neither be read nor written: tell it where it is much.

    Raises:
        DataError: the model to begin with knows no word at all.
    """
    words = np.concatenate([target[:-1] for target in captions.targets])  # without the end token
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
    """Mostly the first one is, so that this costs nothing."""
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
