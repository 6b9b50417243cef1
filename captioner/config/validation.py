"""Rules between the settings of a recipe, notice of those that do nothing, and data sources."""

from __future__ import annotations

import math
import os
import re
from dataclasses import replace

from captioner.config.fields import validate_section
from captioner.config.settings import Config, DataConfig, ModelConfig, SourceConfig
from captioner.errors import ConfigError


def validate(config: ModelConfig) -> None:
    """Refuse settings that no model can be built from or, for a recipe, no training can use.

    Each value is checked against its field's type and range, then the rules between fields.
    """
    for section, settings in vars(config).items():
        validate_section(settings, f"{section}.")
    longest = float(config.decoding.max_words)
    if isinstance(config, Config):
        _check_sources(config)
        _check_training(config)
        # in training the start token comes before the caption
        longest = max(longest, (config.data.max_words or math.inf) + 1)
    most = config.decoder.reads_at_most
    if most is not None and longest > most:
        remedy = f"use {longest:g} or more" if longest < math.inf else "limit data.max_words"
        raise ConfigError(
            f"decoder.max_positions: {most} learned positions are too few for decoding.max_words "
            f"or for data.max_words and the start; {remedy}, or take decoder.positions sinusoidal"
        )


def _check_training(config: Config) -> None:
    is_hard, rewards = config.attention.select == "hard", config.self_critical.samples > 0
    for section, settings in (("hard", config.hard), ("self_critical", config.self_critical)):
        if settings.baseline == "leave_one_out" and settings.samples == 1:
            raise ConfigError(
                f"{section}.samples: the baseline leave_one_out needs 2 or more; use another "
                f"{section}.baseline for 1"
            )
    if is_hard and config.decoder.kind == "mean":
        raise ConfigError("attention.select: the decoder mean has no attention; use soft")
    for key in ("teachers", "attention_effect"):
        if rewards and getattr(config.loss, key):
            raise ConfigError(
                f"loss.{key}: is a term in addition to the cross-entropy of the data's captions, "
                "which self_critical.samples replaces; use one of the two"
            )
    if rewards and is_hard and config.attention.at_test == "sample":
        raise ConfigError(
            "attention.at_test: self-critical training scores a caption with the cells that it was "
            "written with; use argmax or expectation"
        )


def require_divisor(key: str, heads: int, size: int, name: str) -> None:
    """Raise a ConfigError that names the setting `key` unless `heads` divides `size`."""
    if size % heads:
        raise ConfigError(f"{key}: {heads} does not divide {name} {size}; use a divisor of {size}")


def unused_settings(config: Config, *, captions: int) -> list[str]:
    """Return a sentence for settings that do not do their work."""
    data, optim, samples = config.data, config.optim, config.self_critical.samples
    augments = data.flip > 0 or data.min_area < 1 or data.colour > 0
    has_views = data.cache_views > 1 or data.cache_min_area < 1
    begins_anew = config.train.start_from is None
    trained = "is for a model that is trained already; name it with train.start_from"
    # A lower bound: batches that are not full add a few.
    steps = math.ceil(captions / data.batch_size / optim.accumulate) * config.train.epochs
    sentences = {
        "data.cache: one view of each photo is kept, without data.flip, min_area and colour; ask "
        "for more data.cache_views, or data.cache_min_area below 1": (
            data.cache and augments and not has_views
        ),
        "data.cache_views and data.cache_min_area: do nothing without a cache; name a folder in "
        "data.cache": not data.cache and has_views,
        "hard: its settings are for attention.select hard, so they do nothing": (
            config.attention.select != "hard" and config.hard != Config().hard
        ),
        "self_critical: without self_critical.samples its settings do nothing": (
            not samples and config.self_critical != Config().self_critical
        ),
        f"loss.attention_effect: {trained}": begins_anew and config.loss.attention_effect,
        f"self_critical.samples: {trained}": begins_anew and samples,
        f"optim.warmup_steps: training has about {steps} steps, so the learning rate stays below "
        "optim.lr, and little is learned; use more train.epochs, or fewer of them": (
            optim.warmup_steps > steps
        ),
    }
    return [sentence for sentence, applies in sentences.items() if applies]


def data_sources(data: DataConfig) -> list[SourceConfig]:
    """Return the data sets of a recipe, each named as `SourceConfig` says."""
    sources = data.sources
    if sources is None:
        own = {key: x for key, x in vars(data).items() if hasattr(SourceConfig, key)}
        sources = (SourceConfig(**own),)
    names = [s.name or (s.format if s.format != "auto" else "source") for s in sources]
    return [
        replace(source, name=name if source.name or names.count(name) == 1 else f"{name}-{number}")
        for number, (source, name) in enumerate(zip(sources, names, strict=True), start=1)
    ]


def _check_sources(config: Config) -> None:
    sources = data_sources(config.data)
    names = [source.name for source in sources]
    if config.data.sources is None and not config.data.root:
        raise ConfigError("data.root: is empty; name the folder of the data set")
    for source in sources:
        if names.count(source.name) > 1:
            raise ConfigError(
                f"data.sources: two sources have the name {source.name}; use another name for one"
            )
        if not source.root:
            raise ConfigError(
                f"data.sources: the source {source.name} has no root; add 'root: FOLDER', or use "
                f"--data.root {source.name}=FOLDER"
            )
    for key in ("train_split", "val_split"):
        if all(getattr(source, key) is None for source in sources):
            raise ConfigError(f"data.sources: none has a {key}; use one for at least one source")
    validated = [source.name for source in sources if source.val_split is not None]
    chosen = config.train.val_source
    if chosen is not None and chosen not in validated:
        raise ConfigError(
            f"train.val_source: there is no '{chosen}' to validate on; use "
            f"{', '.join(validated)} or null (the mean over the sources)"
        )


def with_source_roots(data: DataConfig, roots: str) -> DataConfig:
    """Return the settings with roots as `--data.root` gives them (see `DataConfig`)."""
    if data.sources is None:
        return replace(data, root=roots)
    found = {source.name: source.root for source in data_sources(data)}
    for given in re.split(r",(?=[\w.-]+=)", roots):
        name, path = next(iter(found)), given
        if len(found) > 1 or re.match(r"[\w.-]+=", given):
            name, _, path = given.partition("=")
        if name not in found:
            raise ConfigError(
                f"data.root: {given} names none of the sources; use NAME=PATH with NAME one of "
                f"{', '.join(found)}"
            )
        found[name] = os.path.expanduser(path)
    sources = (replace(source, root=found[source.name]) for source in data_sources(data))
    return replace(data, sources=tuple(source for source in sources if source.root != "null"))
