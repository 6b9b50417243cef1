"""Ctrl-C, SIGTERM and a closed terminal, put off to the end of a step."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any

from captioner.data.dataset import SIGNALS


class Interrupts:
    """As a context, turns these signals into KeyboardInterrupt, but not while it is held.

    A step changes weights, optimiser and cursor one after another, and a checkpoint from between
    them would resume as another run. So a signal that comes while held waits for `release`; a
    second one does not wait, and then `held` is still true.
    """

    def __init__(self) -> None:
        self.held = False
        self._waiting = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupts:
        for name in SIGNALS:
            number = getattr(signal, name, None)
            # under nohup, a closed terminal is nothing to us
            if number is None or (name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN):
                continue
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def hold(self) -> None:
        self.held = True

    def release(self) -> None:
        """Raises KeyboardInterrupt if a signal came since `hold`."""
        self.held = False
        if self._waiting:
            self._waiting = False
            raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if not self.held or self._waiting:
            raise KeyboardInterrupt
        self._waiting = True
