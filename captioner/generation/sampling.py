"""Captions drawn from the model, as self-critical training needs them."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.generation.beam_search import END, PAD, START, unwritable
from captioner.models.decoders.base import Decoder
from captioner.types import Grid


def writable(logits: Tensor, *, first: bool) -> Tensor:
    """Logits [..., V] with what is never written at minus infinity."""
    logits = logits.clone()
    for token in unwritable(first=first):
        logits[..., token] = -torch.inf
    return logits


@torch.no_grad()
def sample(
    decoder: Decoder, grid: Grid, *, samples: int, max_words: int, greedy: bool = False
) -> tuple[Tensor, Tensor]:
    """Draw `samples` captions of each photo, word by word from the model's distribution.

    As in the search, of the special tokens only the end is written, and never first; `greedy` takes
    the likeliest word instead of drawing one.

    Returns tokens [B, samples, T], the end token last where a caption has ended, zeros behind it;
    and lengths [B, samples], the end token counted.
    """
    memory = decoder.prepare(grid)
    state = decoder.start(memory, samples)
    photos = len(grid.features)
    read = torch.full((photos, samples), START, device=grid.features.device)
    running = torch.ones_like(read, dtype=torch.bool)
    written: list[Tensor] = []
    for position in range(max_words):
        logits, _, state = decoder.step(read, state, memory)
        logits = writable(logits.float(), first=position == 0)
        if greedy:
            read = logits.argmax(-1)
        else:
            # As torch.multinomial draws; which on a GPU ends the process when there are NaNs.
            shares = logits.softmax(-1)
            read = (shares / torch.empty_like(shares).exponential_()).argmax(-1)
        written.append(read.masked_fill(~running, PAD))
        running = running & (read != END)
        if not bool(running.any()):
            break
    # Under autocast, weights that were cast here have no history: training must not meet them.
    torch.clear_autocast_cache()
    tokens = torch.stack(written, dim=-1)
    return tokens, (tokens != PAD).sum(-1)
