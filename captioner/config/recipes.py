"""Recipes: settings of training in YAML files, which may name a base."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

import yaml

from captioner.config.fields import NO_YAML, settings_from
from captioner.config.settings import Config, ModelConfig
from captioner.errors import ConfigError, error_summary

BASE = "base"  # the key that names the recipe, or recipes, that a recipe is based on

_PACKAGE = Path(__file__).resolve().parents[1]

Sections: TypeAlias = dict[str, dict[str, Any]]  # settings by section and key


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
    """
    sections: Sections = {} if base is None else asdict(base)
    for recipe in recipes:
        sections = _overlay(sections, _read_recipe(_find_recipe(str(recipe), Path()), ()))
    return settings_from(Config, sections)


def _overlay(below: Sections, above: Sections) -> Sections:
    """Return the settings of both, those of `above` where both have a setting."""
    return {
        section: {**below.get(section, {}), **above.get(section, {})}
        for section in {**below, **above}
    }


def _find_recipe(recipe: str, folder: Path) -> Path:
    """Return the file of a recipe, given as a path relative to a folder or as a shipped name."""
    for path in (folder / recipe, folder / f"{recipe}.yaml"):
        if os.path.isfile(path):  # Path.is_file raises for a name that no file can have
            return path
    shipped = shipped_recipes()
    if recipe in shipped:
        return shipped[recipe]
    names = ", ".join(name for name in shipped if ("/" in name) == recipe.startswith("families/"))
    raise ConfigError(f"{folder / recipe}: no such recipe; name a YAML file, or one of {names}")


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
        config = settings_from(Config, document)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    above = {
        section: {key: v for key, v in vars(settings).items() if key in (document[section] or {})}
        for section, settings in vars(config).items()
        if section in document
    }
    return _overlay(sections, above)
