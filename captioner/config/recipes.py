"""Settings from recipes (YAML files that may name a base) and from options."""

from __future__ import annotations

import os
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

import yaml
from jsonargparse import ArgumentParser, Namespace

from captioner.config.fields import in_words
from captioner.config.model import (
    NO_YAML,
    ConfigT,
    ModelConfig,
    Sections,
    from_sections,
)
from captioner.config.settings import Config
from captioner.errors import ConfigError, error_summary

BASE = "base"  # the key that names the recipe, or recipes, that a recipe is based on

_PACKAGE = Path(__file__).resolve().parents[1]


def parser_for(config_class: type[ModelConfig], **options: Any) -> ArgumentParser:
    """Return an `ArgumentParser` with an option `--section.key` for every setting."""
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
        if not self.exit_on_error:
            super().error(message, ex)
        # About a value, jsonargparse says which Python types failed; we say what is accepted.
        place = re.search(r'key "(\w+)\.(\w+)"', message)
        section = getattr(self.config_class(), place[1], None) if place else None
        if place is None or section is None:
            raise ConfigError(error_summary(message)) from None
        accepted = in_words(get_type_hints(type(section))[place[2]])
        raise ConfigError(f"{place[1]}.{place[2]}: use {accepted}") from None


def instantiate(config_class: type[ConfigT], parsed: Namespace) -> ConfigT:
    """Return what a parser of `parser_for` has read as settings.

    Raises:
        ConfigError: A value is not accepted; names its key.
    """
    sections = parsed.as_dict()
    return from_sections(config_class, {f.name: sections[f.name] for f in fields(config_class)})


def _overlay(below: Sections, above: Sections) -> Sections:
    """Return the settings of both, those of `above` where both have a setting."""
    return {
        section: {**below.get(section, {}), **above.get(section, {})}
        for section in {**below, **above}
    }


def shipped_recipes() -> dict[str, Path]:
    """Return the recipes that come with captioner by name, such as `families/dot`."""
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
        ConfigError: There is no such recipe, or it holds something else than settings.
    """
    sections: Sections = {} if base is None else asdict(base)
    for recipe in recipes:
        sections = _overlay(sections, _read_recipe(_find_recipe(str(recipe), Path()), ()))
    return from_sections(Config, sections)


def _find_recipe(recipe: str, folder: Path) -> Path:
    """Return the file of a recipe, given as a path relative to a folder or as a shipped name."""
    for path in (folder / recipe, folder / f"{recipe}.yaml"):
        if os.path.isfile(path):  # Path.is_file raises for a name that no file can have
            return path
    shipped = shipped_recipes()
    if recipe in shipped:
        return shipped[recipe]
    top = ", ".join(name for name in shipped if "/" not in name)
    raise ConfigError(f"{folder / recipe}: no such recipe; name a YAML file, or one of {top}")


def _read_recipe(path: Path, below: tuple[Path, ...]) -> Sections:
    """Return a recipe's settings over those of its base; the recipes `below` are based on it."""
    if path.resolve() in below:
        raise ConfigError(f"{path}: is based on itself, by its base; name another base")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, *NO_YAML) as error:
        raise ConfigError(f"{path}: cannot be read as YAML ({error_summary(error)})") from None
    document = {} if document is None else document
    bases: Any = document.pop(BASE, None) or [] if isinstance(document, dict) else []
    sections: Sections = {}
    try:
        for base in bases if isinstance(bases, list) else [bases]:
            found = _find_recipe(str(base), path.parent)
            sections = _overlay(sections, _read_recipe(found, (*below, path.resolve())))
        config = from_sections(Config, document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    above = {
        section: {key: v for key, v in vars(settings).items() if key in (document[section] or {})}
        for section, settings in vars(config).items()
        if section in document
    }
    return _overlay(sections, above)
