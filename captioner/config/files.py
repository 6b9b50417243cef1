"""Settings from YAML texts and command line options, and back to YAML."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn, TypeVar, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser, Namespace

from captioner.config.fields import in_words
from captioner.config.settings import ModelConfig, SourceConfig
from captioner.config.validation import validate_section
from captioner.errors import ConfigError, error_summary

ConfigT = TypeVar("ConfigT", bound=ModelConfig)
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster where libyaml is there


def parser_for(config_class: type[ModelConfig], **options: Any) -> ArgumentParser:
    """Return a command line parser with an option `--section.key` for every setting.

    Args:
        config_class: `Config` or `ModelConfig`.
        options: For `ArgumentParser`.
    """
    parser = _Parser(**options)
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
    """Reports an error in one sentence, without the list of all options in front of it."""

    config_class: type[ModelConfig]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            print(f"error: {_refusal(self.config_class, message)}", file=sys.stderr)
            sys.exit(2)
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
    if hint is None:
        return message
    if key == "sources":
        of_source = get_type_hints(SourceConfig)
        unknown = re.search(r"Option '([^']*)' is not accepted", message)
        if unknown:
            accepted = ", ".join(of_source)
            return f"data.sources: {unknown[1]}: no such setting; use one of {accepted}"
        inner = re.search(r'key "(\w+)":', message)
        if inner and inner[1] in of_source:
            hint, key = of_source[inner[1]], f"{key}: {inner[1]}"
            message = message[inner.end() :].split(" - ")[0]
    value = re.search(r"(?:Got|Given) value: (.*)", message) or re.search(
        r"Not of type \w+: (.*?) (?:does not conform|not an? )", message
    )
    value = value or re.search(r"(?:with base 10|to float): (.*)", message)
    given = value[1] if value else "null" if "'NoneType'" in message else "this"
    return f"{section}.{key}: {given} is not accepted; use {in_words(hint)}"


def from_yaml(config_class: type[ConfigT], *texts: str) -> ConfigT:
    """Return settings from YAML texts, where later ones win; other settings keep their defaults.

    Raises:
        ConfigError: An unknown key or a value that is not accepted, by its name.
    """
    try:
        merged: dict[str, dict[str, Any]] = {}
        for text in texts:
            merged = overlay(merged, sections_of(config_class, _load_yaml(text)))
        return from_sections(config_class, merged)
    except yaml.YAMLError as error:
        raise ConfigError(error_summary(error)) from None


def _load_yaml(text: str) -> Any:
    """Read YAML.

    Raises:
        ConfigError: It is none, such as a date that does not exist.
    """
    try:
        return yaml.safe_load(text)
    except (ValueError, RecursionError, yaml.YAMLError) as error:
        raise ConfigError(error_summary(error)) from None


def from_sections(config_class: type[ConfigT], sections: dict[str, dict[str, Any]]) -> ConfigT:
    """Return settings from values by section and key; others keep their defaults.

    Raises:
        ConfigError: A value that is not accepted, by its name.
    """
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
        changed = {field.name: getattr(value, field.name) for field in fields(value)}
        return replace(value, **{key: _with_plain_numbers(item) for key, item in changed.items()})
    if isinstance(value, tuple):
        return tuple(map(_with_plain_numbers, value))
    for kind in (int, float):
        if isinstance(value, kind) and not isinstance(value, bool):
            return kind(value)
    return value


def overlay(
    below: dict[str, dict[str, Any]], above: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return the settings of both, those of `above` where both have a setting."""
    return {
        section: {**below.get(section, {}), **above.get(section, {})}
        for section in {**below, **above}
    }


def sections_of(config_class: type[ModelConfig], document: Any) -> dict[str, dict[str, Any]]:
    """Return a YAML document's settings by section and key.

    Raises:
        ConfigError: A key names no section or no setting; the message names the accepted ones.
    """
    accepted = {name: type(settings) for name, settings in vars(config_class()).items()}
    document = {} if document is None else document
    if not isinstance(document, dict):
        raise ConfigError(f"the settings are no sections; use {', '.join(accepted)}")
    sections: dict[str, dict[str, Any]] = {}
    for section, settings in document.items():
        if section not in accepted:
            raise ConfigError(f"{section}: no such section; use one of {', '.join(accepted)}")
        settings = {} if settings is None else settings
        if not isinstance(settings, dict):
            raise ConfigError(f"{section}: holds no settings; write one 'key: value' a line")
        _check_keys(accepted[section], settings, f"{section}.")
        if section == "data" and isinstance(settings.get("sources"), list):
            for position, source in enumerate(settings["sources"], start=1):
                if not isinstance(source, dict):
                    raise ConfigError(
                        f"data.sources: the {position}. entry holds no settings; use "
                        f"{', '.join(get_type_hints(SourceConfig))}"
                    )
                _check_keys(SourceConfig, source, "data.sources: ")
        sections[section] = settings
    return sections


def _check_keys(section: type, settings: dict[str, Any], prefix: str) -> None:
    accepted = get_type_hints(section)
    for key in settings:
        if key not in accepted:
            raise ConfigError(f"{prefix}{key}: no such setting; use one of {', '.join(accepted)}")


def to_yaml(config: ModelConfig) -> str:
    """Return all settings as YAML, defaults included."""
    return yaml.dump(_plain(asdict(config)), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _plain(value: Any) -> Any:
    """Return nested settings with lists in place of tuples, which YAML has not."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
