"""Refusal of settings that cannot be used, notice of those that do nothing, and data sources."""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from dataclasses import fields, is_dataclass, replace
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from captioner.config.fields import IN_WORDS
from captioner.config.settings import Config, DataConfig, ModelConfig, OptimConfig, SourceConfig
from captioner.errors import ConfigError
from captioner.log import logger

SettingsT = TypeVar("SettingsT")

# Settings of earlier versions with the values that did nothing, which run folders may hold.
REMOVED: dict[str, Any] = {
    "data.check_photos": "sample",
    "data.sources.style": None,
    "loss.consensus": 0.0,
    "loss.visual_concepts": 0.0,
    "text.file": None,
    "text.batch_size": 80,
    "text.cells": 12,
    "text.weight": 1.0,
}


def validate(config: ModelConfig) -> None:
    """Refuse settings that no model can be built from or, for a recipe, no training can use.

    Each value is checked against its field's type and range, then the rules between fields.

    Raises:
        ConfigError: Names the key and what is accepted.
    """
    for section, settings in vars(config).items():
        validate_section(settings, f"{section}.")
    longest = float(config.decoding.max_words)
    if isinstance(config, Config):
        _check_sources(config)
        _validate_training(config)
        # in training the start token comes before the caption
        longest = max(longest, (config.data.max_words or math.inf) + 1)
    most = config.decoder.reads_at_most
    if most is not None and longest > most:
        remedy = f"use {longest:g} or more" if longest < math.inf else "limit data.max_words"
        raise ConfigError(
            f"decoder.max_positions: {most} learned positions are too few for decoding.max_words "
            f"or for data.max_words and the start; {remedy}, or take decoder.positions sinusoidal"
        )


def validate_section(settings: Any, prefix: str = "") -> None:
    """Refuse values of a section outside the type and range of their fields.

    Raises:
        ConfigError: Names the key, after the prefix (such as `decoding.`), and what is accepted.
    """
    hints = get_type_hints(type(settings))
    for key, value in vars(settings).items():
        if _checked(hints[key], value, f"{prefix}{key}") != value:  # a text that is a number
            raise _refusal(hints[key], value, f"{prefix}{key}")


