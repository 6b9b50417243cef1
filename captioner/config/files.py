"""Settings from YAML, from recipes and from command line options, and back to YAML.

A recipe is a YAML file of settings that may name the recipes it is based on.
"""

from __future__ import annotations

import os
import re
from dataclasses import asdict, fields, is_dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn, TypeAlias, TypeVar, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from captioner.config.fields import in_words
from captioner.config.settings import Config, ModelConfig, SourceConfig
from captioner.config.validation import validate_section
from captioner.errors import ConfigError, error_summary
from captioner.log import logger

BASE = "base"  # the key that names the recipe, or recipes, that a recipe is based on

ConfigT = TypeVar("ConfigT", bound=ModelConfig)
Sections: TypeAlias = dict[str, dict[str, Any]]  # settings by section and key
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
_NO_YAML = (ValueError, RecursionError, yaml.YAMLError)  # ValueError: a date that does not exist
_PACKAGE = Path(__file__).resolve().parents[1]
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster where libyaml is there


def parser_for(config_class: type[ModelConfig], **options: Any) -> ArgumentParser:
    """Return a command line parser with an option `--section.key` for every setting.

    Args:
        config_class: `Config` or `ModelConfig`.
        options: For `ArgumentParser`.
    """
    # Some options are read before the parser, which would accept an abbreviation and drop it.
    parser = _Parser(allow_abbrev=False, **options)
    parser.config_class = config_class
    parser.add_class_arguments(config_class, None)
    return parser


def set_defaults(parser: ArgumentParser, config: ModelConfig) -> None:
    """Make settings the defaults of a parser's options, as its help then shows."""
    parser.set_defaults(
        {
            f"{section}.{key}": value
            for section, settings in vars(config).items()
            for key, value in vars(settings).items()
        }
    )


class _Parser(ArgumentParser):
    """Raises a ConfigError of one sentence, where argparse ends the program."""

    config_class: type[ModelConfig]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            raise ConfigError(_refusal(self.config_class, message)) from None
        super().error(message, ex)


def _refusal(config_class: type[ModelConfig], message: str) -> str:
    """Turn jsonargparse's message about a value into one sentence that names what is accepted.

    Other messages stay as they are, on one line.
    """
    message = error_summary(message)
    place = re.search(r'key "(\w+)\.(\w+)"', message)
    sections = vars(config_class())
    if place is None or place[1] not in sections:
        return message
    section, key = place.groups()
    hint = get_type_hints(type(sections[section])).get(key)
    inner = re.search(r'key "(\w+)":', message)
    of_source = get_type_hints(SourceConfig)
    if key == "sources" and inner and inner[1] in of_source:
        hint, key = of_source[inner[1]], f"{key}: {inner[1]}"
    return message if hint is None else f"{section}.{key}: use {in_words(hint)}"


def from_yaml(config_class: type[ConfigT], text: str) -> ConfigT:
    """Return settings from YAML; others keep their defaults.

    Raises:
        ConfigError: An unknown key or a value that is not accepted, by its name.
    """
    try:
        document = yaml.safe_load(text)
    except _NO_YAML as error:
        raise ConfigError(error_summary(error)) from None
    return _from_sections(config_class, _sections_of(config_class, document))


def _from_sections(config_class: type[ConfigT], sections: Sections) -> ConfigT:
    """Return settings from values by section and key; others keep their defaults."""
    parser = _file_parser(config_class)  # type: ignore[arg-type]  # mypy: no hash of a class
    try:
        parsed = parser.parse_string(yaml.safe_dump(sections))
        return instantiate(config_class, parser, parsed)
    except (ArgumentError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(_refusal(config_class, str(error))) from None


@lru_cache
def _file_parser(config_class: type[ModelConfig]) -> ArgumentParser:
    """Return a parser for files, kept because building one takes longer than parsing a file."""
    return parser_for(config_class, exit_on_error=False)


def instantiate(config_class: type[ConfigT], parser: ArgumentParser, parsed: Namespace) -> ConfigT:
    """Return what a parser has read as settings, with numbers of Python's own types.

    Raises:
        ConfigError: A section is no section, or a setting that needs a value has none.
    """
    try:
        sections = vars(parser.instantiate(parsed))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"a section of the recipe holds no settings ({error_summary(error)}); write the "
            "settings of the section below it, or leave it out"
        ) from None
    config = config_class(
        **{field.name: _with_plain_numbers(sections[field.name]) for field in fields(config_class)}
    )
    for section, settings in vars(config).items():
        validate_section(settings, f"{section}.")
    return config


