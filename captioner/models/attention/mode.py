"""How hard attention chooses its cell outside of training, for engines with PyTorch and without."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from captioner.config import HardAttentionMode

# Per context and not per model: the threads of a server share the model.
given_mode: ContextVar[HardAttentionMode | None] = ContextVar("hard_attention_mode", default=None)


@contextlib.contextmanager
def hard_attention_mode(at_test: HardAttentionMode) -> Iterator[None]:
    """Let all hard attention outside of training choose by `at_test`, in this thread's context."""
    token = given_mode.set(at_test)
    try:
        yield
    finally:
        given_mode.reset(token)
