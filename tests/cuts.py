"""Runs that end in the middle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from captioner.training import cross_entropy, step, trainer

MODULES = (trainer, step, cross_entropy)


class Interrupted(Exception):
    """A power cut: nothing is saved on the way out."""


def interrupt(
    monkeypatch: pytest.MonkeyPatch, name: str, call: int, error: type[BaseException]
) -> None:
    """Let a function that the training loop or its parts call raise at its n-th call."""
    calls = 0
    module = next(module for module in MODULES if hasattr(module, name))
    original: Callable[..., Any] = getattr(module, name)

    def called(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, called)
