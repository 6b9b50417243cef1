"""Signals that end a run, at the end of a step."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Any, NoReturn

import torch

from captioner.runtime.distributed import mean_over_processes, world_size

# Those that end a run; Windows has no SIGHUP.
SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class DeferredInterrupts:
    """Context that turns these signals into KeyboardInterrupt, but not while they are deferred.

    A step changes weights, optimizer and cursor one after another, and a checkpoint from between
    them would resume as another run. So a signal that comes while `deferred` is true waits for
    `release` or `interrupt`. A second one of its kind ends the process at once, as a kill does.

    Several processes always defer signals, because one that leaves alone leaves the others waiting:
    `release` finds out whether any of them received one. A second one changes nothing there:
    torchrun passes on what a terminal has sent to all of them already.
    """

    def __init__(self) -> None:
        self.deferred = False
        self.pending = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> DeferredInterrupts:
        self.deferred = world_size() > 1
        for number in SIGNALS:
            # under nohup, a closed terminal must not end the run
            if number.name == "SIGHUP" and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # torchrun may pass on what ended the run once more while its processes end
        ended = world_size() > 1 and isinstance(error, KeyboardInterrupt)
        for number, handler in self._previous.items():
            ignored = ended and number != signal.SIGINT  # Ctrl-C can still end what hangs
            signal.signal(number, signal.SIG_IGN if ignored else handler)

    def release(self) -> None:
        """Stop deferring, and raise what is pending in any process; all call it together."""
        if mean_over_processes(torch.tensor(float(self.pending))):
            self.interrupt()
        self.deferred = world_size() > 1

    def interrupt(self) -> NoReturn:
        """Raise the KeyboardInterrupt that was deferred; all processes call it together."""
        self.deferred = self.pending = False
        raise KeyboardInterrupt

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if world_size() == 1:
            signal.signal(number, signal.SIG_DFL)  # for the second one
            if not self.deferred:
                raise KeyboardInterrupt
        self.pending = True
