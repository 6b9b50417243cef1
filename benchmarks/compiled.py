"""Is `train.compile: inductor` worth its compile time on a CPU? The step of `benchmarks.step`.

    python -m benchmarks.compiled [--rounds 5] [--steps 2000]

The packed step, which a CPU takes by default, and the padded one compiled by torch.compile are
taken in turns on one core, in processor seconds, so that other work on the machine matters little.
Printed is how many times as fast a run is, compile time included, if all batches have one shape;
each further shape is compiled once more.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.step import batch_of, build_decoder, made_up_inputs
from captioner.config.settings import LossConfig
from captioner.training.cross_entropy import caption_losses
from captioner.types import Grid

BATCH = 32


def build_step(*, compiled: bool) -> Callable[[], None]:
    """Return a step of the soft decoder, forward and backward."""
    grids, tokens, lengths = made_up_inputs(BATCH, torch.device("cpu"))
    batch = batch_of(tokens, lengths, fixed_shape=compiled)
    torch.manual_seed(0)
    decoder = build_decoder()
    grid = Grid(grids, 14, 14)

    def loss() -> Tensor:
        forced = decoder(decoder.prepare(grid), batch.tokens, batch.lengths)
        return caption_losses(forced, batch, LossConfig())["total"]

    compute = torch.compile(loss, fullgraph=True, dynamic=False) if compiled else loss

    def step() -> None:
        decoder.zero_grad(set_to_none=not compiled)
        compute().backward()

    return step


def processor_seconds() -> float:
    """Return the processor seconds of this process and its compilers so far."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.compiler.config.force_disable_caches = True
    packed, compiled = build_step(compiled=False), build_step(compiled=True)
    packed()
    started = processor_seconds()
    compiled()
    compile_s = processor_seconds() - started
    print(f"compiled in {compile_s:.0f} processor seconds", flush=True)
    seconds: dict[Callable[[], None], list[float]] = {packed: [], compiled: []}
    for step in list(seconds) * arguments.rounds:
        started = processor_seconds()
        step()
        seconds[step].append(processor_seconds() - started)
    before, after = (statistics.median(seconds[step]) for step in (packed, compiled))
    run = arguments.steps * before / (compile_s + arguments.steps * after)
    print(f"a compiled step is {before / after:.2f} times as fast as a packed one")
    print(f"compile time is that of {compile_s / before:.0f} packed steps")
    print(f"a run of {arguments.steps} steps is {run:.2f} times as fast")


if __name__ == "__main__":
    main()
