"""Signals that end a run."""

from __future__ import annotations

import signal

import pytest

from captioner.runtime.processes import DeferredInterrupts


@pytest.mark.parametrize("processes", [1, 2])
def test_a_second_signal_does_not_disturb_several_processes_that_end(
    monkeypatch: pytest.MonkeyPatch, processes: int
) -> None:
    monkeypatch.setattr("captioner.runtime.processes.world_size", lambda: processes)
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        with pytest.raises(KeyboardInterrupt), DeferredInterrupts() as interrupts:
            interrupts.interrupt()
        after = {number: signal.getsignal(number) for number in numbers}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if processes > 1:
        before |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_IGN)
    assert after == before
