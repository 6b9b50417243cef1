"""What tensors and NumPy arrays do not have in common, for the search and scoring of captions.

These follow their decoder's arrays by the Python array API standard.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

from captioner.types import AttentionOutput, Grid

if TYPE_CHECKING:
    import torch

Array: TypeAlias = Any  # a tensor or a NumPy array
Generator: TypeAlias = "torch.Generator | np.random.Generator"

_BLOCK = 64  # elements of which `top_k_indices` first takes the largest


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities [..., V] in float32."""
    if not is_numpy_array(logits):
        return logits.float().log_softmax(-1)
    logits = logits.astype(np.float32, copy=False)
    shifted = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def softmax(logits: Array) -> Array:
    """Return the probabilities [..., V] of logits [..., V]."""
    return np.exp(log_softmax(logits)) if is_numpy_array(logits) else logits.softmax(-1)


def gather(values: Array, indices: Array) -> Array:
    """Return the values [R, N] at indices [R, n], none of which is negative."""
    if is_numpy_array(values):
        return np.take_along_axis(values, indices, axis=-1)
    return values.gather(-1, indices)  # array-api-compat's needs three kernels more


def top_k_indices(values: Array, count: int) -> Array:
    """Return the indices [R, count] of the largest of [R, N], the largest first, NaN above all."""
    if not is_numpy_array(values):
        return values.topk(count, dim=-1).indices
    rows, length = values.shape
    blocks = length // _BLOCK
    if blocks < 2 * count:
        return _ranked(values)[:, :count]
    # The largest are in the `count` blocks with the largest maxima, or behind the last block.
    starts = np.arange(0, blocks * _BLOCK, _BLOCK)
    maxima = np.maximum.reduceat(values[:, : blocks * _BLOCK], starts, axis=1)
    inside = _largest(maxima, count)[..., None] * _BLOCK + np.arange(_BLOCK)
    behind = np.broadcast_to(np.arange(blocks * _BLOCK, length), (rows, length - blocks * _BLOCK))
    candidates = np.concatenate([inside.reshape(rows, -1), behind], axis=-1)
    found = np.take_along_axis(values, candidates, axis=-1)
    kept = _largest(found, count)
    order = _ranked(np.take_along_axis(found, kept, axis=-1))
    return np.take_along_axis(candidates, np.take_along_axis(kept, order, axis=-1), axis=-1)


def _largest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the rising indices [R, count] of the largest of [R, N].

    Of equal ones these are the first; NaN counts as infinite.
    """
    largest = np.where(np.isnan(values), np.inf, values)
    least = -np.partition(-largest, count - 1, axis=-1)[:, count - 1 : count]
    above, equal = largest > least, largest == least
    room = count - above.sum(-1, keepdims=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    return np.nonzero(chosen)[1].reshape(len(values), count)


def _ranked(values: np.ndarray) -> np.ndarray:
    """Return the indices of [R, N] by falling value, of equal ones the first first, NaN first."""
    largest = np.where(np.isnan(values), np.inf, values)
    return np.argsort(-largest, axis=-1, kind="stable")


def exponential(like: Array, generator: Generator | None) -> Array:
    """Draw above zero from the exponential distribution of rate 1, in an array's shape and type."""
    if not is_numpy_array(like):
        return like.new_empty(like.shape).exponential_(generator=generator)
    chosen = generator if isinstance(generator, np.random.Generator) else np.random.default_rng()
    # In float32 one draw in 2^23 is zero; a word ruled out then has a share of 0 / 0. PyTorch and
    # float64 all but exclude it.
    drawn = chosen.standard_exponential(like.shape)
    np.maximum(drawn, np.finfo(like.dtype).tiny, out=drawn)
    return drawn.astype(like.dtype)


def to_numpy(array: Array) -> np.ndarray:
    """Return the array in main memory."""
    return array if is_numpy_array(array) else array.cpu().numpy()


@contextmanager
def without_gradients(array: Array, *, for_training: bool = False) -> Iterator[None]:
    """Keep nothing for gradients where PyTorch computes; training may use the tensors if asked."""
    if is_numpy_array(array):
        yield
        return
    import torch

    with torch.no_grad() if for_training else torch.inference_mode():
        yield
    if for_training:  # weights that autocast has cast here have no graph
        torch.clear_autocast_cache()


class StepDecoder(Protocol):
    """Writes captions one word at a time: `models.decoders.Decoder`, or an exported graph.

    Callers only pass the memory and the state back, `select` images of the one and `reorder` the
    other.
    """

    def prepare(self, grid: Grid) -> Any:
        """Compute what is needed of B images once."""

    def start(self, memory: Any, beams: int = 1) -> Any:
        """Return the state before the first word, for `beams` hypotheses of each image."""

    def step(self, tokens: Array, state: Any, memory: Any) -> tuple[Array, AttentionOutput, Any]:
        """Read the last tokens [B, K]; return logits [B, K, V], the attention, the new state.

        Of the attention, an exported graph gives weights, beta, cells and heads alone.
        """

    def reorder(self, state: Any, images: Array, beams: Array) -> Any:
        """Return the state of hypotheses `beams` [B', K'] of images `images` [B']."""
