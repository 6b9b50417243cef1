"""The data sets of a recipe: one by the plain keys of `data`, or several in `data.sources`."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import fields, replace

from captioner.config.settings import Config, DataConfig, SourceConfig
from captioner.errors import ConfigError


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


def check_sources(config: Config) -> None:
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
