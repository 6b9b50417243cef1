"""Runs and saves that end in the middle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import pytest

from captioner.training import cross_entropy, step, trainer

MODULES = (trainer, step, cross_entropy)


class Interrupted(Exception):
    """A power cut: nothing is saved on the way out."""


def interrupt(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    call: int,
    error: type[BaseException] | BaseException,
    modules: Sequence[ModuleType] = MODULES,
) -> None:
    """Let a function of one of the modules, which others call, raise at its n-th call."""
    calls = 0
    module = next(module for module in modules if hasattr(module, name))
    original: Callable[..., Any] = getattr(module, name)

    def called(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error
        return original(*arguments, **options)

    monkeypatch.setattr(module, name, called)