def settings_from(kind: type[SettingsT], values: Any, prefix: str) -> SettingsT:
    """Return the settings of a section from values by key, as YAML or the command line has them.

    Args:
        kind: Class of the settings; keys without a value keep its defaults.

    Raises:
        ConfigError: Names the key, after the prefix (such as `decoding.`), and what is accepted.
    """
    if isinstance(values, kind):
        values = vars(values)
    if not isinstance(values, dict):
        raise ConfigError(
            f"{prefix[:-1]}: holds no settings; write one 'key: value' a line, of "
            f"{', '.join(get_type_hints(kind))}"
        )
    hints, known = get_type_hints(kind), {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in REMOVED:
            if value != REMOVED[name]:
                warn_of_removed(name)
        elif key not in hints:
            raise ConfigError(f"{name}: no such setting; use one of {', '.join(hints)}")
        else:
            known[key] = _checked(hints[key], value, name)
    return kind(**known)


def warn_of_removed(key: str) -> None:
    """Say that a setting of earlier versions does nothing."""
    logger.warning(f"{key}: this setting is gone and does nothing; remove it")


def _checked(hint: Any, value: Any, key: str) -> Any:
    """Return a value in the type of the setting `key`; refuse one that it cannot have."""
    try:
        return _converted(hint, value, key)
    except ValueError:
        raise _refusal(hint, value, key) from None


def _converted(hint: Any, value: Any, key: str) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        for choice in arguments:
            with contextlib.suppress(ValueError):
                return _converted(choice, value, key)
    elif origin is Literal:
        if value in arguments:
            return value
    elif origin is tuple:
        if isinstance(value, (list, tuple)):
            kinds = [arguments[0]] * len(value) if Ellipsis in arguments else arguments
            return tuple(_converted(k, v, key) for k, v in zip(kinds, value, strict=True))
    elif is_dataclass(hint):
        return settings_from(hint, value, f"{key}.")  # type: ignore[arg-type]  # mypy: an instance
    elif hint is bool or isinstance(value, bool):
        if hint is bool and isinstance(value, bool):
            return value
    elif issubclass(hint, float):
        if isinstance(value, (int, float, str)):  # YAML reads 1e-4 as a text
            return float(hint(float(value)))
    elif issubclass(hint, int):
        if isinstance(value, int):
            return int(hint(value))  # YAML cannot write jsonargparse's classes of numbers
    elif isinstance(value, hint):
        return value
    raise ValueError


def _refusal(hint: Any, value: Any, key: str) -> ConfigError:
    shown = "null" if value is None else value
    return ConfigError(f"{key}: {shown} is not accepted; use {in_words(hint)}")


def in_words(hint: Any) -> str:
    """Return what a setting of this type accepts, in words for a message.

    >>> in_words(Literal["soft", "hard"] | None)
    'soft, hard or null'
    """
    arguments = get_args(hint)
    if hint in IN_WORDS:
        return IN_WORDS[hint]
    if get_origin(hint) is tuple:
        kinds = "" if arguments[0] is float else f", each {in_words(arguments[0])}"
        return "a list" if Ellipsis in arguments else f"a list of {len(arguments)} numbers{kinds}"
    if is_dataclass(hint):
        return f"settings of {', '.join(get_type_hints(hint))}"
    *most, last = arguments if get_origin(hint) is Literal else map(in_words, arguments)
    return f"{', '.join(most)} or {last}" if most else str(last)


def require_divisor(key: str, heads: int, size: int, name: str) -> None:
    """Raise a ConfigError that names the setting `key` unless `heads` divides `size`."""
    if size % heads:
        raise ConfigError(f"{key}: {heads} does not divide {name} {size}; use a divisor of {size}")


def _validate_training(config: Config) -> None:
    """Check the rules between the settings of training."""
    for section, samples, baseline in (
        ("hard", config.hard.samples, config.hard.baseline),
        ("self_critical", config.self_critical.samples, config.self_critical.baseline),
    ):
        if baseline == "leave_one_out" and samples == 1:
            raise ConfigError(
                f"{section}.samples: the baseline leave_one_out needs 2 or more; use another "
                f"{section}.baseline for 1"
            )
    if config.attention.select == "hard" and config.decoder.kind == "mean":
        raise ConfigError("attention.select: the decoder mean has no attention; use soft")
    if config.data.cache_min_area < 1 and not config.data.cache:
        raise ConfigError(
            "data.cache_min_area: there is no cache to crop from; name a folder with data.cache, "
            "or use 1 (data.min_area is for photos)"
        )
    if not config.self_critical.samples:
        return
    for key in ("teachers", "attention_effect"):
        if getattr(config.loss, key):
            raise ConfigError(
                f"loss.{key}: is a term in addition to the cross-entropy of the data's captions, "
                "which self_critical.samples replaces; use one of the two"
            )
    if config.attention.select == "hard":
        raise ConfigError(
            "self_critical.samples: hard attention is trained by cross-entropy only so far; use 0"
        )


def unused_settings(config: Config, *, captions: int) -> list[str]:
    """Return one sentence for each setting that differs from its default and does nothing here."""
    sentences = []
    data, optim = config.data, config.optim
    # A lower bound: batches that are not full add a few.
    steps = math.ceil(captions / data.batch_size / optim.accumulate) * config.train.epochs
    augments = data.flip > 0 or data.min_area < 1 or data.colour > 0
    if data.cache and augments and data.cache_views == 1 and data.cache_min_area == 1:
        sentences.append(
            "data.cache: one view of each photo is kept, the plain one: data.flip, data.min_area "
            "and data.colour do nothing; ask for more data.cache_views, or data.cache_min_area "
            "below 1"
        )
    if data.cache_views > 1 and not data.cache:
        sentences.append("data.cache_views: no cache holds them; name a folder in data.cache")
    if data.sources is not None:
        per_source = get_type_hints(SourceConfig)
        for key, value in vars(DataConfig()).items():
            if key in per_source and getattr(data, key) != value:
                sentences.append(
                    f"data.{key}: does nothing, because each of data.sources has its own; remove it"
                )
    if not optim.name.startswith("rmsprop"):
        sentences += [
            f"optim.{key}: is of rmsprop, not of {optim.name}; remove it"
            for key in ("momentum", "alpha", "centered")
            if getattr(optim, key) != getattr(OptimConfig, key)
        ]
    if optim.warmup_steps > steps:
        sentences.append(
            f"optim.warmup_steps: training has about {steps} steps, so the learning rate stays "
            f"below optim.lr; use {steps} or fewer, or more train.epochs"
        )
    return sentences


# --- several data sets ----------------------------------------------------------------------------


def data_sources(data: DataConfig) -> list[SourceConfig]:
    """Return the data sets of a recipe, each named as `SourceConfig` says."""

    def usual_name(source: SourceConfig) -> str:
        return source.name or (source.format if source.format != "auto" else "source")

    if data.sources is None:
        shared = {field.name for field in fields(SourceConfig)} & {f.name for f in fields(data)}
        source = SourceConfig(**{name: getattr(data, name) for name in shared})
        return [replace(source, name=usual_name(source))]
    names = Counter(map(usual_name, data.sources))
    return [
        replace(source, name=name if source.name or names[name] == 1 else f"{name}-{position}")
        for position, source in enumerate(data.sources, start=1)
        for name in (usual_name(source),)
    ]


def _check_sources(config: Config) -> None:
    """Refuse a list of sources that cannot be trained on and validated on.

    Raises:
        ConfigError: Names the key and what is accepted.
    """
    sources = data_sources(config.data)
    names = [source.name for source in sources]
    if config.data.sources is None and not config.data.root:
        raise ConfigError("data.root: is empty; name the folder of the data set")
    for source in sources:
        if not re.fullmatch(r"[\w.-]+", source.name):
            raise ConfigError(
                f"data.sources: '{source.name}' is no name of a source; use letters, digits, "
                "'_', '-' and '.'"
            )
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
    """Return the settings with roots as `--data.root` gives them (see `DataConfig`).

    Raises:
        ConfigError: No source has this name, or several sources and none named.
    """
    if data.sources is None:
        return replace(data, root=roots)
    found = {source.name: source.root for source in data_sources(data)}
    for given in re.split(r",(?=[\w.-]+=)", roots):
        match = re.fullmatch(r"([\w.-]+)=(.*)", given)
        if not match and len(found) > 1:
            raise ConfigError(
                f"data.root: {given} is for which of the sources? Use NAME={given} with NAME one "
                f"of {', '.join(found)}"
            )
        name, path = match.groups() if match else (next(iter(found)), given)
        if name not in found:
            raise ConfigError(
                f"data.root: there is no source '{name}'; use NAME=PATH with NAME one of "
                f"{', '.join(found)}"
            )
        found[name] = path
    sources = (replace(source, root=found[source.name]) for source in data_sources(data))
    return replace(data, sources=tuple(source for source in sources if source.root != "null"))
