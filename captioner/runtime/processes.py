"""The processes of a training run, as torchrun starts them, and the signals that end them."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from captioner.errors import CaptionerError, ConfigError, error_summary
from captioner.log import logger
from captioner.runtime.distributed import Result, from_all, mean_over_processes, rank, world_size

JOIN_WITHIN = timedelta(minutes=5)
# Without a message, after which a process counts as lost; one that ended is noticed at once.
LOST_AFTER = timedelta(minutes=30)
# Those that end a run; Windows has no SIGHUP.
SIGNALS = [each for each in signal.Signals if each.name in ("SIGINT", "SIGTERM", "SIGHUP")]


@contextmanager
def processes(device: str) -> Iterator[None]:
    """Join the processes that torchrun started, or none, and leave them at the end.

    Process 0 says what all find: of the others, notes, warnings and progress bars are left out.

    Args:
        device: `train.device`; unless it is `cpu`, each process takes a GPU of its own.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield
        return
    backend = "gloo"
    if device != "cpu" and torch.cuda.is_available():
        # without torchrun: all processes on one machine
        local = int(os.environ.get("LOCAL_RANK", os.environ.get("RANK", "0")))
        gpus = torch.cuda.device_count()
        if ":" in device:
            raise ConfigError(f"train.device: {device} is one GPU; use cuda with several processes")
        if local >= gpus:
            raise ConfigError(f"--nproc-per-node: this machine has {gpus} GPUs; use {gpus} or less")
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    _join(backend)
    if rank() > 0:
        logger.setLevel(logging.ERROR)
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and "gloo" not in str(error).lower():
            raise
        reason = error_summary(error, part="sentence")
        raise CaptionerError(
            f"another process of this run ended or cannot be reached ({reason}); go on with "
            "--resume, which torchrun does by itself with --max-restarts N"
        ) from None
    finally:
        dist.destroy_process_group()


def _join(backend: str) -> None:
    """Make the process group of the run, once all its processes have come."""
    try:
        store, number, count = next(rendezvous("env://", timeout=JOIN_WITHIN))
        # Each attempt has names of its own: processes that torchrun started again would otherwise
        # find the addresses of the earlier ones.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        store = dist.PrefixStore(f"captioner attempt {attempt}", store)  # type: ignore[attr-defined]
        # Not in init_process_group, which would wait for them as long as for a result.
        store.set(f"joined {number}", "")
        store.wait([f"joined {each}" for each in range(count)], JOIN_WITHIN)
        dist.init_process_group(
            backend, store=store, rank=number, world_size=count, timeout=LOST_AFTER
        )
    except (RuntimeError, ValueError) as error:
        reason = error_summary(error, part="sentence")
        raise CaptionerError(
            f"the {os.environ['WORLD_SIZE']} processes of this run did not all join within "
            f"{JOIN_WITHIN.total_seconds():g} s ({reason}); start each of them, which torchrun "
            "does, with the same MASTER_ADDR and MASTER_PORT"
        ) from None


def gathered(values: Sequence[Result]) -> list[Result]:
    """Return the values of all processes, in turns: undoes `values[rank() :: world_size()]`."""
    shares = from_all(list(values))
    joined: list[Any] = [None] * sum(map(len, shares))
    for number, share in enumerate(shares):
        joined[number :: len(shares)] = share
    return joined


def from_first_process(function: Callable[[], Result]) -> Result:
    """Return in all processes what a function returns in process 0, the only one to call it.

    Errors are as of `in_all_processes`.
    """
    result: Any = in_all_processes(lambda: function() if rank() == 0 else None)
    return from_all(result)[0]


def in_all_processes(function: Callable[[], Result]) -> Result:
    """Call a function in all processes, and go on if it raised an error in none.

    Raises:
        CaptionerError: In the first process that raised one.
        SystemExit: In all others, so that a mistake is reported once.
    """
    if world_size() == 1:
        return function()
    error: CaptionerError | None = None
    try:
        result = function()
    except CaptionerError as raised:
        error = raised
    for process, first in enumerate(from_all(error)):
        if first is not None:
            raise (error if error and process == rank() else SystemExit(2)) from None
    return result


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
