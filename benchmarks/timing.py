"""Times taken in turns, and the limits of the machine that they are set against."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import torch

ROUNDS = 5
K = TypeVar("K")  # names a call


def has_bfloat16(device: torch.device) -> bool:
    """Return whether a device computes in bfloat16; a CPU without is 18 times slower in it."""
    return device.type != "cpu" or torch.cpu._is_avx512_bf16_supported()


@dataclass(frozen=True)
class Timing:
    """Seconds of a call: the median of several, the least, the most."""

    median_s: float
    least_s: float
    most_s: float


@dataclass
class Table:
    """Rows of one benchmark: what, its time, and ratios to name."""

    title: str
    rows: list[dict[str, Any]]

    def text(self) -> str:
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
        for row in self.rows:
            lines.append("| " + " | ".join(_shown(row.get(name)) for name in names) + " |")
        return "\n".join([f"## {self.title}", "", *lines])


def _shown(value: object) -> str:
    if value is None:
        return "not measured"
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 100 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def in_turns(
    calls: Mapping[K, Callable[[], object]],
    *,
    device: torch.device | None = None,
    rounds: int = ROUNDS,
) -> dict[K, Timing]:
    """Time each call once a round, after one to warm up: what slows one round slows all of it.

    Processes apart end with it.
    """
    seconds: dict[K, list[float]] = {name: [] for name in calls}
    for round_ in range(rounds + 1):
        for name, call in calls.items():
            _wait(device)
            started = time.perf_counter()
            call()
            _wait(device)
            if round_:
                seconds[name].append(time.perf_counter() - started)
    for call in calls.values():
        if isinstance(call, Apart):
            call.close()
    return {
        name: Timing(statistics.median(each), min(each), max(each))
        for name, each in seconds.items()
    }


class Apart:
    """A call in a process of its own, which is as its users start it: our settings are not its.

    build: function of a module, from `arguments` to the call; what the call returned last is kept
    in `result`.
    """

    result: Any = None

    def __init__(self, build: Callable[..., Callable[[], object]], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, build, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def __call__(self) -> Any:
        self._connection.send(None)
        self.result = self._connection.recv()
        return self.result

    def close(self) -> None:
        self._connection.close()
        self._process.join()


def _serve(
    connection: Connection, build: Callable[..., Callable[[], object]], arguments: tuple[object]
) -> None:
    call = build(*arguments)
    while True:
        try:
            connection.recv()
        except EOFError:
            return
        connection.send(call())


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)


def matrix_rate(
    rows: int, inner: int, columns: int, *, device: torch.device, dtype: torch.dtype
) -> float:
    """Floating point operations a second of a linear layer of these sizes."""
    inputs = torch.randn(rows, inner, device=device, dtype=dtype)
    weight = torch.randn(columns, inner, device=device, dtype=dtype)
    # One product takes a GPU less time than to launch it and to wait for it.
    products = 100 if device.type == "cuda" else 1

    def multiply() -> None:
        for _ in range(products):
            torch.nn.functional.linear(inputs, weight)

    timing = in_turns({"product": multiply}, device=device, rounds=15)["product"]
    return 2 * products * rows * inner * columns / timing.median_s


def peak_memory_mib(device: torch.device) -> float:
    """Most memory that the process has had: in RAM, or on a GPU since this was last asked."""
    if device.type == "cuda":
        peak = torch.cuda.max_memory_allocated(device) / 2**20
        torch.cuda.reset_peak_memory_stats(device)
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def descendants(pid: int) -> list[int]:
    """Return a process and all that it has started and that still run (Linux)."""
    found = [pid]
    for process in found:  # which grows
        with contextlib.suppress(OSError):
            for task in Path(f"/proc/{process}/task").iterdir():
                found += map(int, (task / "children").read_text().split())
    return found


def machine(device: torch.device) -> dict[str, Any]:
    """What the figures belong to."""
    name = platform.processor() or platform.machine()
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            models = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
        name = models[0] if models else name
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
