"""Refusal of settings that no training can use."""

from __future__ import annotations

import math
from pathlib import Path

from captioner.config import Config, TextConfig
from captioner.errors import ConfigError


def check(config: Config) -> None:
    """Refuse settings that no training can use.

    Raises:
        ConfigError: names the key and what is accepted.
    """
    data, optim, train = config.data, config.optim, config.train
    at_least = {
        "data.min_count": (data.min_count, 1),
        "data.max_words": (data.max_words, 1),
        "data.batch_size": (data.batch_size, 1),
        "data.workers": (data.workers, 0),
        "data.cache_views": (data.cache_views, 1),
        "optim.accumulate": (optim.accumulate, 1),
        "optim.warmup_steps": (optim.warmup_steps, 0),
        "optim.plateau_epochs": (optim.plateau_epochs, 1),
        "train.epochs": (train.epochs, 1),
        "train.patience": (train.patience, 0),
        "train.val_beam_size": (train.val_beam_size, 1),
        "train.val_photos": (1 if train.val_photos is None else train.val_photos, 1),
        "train.checkpoint_every": (train.checkpoint_every, 0),
        "train.log_every": (train.log_every, 1),
        "train.samples": (train.samples, 0),
        "self_critical.samples": (config.self_critical.samples, 0),
        "hard.samples": (config.hard.samples, 1),
        "hard.reward_scale": (config.hard.reward_scale, 0),
        "hard.entropy": (config.hard.entropy, 0),
        "loss.doubly_stochastic": (config.loss.doubly_stochastic, 0),
        "loss.visual_concepts": (config.loss.visual_concepts, 0),
        "text.batch_size": (config.text.batch_size, 1),
        "text.cells": (config.text.cells, 1),
        "text.weight": (config.text.weight, 0),
        "optim.clip_norm": (optim.clip_norm, 0),
        "optim.weight_decay": (optim.weight_decay, 0),
    }
    for key, (value, lowest) in at_least.items():
        if not lowest <= value < float("inf"):  # written so that NaN is refused too
            raise ConfigError(f"{key}: {value} is not accepted; use {lowest} or more")
    shares = {
        "train.seed": (train.seed, 0, 2**63 - 1),
        "data.flip": (data.flip, 0, 1),
        "data.min_area": (data.min_area, 0.01, 1),
        "data.cache_min_area": (data.cache_min_area, 0.01, 1),
        "data.colour": (data.colour, 0, 1),
        "loss.label_smoothing": (config.loss.label_smoothing, 0, 0.99),
        "loss.consensus": (config.loss.consensus, 0, 1),
        "loss.distillation": (config.loss.distillation, 0, 1),
        "optim.ema_decay": (optim.ema_decay, 0, 0.999999),
    }
    for key, (share, low, high) in shares.items():
        if not low <= share <= high:
            raise ConfigError(f"{key}: {share} is not accepted; use {low} to {high}")
    decoder, reads = config.decoder, data.max_words + 1  # the start token too
    if decoder.reads_at_most is not None and reads > decoder.reads_at_most:
        raise ConfigError(
            f"decoder.max_positions: {decoder.max_positions} learned positions are too few for "
            f"captions of data.max_words {data.max_words} and their start; use {reads} or more"
        )
    if config.hard.baseline == "leave_one_out" and config.hard.samples < 2:
        raise ConfigError(
            "hard.samples: the baseline leave_one_out needs 2 or more; use another hard.baseline "
            "for 1"
        )
    own = config.self_critical
    if own.samples == 1 and own.baseline == "leave_one_out":
        raise ConfigError(
            "self_critical.samples: the baseline leave_one_out needs 2 or more; use another "
            "self_critical.baseline for 1"
        )
    beside = {
        "text.file": config.text.file,
        "loss.visual_concepts": config.loss.visual_concepts,
        "loss.consensus": config.loss.consensus,
        "loss.teachers": config.loss.teachers,
    }
    for key, asked in beside.items():
        if own.samples and asked:
            raise ConfigError(
                f"{key}: teaches beside the captions of the data, and self_critical.samples leaves "
                "those; use one of the two"
            )
    if data.cache_min_area < 1 and not data.cache:
        raise ConfigError(
            "data.cache_min_area: there is no cache to crop from; name a folder with data.cache, "
            "or use 1 (data.min_area is for photos)"
        )
    for name in config.loss.teachers:
        if Path(train.output).resolve() in (Path(name).resolve(), *Path(name).resolve().parents):
            raise ConfigError(
                f"loss.teachers: {name} is in this run's own folder, and would change while it "
                "teaches; copy it, or name another train.output"
            )
    if config.text.file is not None and config.attention.score == "location":
        raise ConfigError(
            "text.file: the score location knows photos of one size, and a text's words are "
            "another grid; use another attention.score, or null"
        )
    if own.samples and config.attention.select == "hard":
        raise ConfigError(
            "self_critical.samples: hard attention is trained by cross-entropy only so far; use 0"
        )
    if config.attention.select == "hard" and config.decoder.kind == "mean":
        raise ConfigError("attention.select: the decoder mean does not look; use soft")
    for key, rate in (("optim.lr", optim.lr), ("optim.encoder_lr", optim.encoder_lr)):
        if not 0 < rate < float("inf"):
            raise ConfigError(f"{key}: {rate} is not accepted; use a number above 0")


def idle(config: Config, *, captions: int) -> list[str]:
    """One sentence for each setting that was asked for and does nothing here, or not all of it.

    captions: of the training photos.
    """
    found = []
    data, optim = config.data, config.optim
    # Batches that are not all full make a few more.
    steps = math.ceil(captions / data.batch_size / optim.accumulate) * config.train.epochs
    if data.cache and data.cache_views == 1 and data.cache_min_area == 1:
        found.append(
            "data.cache: one view of each photo is kept, the plain one: data.flip, data.min_area "
            "and data.colour do nothing; ask for more data.cache_views, or data.cache_min_area "
            "below 1"
        )
    if data.cache_views > 1 and not data.cache:
        found.append("data.cache_views: no cache holds them; name a folder in data.cache")
    if config.text.file is None and config.text != TextConfig():
        found.append("text: nothing is read; name a file of captions without photos in text.file")
    if optim.warmup_steps > steps:
        found.append(
            f"optim.warmup_steps: training has about {steps} steps, so the learning rate stays "
            f"below optim.lr; use {steps} or fewer, or more train.epochs"
        )
    return found
