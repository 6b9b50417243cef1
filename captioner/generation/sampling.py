"""Captions drawn at random from the model's distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from captioner.generation.beam_search import END, PAD, START, unwritable
from captioner.models.decoders.base import Decoder
from captioner.types import Grid


def writable(logits: Tensor, *, first: bool) -> Tensor:
    """Return logits [..., V] with minus infinity for the tokens that no caption holds."""
    logits = logits.clone()
    for token in unwritable(first=first):
        logits[..., token] = -torch.inf
    return logits


def truncate(logits: Tensor, *, top_k: int | None, top_p: float | None) -> Tensor:
    """Return logits [..., V] with minus infinity for all but the likeliest words.

    Args:
        logits: [..., V].
        top_k: Keep so many words (Fan et al., 2018); None keeps all.
        top_p: Keep the fewest likeliest words whose probabilities sum to at least this (nucleus
            sampling, Holtzman et al., 2020); None keeps all. Applied after top_k.
    """
    if top_k is not None and top_k < logits.shape[-1]:
        least = logits.topk(top_k, dim=-1).values[..., -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if top_p is not None and top_p < 1:
        ranked, index = logits.sort(dim=-1, descending=True, stable=True)
        shares = ranked.softmax(-1)
        before = shares.cumsum(-1) - shares  # probability of all likelier words
        drop = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, index, before >= top_p)
        logits = logits.masked_fill(drop, -torch.inf)
    return logits


@torch.no_grad()
def sample(
    decoder: Decoder,
    grid: Grid,
    *,
    samples: int,
    max_words: int,
    greedy: bool = False,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Draw captions of each image, word by word.

    As in the search, of the special tokens only the end is written, and never first.

    Args:
        decoder: Writes the captions.
        grid: Of B images.
        samples: Captions an image.
        max_words: Words after which captions are cut off.
        greedy: Take the likeliest word instead of drawing one.
        temperature: Logits are divided by it: below 1 likely words become likelier.
        top_k: Draw from so many likeliest words only.
        top_p: Draw from the fewest likeliest words that have this probability together.
        generator: Random numbers; None draws from the default one of the device.

    Returns:
        Tokens [B, samples, T], the end token last where a caption has ended and zeros behind it,
        and lengths [B, samples], the end token counted.
    """
    memory = decoder.prepare(grid)
    state = decoder.start(memory, samples)
    images = len(grid.features)
    tokens = torch.full((images, samples), START, device=grid.features.device)
    running = torch.ones_like(tokens, dtype=torch.bool)
    written: list[Tensor] = []
    for position in range(max_words):
        logits, _, state = decoder.step(tokens, state, memory)
        logits = writable(logits.float(), first=position == 0)
        if greedy:
            tokens = logits.argmax(-1)
        else:
            if temperature != 1:
                logits = logits / temperature
            # As torch.multinomial draws; which on a GPU ends the process when there are NaNs.
            shares = truncate(logits, top_k=top_k, top_p=top_p).softmax(-1)
            clocks = torch.empty_like(shares).exponential_(generator=generator)
            tokens = (shares / clocks).argmax(-1)
        written.append(tokens.masked_fill(~running, PAD))
        running = running & (tokens != END)
        if not bool(running.any()):
            break
    # Under autocast, weights that were cast here have no history: training must not meet them.
    torch.clear_autocast_cache()
    stacked = torch.stack(written, dim=-1)
    return stacked, (stacked != PAD).sum(-1)
