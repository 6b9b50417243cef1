"""Recipes: YAML files of settings that may name the recipes they are based on."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from captioner.config.files import from_sections, overlay, sections_of
from captioner.config.settings import Config, ModelConfig
from captioner.errors import ConfigError, error_summary

BASE = "base"  # the key that names the recipe, or recipes, that a recipe is based on
_PACKAGE = Path(__file__).resolve().parents[1]


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
    sections: dict[str, dict[str, Any]] = {} if base is None else asdict(base)
    config = Config() if base is None else from_sections(Config, sections)
    for recipe in recipes:
        path = _find(str(recipe), Path())
        sections = overlay(sections, _read(path, ()))
        try:
            config = from_sections(Config, sections)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from None
    return config


def _find(recipe: str, folder: Path) -> Path:
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


def _read(path: Path, below: tuple[Path, ...]) -> dict[str, dict[str, Any]]:
    """Return a recipe's settings laid over those of its base.

    Args:
        below: Recipes that are based on it, to detect circles.
    """
    if path.resolve() in below:
        raise ConfigError(f"{path}: is based on itself, by its base; name another base")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: no YAML ({error_summary(error)})") from None
    bases: Any = document.pop(BASE, None) if isinstance(document, dict) else None
    bases = [bases] if isinstance(bases, str) else [] if bases is None else bases
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"{path}: base: names no recipe; use a name, a path or a list of these")
    sections: dict[str, dict[str, Any]] = {}
    for base in bases:
        try:
            found = _find(base, path.parent)
        except ConfigError as error:
            raise ConfigError(f"{path}: base: {error}") from None
        sections = overlay(sections, _read(found, (*below, path.resolve())))
    try:
        return overlay(sections, sections_of(Config, document))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
