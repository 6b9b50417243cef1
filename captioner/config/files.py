"""Settings from YAML files and options, and back."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TypeVar, get_args, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from captioner.errors import ConfigError

ConfigT = TypeVar("ConfigT")
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster where libyaml is there


def parser_for(config_class: type, **options: Any) -> ArgumentParser:
    """Command line parser with an option `--section.key` for every setting of the class."""
    parser = ArgumentParser(**options)
    parser.add_class_arguments(config_class, None)
    return parser


def from_yaml(config_class: type[ConfigT], text: str) -> ConfigT:
    """Settings from YAML; what is not named keeps its default.

    Raises:
        ConfigError: an unknown key or a value of the wrong type, by name.
    """
    try:
        given = yaml.safe_load(text)
        text = yaml.safe_dump(_checked(config_class, {} if given is None else given))
        parser = parser_for(config_class, exit_on_error=False)
        config = config_class(**vars(parser.instantiate(parser.parse_string(text))))
    except (ArgumentError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(one_line(str(error))) from None
    refuse_null(config)
    return config


def refuse_null(config: Any) -> None:
    """Refuse a null where a setting must have a value: jsonargparse takes one for any type.

    Raises:
        ConfigError: names the key.
    """
    for section, settings in vars(config).items():
        hints = get_type_hints(type(settings))
        for key, value in vars(settings).items():
            if value is None and type(None) not in get_args(hints[key]):
                raise ConfigError(f"{section}.{key}: must have a value")


def _checked(config_class: type, given: Any) -> dict[str, Any]:
    """What jsonargparse takes without a word, or refuses without saying what is accepted."""
    sections = {name: type(value) for name, value in vars(config_class()).items()}
    if not isinstance(given, dict):
        raise ConfigError(f"the settings are no sections; use {', '.join(sections)}")
    checked = {}
    for section, settings in given.items():
        if section not in sections:
            raise ConfigError(f"{section}: no such section; use one of {', '.join(sections)}")
        settings = {} if settings is None else settings
        if not isinstance(settings, dict):
            raise ConfigError(f"{section}: holds no settings; write one 'key: value' a line")
        hints = get_type_hints(sections[section])
        for key in settings:
            if key not in hints:
                raise ConfigError(
                    f"{section}.{key}: no such setting; use one of {', '.join(hints)}"
                )
        checked[section] = settings
    return checked


def to_yaml(config: Any) -> str:
    """The settings in full."""
    return yaml.dump(_plain(asdict(config)), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def one_line(message: str) -> str:
    """A message of several lines as one sentence."""
    return " ".join(message.split())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
