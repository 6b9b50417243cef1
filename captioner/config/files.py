"""Settings from YAML files and options, and back."""

from __future__ import annotations

import re
import sys
from dataclasses import asdict
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from captioner.errors import ConfigError

ConfigT = TypeVar("ConfigT")
_Dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # ten times faster where libyaml is there


def parser_for(config_class: type, **options: Any) -> ArgumentParser:
    """Command line parser with an option `--section.key` for every setting of the class."""
    parser = _Parser(**options)
    parser.config_class = config_class
    parser.add_class_arguments(config_class, None)
    return parser


class _Parser(ArgumentParser):
    """Refuses in one sentence, in a user's words, and without a page of all options before it."""

    config_class: type

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if self.exit_on_error:
            print(f"error: {_plain_refusal(self.config_class, message)}", file=sys.stderr)
            sys.exit(2)
        super().error(message, ex)


def _plain_refusal(config_class: type, message: str) -> str:
    """jsonargparse's sentences about a value of the wrong type, as one that names what is accepted.

    Other messages stay as they are, on one line.
    """
    message = one_line(message)
    found = re.search(r'key "(\w+)\.(\w+)".*G(?:ot|iven) value: (.*)', message)
    sections = vars(config_class())
    if found is None or found[1] not in sections:
        return message
    section, key, value = found.groups()
    hint = get_type_hints(type(sections[section])).get(key)
    return f"{section}.{key}: {value} is not accepted; use {_in_words(hint)}"


def _in_words(hint: Any) -> str:
    """What a type accepts.

    >>> _in_words(Literal["soft", "hard"] | None)
    'soft, hard or null'
    """
    kinds: dict[Any, str] = {
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        str: "text",
        type(None): "null",
    }
    if hint in kinds:
        return kinds[hint]
    if get_origin(hint) is tuple and Ellipsis in get_args(hint):
        return "a list of texts, as [one, other]"
    if get_origin(hint) is tuple:
        return f"a list of {len(get_args(hint))} numbers"
    if get_origin(hint) is Literal:
        choices = [str(choice) for choice in get_args(hint)]
    else:
        choices = [_in_words(choice) for choice in get_args(hint)]
    if len(choices) < 2:
        return choices[0]
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def from_yaml(config_class: type[ConfigT], *texts: str) -> ConfigT:
    """Settings from YAML texts, each laid over those before; what none names keeps its default.

    Raises:
        ConfigError: an unknown key or a value of the wrong type, by name.
    """
    try:
        whole: dict[str, dict[str, Any]] = {}
        for given in map(yaml.safe_load, texts):
            for section, settings in _checked(config_class, {} if given is None else given).items():
                whole[section] = {**whole.get(section, {}), **settings}
        text = yaml.safe_dump(whole)
        parser = parser_for(config_class, exit_on_error=False)
        config = config_class(**vars(parser.instantiate(parser.parse_string(text))))
    except (ArgumentError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(_plain_refusal(config_class, str(error))) from None
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
