"""Captions drawn at random from the model's distribution."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from array_api_compat import array_namespace, is_numpy_array

from captioner.generation.arrays import Array, log_softmax, without_gradients
from captioner.generation.beam_search import CHECK_EVERY, END, PAD, START, SearchOptions, unwritable
from captioner.types import Grid

if TYPE_CHECKING:
    import torch

    from captioner.models.decoders.base import StepDecoder

Generator: TypeAlias = "torch.Generator | np.random.Generator"


def writable(logits: Array, *, may_end: bool) -> Array:
    """Return logits [..., V] with minus infinity for the tokens that no caption holds."""
    xp = array_namespace(logits)
    ruled_out = xp.zeros((logits.shape[-1],), dtype=xp.bool, device=logits.device)
    for token in unwritable(may_end=may_end):  # a list would be copied to the device
        ruled_out[token : token + 1] = True  # one element would be copied, too, before PyTorch 2.15
    # Not a copy by asarray: before PyTorch 2.15 that has no gradient.
    return xp.where(ruled_out, -xp.inf, logits)


def truncate(logits: Array, top_p: float | None) -> Array:
    """Return logits [..., V] with minus infinity for all but the likeliest words.

    Kept are the fewest whose probabilities sum to at least top_p (nucleus sampling, Holtzman et
    al., 2020); None keeps all.
    """
    xp = array_namespace(logits)
    if top_p is not None and top_p < 1:
        index = xp.argsort(logits, axis=-1, descending=True, stable=True)
        shares = softmax(xp.take_along_axis(logits, index, axis=-1))
        before = xp.cumulative_sum(shares, axis=-1) - shares  # probability of all likelier words
        drop = xp.take_along_axis(before >= top_p, xp.argsort(index, axis=-1), axis=-1)
        logits = xp.where(drop, -xp.inf, logits)
    return logits


def softmax(logits: Array) -> Array:
    """Return the probabilities [..., V] of logits [..., V]."""
    return np.exp(log_softmax(logits)) if is_numpy_array(logits) else logits.softmax(-1)


def exponential(like: Array, generator: Generator | None) -> Array:
    """Draw above zero from the exponential distribution of rate 1, in an array's shape and type."""
    if not is_numpy_array(like):
        return like.new_empty(like.shape).exponential_(generator=generator)
    chosen = generator if isinstance(generator, np.random.Generator) else np.random.default_rng()
    # In float32 one draw in 2^23 is zero, and the share of a word ruled out then is 0 / 0.
    drawn = chosen.standard_exponential(like.shape)
    np.maximum(drawn, np.finfo(like.dtype).tiny, out=drawn)
    return drawn.astype(like.dtype)


def sample(
    decoder: StepDecoder,
    grid: Grid,
    options: SearchOptions,
    *,
    generator: Generator | None = None,
    draw: Callable[[Array, int], Array] | None = None,
) -> tuple[Array, Array]:
    """Draw `num_captions` captions of each image, word by word.

    As in the search, of the special tokens only the end is written, and never first.

    Args:
        options: The number and the lengths of captions, and the settings of sampling.
        generator: Random numbers; None draws from the default one of the device.
        draw: Draws words [B, samples] from probabilities [B, samples, V] at a position, in place of
            `generator`.

    Returns:
        Tokens [B, samples, T], the end token last where a caption has ended and zeros behind it,
        and lengths [B, samples], the end token counted.
    """
    xp = array_namespace(grid.features)
    device = grid.features.device
    check_every = 1 if str(device) == "cpu" else CHECK_EVERY
    with without_gradients(grid.features, for_training=True):
        memory = decoder.prepare(grid)
        state = decoder.start(memory, options.num_captions)
        shape = len(grid.features), options.num_captions
        tokens = xp.full(shape, START, dtype=xp.int64, device=device)
        running = xp.ones(shape, dtype=xp.bool, device=device)
        written: list[Array] = []
        for position in range(options.max_words):
            logits, _, state = decoder.step(tokens, state, memory)
            may_end = position >= max(options.min_words, 1)
            logits = writable(xp.astype(logits, xp.float32), may_end=may_end)
            # A lower temperature would draw the same likeliest words, but logits may overflow.
            logits = logits / max(options.temperature, 1e-6)
            # The method of torch.multinomial, which itself ends the process on NaNs on a GPU.
            shares = softmax(truncate(logits, options.top_p))
            if draw is not None:
                tokens = draw(shares, position)
            else:
                tokens = xp.argmax(shares / exponential(shares, generator), axis=-1)
            written.append(xp.where(running, tokens, PAD))
            running = running & (tokens != END)
            if len(written) % check_every == 0 and not bool(xp.any(running)):
                break
        stacked = xp.stack(written, axis=-1)
        lengths = xp.sum(xp.astype(stacked != PAD, xp.int64), axis=-1)
        return stacked[..., : int(xp.max(lengths))], lengths
