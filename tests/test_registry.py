"""What can be chosen by name exists, and a name that does not is refused with those that do."""

from __future__ import annotations

import pytest

from captioner import registry
from captioner.errors import ConfigError
from captioner.registry import Registry

REGISTRIES = [value for value in vars(registry).values() if isinstance(value, Registry)]


@pytest.mark.parametrize(
    ("choices", "name"),
    [(choices, name) for choices in REGISTRIES for name in choices],
    ids=lambda value: value.key if isinstance(value, Registry) else value,
)
def test_every_entry_can_be_imported(choices: Registry, name: str) -> None:
    assert choices[name] is not None


def test_an_unknown_name_is_refused_with_the_key_and_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        registry.SCORES["bilinear"]
    for fact in (registry.SCORES.key, "bilinear", *registry.SCORES):
        assert fact in str(caught.value)
    assert "bilinear" not in registry.SCORES
    assert "additive" in registry.SCORES
