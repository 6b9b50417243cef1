"""Settings from plain values and YAML: each value is checked against the type of its field."""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, is_dataclass
from types import UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import yaml

from captioner.errors import ConfigError, error_summary
from captioner.log import logger

SettingsT = TypeVar("SettingsT")

NO_YAML = (ValueError, RecursionError, yaml.YAMLError)  # ValueError: a date that does not exist
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times as fast, where it is built

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

IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


@dataclass(frozen=True)
class Range:
    """Numbers that a setting may be, both ends included, and the end of their description."""

    least: float
    most: float
    in_words: str


def from_yaml(config_class: type[SettingsT], text: str) -> SettingsT:
    """Return settings from YAML; others keep their defaults."""
    try:
        return settings_from(config_class, yaml.safe_load(text))
    except NO_YAML as error:
        raise ConfigError(error_summary(error)) from None


def to_yaml(config: Any) -> str:
    """Return all settings as YAML, defaults included."""
    return str(yaml.dump(asdict(config), Dumper=_DUMPER, sort_keys=False, allow_unicode=True))


def validate_section(settings: Any, prefix: str = "") -> None:
    """Refuse values of a section outside the type and range of their fields, as `settings_from`."""
    _converted_values(type(settings), vars(settings), prefix)


def settings_from(kind: type[SettingsT], values: Any, prefix: str = "") -> SettingsT:
    """Return the settings of a section, or of all sections, from values by key.

    Values are as YAML or the command line has them; keys without a value keep the defaults.
    """
    values = getattr(values, "__dict__", values)  # of settings, or of a Namespace
    if not isinstance(values, dict | None):
        raise ConfigError(
            f"{prefix[:-1] or 'the recipe'}: holds no settings; write one 'key: value' a line, of "
            f"{', '.join(get_type_hints(kind))}"
        )
    return kind(**_converted_values(kind, values or {}, prefix))


def _converted_values(kind: type, values: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return values in the types of their settings, without those of earlier versions."""
    hints, known = get_type_hints(kind, include_extras=True), {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        if name in REMOVED:
            if value != REMOVED[name]:
                warn_of_removed(name)
        elif name == "text":  # a section of earlier versions
            _converted_values(object, value or {}, "text.")
        elif key not in hints:
            raise ConfigError(f"{name}: no such setting; use one of {', '.join(hints)}")
        else:
            try:
                known[key] = _converted(hints[key], value, name)
            except ValueError:
                shown, accepted = "null" if value is None else value, in_words(hints[key])
                raise ConfigError(f"{name}: {shown} is not accepted; use {accepted}") from None
    return known


def warn_of_removed(key: str) -> None:
    """Say that a setting of earlier versions does nothing."""
    logger.warning(f"{key}: this setting is gone and does nothing; remove it")


def _converted(hint: Any, value: Any, key: str) -> Any:
    """Return a value in the type of the setting `key`; a ValueError if it cannot have it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        number, limits = _converted(arguments[0], value, key), arguments[1]
        if limits.least <= number <= limits.most:
            return number
    elif origin in (Union, UnionType):
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
    elif hint is float and not isinstance(value, bool):
        if isinstance(value, (int, float, str)):  # YAML reads 1e-4 as a text
            return float(value)
    elif type(value) is hint:  # true is no whole number
        # No shell has read the ~ of a recipe.
        return os.path.expanduser(value) if isinstance(value, str) else value
    raise ValueError


def in_words(hint: Any) -> str:
    """Return what a setting of this type accepts, in words for a message: soft, hard or null."""
    arguments = get_args(hint)
    if hint in IN_WORDS:
        return IN_WORDS[hint]
    if get_origin(hint) is Annotated:
        return f"{IN_WORDS[arguments[0]]} {arguments[1].in_words}"
    if get_origin(hint) is tuple:
        if Ellipsis in arguments:
            return "a list"
        kinds = "" if arguments[0] is float else f", each {in_words(arguments[0])}"
        return f"a list of {len(arguments)} numbers{kinds}"
    *most, last = arguments if get_origin(hint) is Literal else map(in_words, arguments)
    return f"{', '.join(most)} or {last}" if most else str(last)
