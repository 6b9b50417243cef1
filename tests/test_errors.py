"""A library's error message within a message for the user."""

from __future__ import annotations

import doctest

import captioner.errors
from captioner.errors import error_summary


def test_the_examples_of_the_docstrings_hold() -> None:
    results = doctest.testmod(captioner.errors)
    assert results.failed == 0
    assert results.attempted > 0


def test_a_message_is_put_on_one_line_and_cut() -> None:
    message = "mapping values\n  are not allowed here\n\tin line 3"
    assert error_summary(message) == "mapping values are not allowed here in line 3"
    assert error_summary(ValueError(message), max_length=14) == "mapping values"


def test_an_error_without_a_message_is_named_by_its_class() -> None:
    assert error_summary(EOFError()) == "EOFError"
    assert error_summary("") == ""
