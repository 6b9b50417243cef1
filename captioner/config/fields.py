"""Types of settings, with their wording for users, and the check of a value against its type.

In settings.py, jsonargparse would take the `TYPE_CHECKING` block for the types of the fields.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import is_dataclass
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from jsonargparse.typing import restricted_number_type

from captioner.errors import ConfigError
from captioner.log import logger
from captioner.registry import DATA_FORMATS, DECODERS, SCORES, SELECTS, TOKENIZERS, WINDOWS

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

IN_WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text",
    type(None): "null",
}


def _number(name: str, kind: type, in_words: str, *restrictions: tuple[str, float]) -> Any:
    number = restricted_number_type(name, kind, list(restrictions), docstring=in_words)
    IN_WORDS[number] = in_words
    return number


def _count_up_to(name: str, most: int) -> Any:
    return _number(name, int, f"a whole number from 1 to {most}", (">", 0), ("<=", most))


_FINITE = ("<", math.inf)
# Memory grows with these, also where a stranger's model folder sets them.
MAX_BEAM_SIZE = 1000
MAX_WORDS = 10_000  # of a caption
_MAX_INPUT_PX = 4096

if TYPE_CHECKING:
    PositiveInt = int
    NonNegativeInt = int
    InputPixels = int
    BeamSize = int
    CaptionLength = int
    Seed = int
    PositiveFloat = float
    NonNegativeFloat = float
    UnitInterval = float
    BelowOne = float
    AreaShare = float
    Radius = float
    LengthPenalty = float
    DataFormat = str
    TokenizerName = str
    ScoreName = str
    WindowName = str
    SelectName = str
    DecoderName = str
else:
    PositiveInt = _number("PositiveInt", int, "a whole number from 1 up", (">", 0))
    NonNegativeInt = _number("NonNegativeInt", int, "a whole number from 0 up", (">=", 0))
    InputPixels = _count_up_to("InputPixels", _MAX_INPUT_PX)
    BeamSize = _count_up_to("BeamSize", MAX_BEAM_SIZE)
    CaptionLength = _count_up_to("CaptionLength", MAX_WORDS)
    Seed = _number("Seed", int, "a whole number from 0 to 2^63 - 1", (">=", 0), ("<", 2**63))
    PositiveFloat = _number("PositiveNumber", float, "a number above 0", (">", 0), _FINITE)
    NonNegativeFloat = _number("NonNegativeNumber", float, "a number from 0 up", (">=", 0), _FINITE)
    UnitInterval = _number(
        "ClosedUnitInterval", float, "a number from 0 to 1", (">=", 0), ("<=", 1)
    )
    BelowOne = _number("BelowOne", float, "a number from 0 up to below 1", (">=", 0), ("<", 1))
    AreaShare = _number("AreaShare", float, "a number from 0.01 to 1", (">=", 0.01), ("<=", 1))
    # The cell nearest to a window's centre is up to half a cell away and must be inside.
    Radius = _number("Radius", float, "a number of cells from 0.5 up", (">=", 0.5), _FINITE)
    # Beyond 10, lengths to this power leave the range of floats; the field uses 0 to 2.
    LengthPenalty = _number(
        "LengthPenalty", float, "a number from -10 to 10", (">=", -10), ("<=", 10)
    )
    DataFormat = Literal[("auto", *DATA_FORMATS)]
    TokenizerName = Literal[tuple(TOKENIZERS)]
    ScoreName = Literal[tuple(SCORES)]
    WindowName = Literal[tuple(WINDOWS)]
    SelectName = Literal[tuple(SELECTS)]
    DecoderName = Literal[tuple(DECODERS)]


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
    if values is None:  # of a section without lines below
        values = {}
    elif isinstance(values, kind):
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
