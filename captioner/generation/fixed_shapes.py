"""Beam search on a GPU: all shapes stay, so that CUDA graphs can replay it."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

from array_api_compat import array_namespace

from captioner.generation.beam_search import (
    CHECK_EVERY,
    Beam,
    Hypothesis,
    SearchOptions,
    repeatable_words,
)
from captioner.models.decoders.base import StepDecoder
from captioner.runtime.cuda_graphs import GraphCache
from captioner.runtime.device import padded_size
from captioner.types import Grid, given_mode

MOST_SEARCHES = 32  # shapes and options whose graphs are held: a server's clients may ask for any


def search_in_fixed_shapes(
    decoder: StepDecoder, grid: Grid, options: SearchOptions, graphs: GraphCache
) -> list[list[Hypothesis]]:
    """Search in whole batches; ask the device only every few words whether all are done."""
    images, *shape = grid.features.shape
    size, count = padded_size(images), options.num_captions
    options = replace(options, num_captions=1, at_test=None, paths=0, seed=None)  # as all graphs
    key = (size, *shape, grid.height, grid.width, grid.features.dtype, options, given_mode.get())
    xp = array_namespace(grid.features)
    if key not in graphs.inputs and len(graphs.inputs) >= 2 * MOST_SEARCHES:
        graphs.clear()
    # The last image fills the batch: an empty one could take longer than all others.
    index = xp.clip(xp.arange(size, device=grid.features.device), max=images - 1)
    grid = graphs.hold(key, grid.select(index))
    repeatable = graphs.keep((key, "repeatable"), lambda: repeatable_words(grid, options))

    def write(beam: Beam | None, first: int) -> Beam:
        # A copy: what was returned before must stay as it is, to be replayed.
        beam = copy.copy(beam) if beam else Beam(decoder, grid, options, repeatable)
        beam.trace = [*beam.trace]
        for _ in range(first, min(first + CHECK_EVERY, options.max_words)):
            beam.write_word()
        return beam

    beam, first = None, 0
    while beam is None or (any(beam.read_running()) and first < options.max_words):
        after = (key, first - CHECK_EVERY) if beam else None
        beam = graphs.run((key, first), partial(write, beam, first), after=after)
        first += CHECK_EVERY
    return beam.hypotheses(count)[:images]