def _with_plain_numbers(value: Any) -> Any:
    """Return a value without jsonargparse's number classes, which YAML and JSON cannot write."""
    if is_dataclass(value) and not isinstance(value, type):
        plain = {key: _with_plain_numbers(item) for key, item in vars(value).items()}
        return replace(value, **plain)
    if isinstance(value, tuple):
        return tuple(map(_with_plain_numbers, value))
    for kind in (int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return value


def _overlay(below: Sections, above: Sections) -> Sections:
    """Return the settings of both, those of `above` where both have a setting."""
    return {
        section: {**below.get(section, {}), **above.get(section, {})}
        for section in {**below, **above}
    }


def _sections_of(config_class: type[ModelConfig], document: Any) -> Sections:
    """Return a YAML document's settings by section and key, none of which is unknown."""
    accepted = {name: type(settings) for name, settings in vars(config_class()).items()}
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise ConfigError(f"the settings are no sections; use {', '.join(accepted)}")
    sections: Sections = {}
    for section, settings in document.items():
        if isinstance(settings, dict):
            settings = _without_removed(settings, f"{section}.")
            if section == "text" and not settings:  # all of its settings are gone
                continue
        if section not in accepted:
            raise ConfigError(f"{section}: no such section; use one of {', '.join(accepted)}")
        settings = {} if settings is None else settings
        if not isinstance(settings, dict):
            raise ConfigError(f"{section}: holds no settings; write one 'key: value' a line")
        _check_keys(accepted[section], settings, f"{section}.")
        if section == "data" and isinstance(settings.get("sources"), list):
            sources = [
                _without_removed(source, "data.sources.") if isinstance(source, dict) else source
                for source in settings["sources"]
            ]
            settings = {**settings, "sources": sources}
            for position, source in enumerate(sources, start=1):
                if not isinstance(source, dict):
                    raise ConfigError(
                        f"data.sources: the {position}. entry holds no settings; use "
                        f"{', '.join(get_type_hints(SourceConfig))}"
                    )
                _check_keys(SourceConfig, source, "data.sources: ")
        sections[section] = settings
    return sections


def _without_removed(settings: dict[str, Any], prefix: str) -> dict[str, Any]:
    """Return settings without those of earlier versions; warn of one that did something."""
    for key in settings:
        if prefix + key in REMOVED and settings[key] != REMOVED[prefix + key]:
            warn_of_removed(prefix + key)
    return {key: value for key, value in settings.items() if prefix + key not in REMOVED}


def warn_of_removed(key: str) -> None:
    """Say that a setting of earlier versions does nothing."""
    logger.warning(f"{key}: this setting is gone and does nothing; remove it")


def _check_keys(section: type, settings: dict[str, Any], prefix: str) -> None:
    accepted = get_type_hints(section)
    for key in settings:
        if key not in accepted:
            raise ConfigError(f"{prefix}{key}: no such setting; use one of {', '.join(accepted)}")


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with captioner by name, such as `families/dot`.

    An installed package contains them; in a checkout they are in the folder `configs` next to it.
    """
    installed, checkout = _PACKAGE / "configs", _PACKAGE.parent / "configs"
    folder = installed if installed.is_dir() else checkout
    paths = sorted(folder.rglob("*.yaml"), key=lambda path: (len(path.parents), path))
    return {path.relative_to(folder).with_suffix("").as_posix(): path for path in paths}


def read_recipe(*recipes: str | Path, base: ModelConfig | None = None) -> Config:
    """Return the settings of a recipe, or of several, where later ones win.

    Args:
        recipes: Each a YAML file, or the name of a recipe that comes with captioner
            (`flickr8k_soft`).
        base: Settings of a model that the first recipe is laid over; None is the defaults.

    Raises:
        ConfigError: There is no such recipe, or it holds something else than settings; the message
            names the file.
    """
    sections: Sections = {} if base is None else asdict(base)
    config = Config() if base is None else _from_sections(Config, sections)
    for recipe in recipes:
        path = _find_recipe(str(recipe), Path())
        sections = _overlay(sections, _read_recipe(path, ()))
        try:
            config = _from_sections(Config, sections)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return config


def _find_recipe(recipe: str, folder: Path) -> Path:
    """Return the file of a recipe, given as a path relative to a folder or as a shipped name."""
    candidates = [folder / recipe, folder / f"{recipe}.yaml"]
    for path in candidates[: 1 if recipe.endswith((".yaml", ".yml")) else 2]:
        if os.path.isfile(path):  # Path.is_file raises for a name that no file can have
            return path
    shipped = shipped_recipes()
    if recipe in shipped:
        return shipped[recipe]
    top = ", ".join(name for name in shipped if "/" not in name)
    raise ConfigError(f"{candidates[0]}: no such recipe; name a YAML file, or one of {top}")


def _read_recipe(path: Path, below: tuple[Path, ...]) -> Sections:
    """Return a recipe's settings over those of its base; the recipes `below` are based on it."""
    if path.resolve() in below:
        raise ConfigError(f"{path}: is based on itself, by its base; name another base")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except _NO_YAML as error:
        raise ConfigError(f"{path}: no YAML ({error_summary(error)})") from None
    bases: Any = document.pop(BASE, None) if isinstance(document, dict) else None
    bases = [bases] if isinstance(bases, str) else [] if bases is None else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: base: names no recipe; use a name, a path or a list of these")
    sections: Sections = {}
    for base in bases:
        try:
            found = _find_recipe(base, path.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: base: {error}") from None
        sections = _overlay(sections, _read_recipe(found, (*below, path.resolve())))
    try:
        return _overlay(sections, _sections_of(Config, document))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None


def to_yaml(config: ModelConfig) -> str:
    """Return all settings as YAML, defaults included."""
    return yaml.dump(asdict(config), Dumper=_Dumper, sort_keys=False, allow_unicode=True)
