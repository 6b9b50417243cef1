"""Examples in docstrings give what they say."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    "module",
    (
        "errors types data.image_finder data.tokenizers data.vocabulary cli.alt_text files "
        "cli.suggestions generation.earlier_features visualization.style visualization.word_pictures"
    ).split(),
)
def test_examples_of_docstrings_hold(module: str) -> None:
    results = doctest.testmod(import_module(f"captioner.{module}"))
    assert results.attempted > 0
    assert results.failed == 0
