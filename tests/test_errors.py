"""A library's error message within a message for the user."""

from __future__ import annotations

import doctest

import captioner.errors


def test_the_examples_of_the_docstrings_hold() -> None:
    results = doctest.testmod(captioner.errors)
    assert results.failed == 0
    assert results.attempted > 0
