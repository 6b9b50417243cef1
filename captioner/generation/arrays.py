"""What the Python array API standard lacks to search with both tensors and NumPy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import is_numpy_array

Array: TypeAlias = Any  # a tensor or a NumPy array

_BLOCK = 64  # elements


def log_softmax(logits: Array) -> Array:
    """Return log-probabilities [..., V] in float32."""
    if not is_numpy_array(logits):
        return logits.float().log_softmax(-1)
    logits = logits.astype(np.float32, copy=False)
    shifted = logits - logits.max(-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    return shifted


def gather(values: Array, indices: Array) -> Array:
    """Return the values [R, N] at indices [R, n], none of which is negative."""
    if is_numpy_array(values):
        return np.take_along_axis(values, indices, axis=-1)
    return values.gather(-1, indices)  # array-api-compat's needs three kernels more


def top_k_indices(values: Array, count: int) -> Array:
    """Return the indices [R, count] of the largest of [R, N], the largest first, NaN above all."""
    if not is_numpy_array(values):
        return values.topk(count, dim=-1).indices
    # The largest are in the blocks with the largest maxima; partitioning all takes longer.
    length = values.shape[-1]
    maxima = np.maximum.reduceat(values, np.arange(0, length, _BLOCK), axis=-1)
    maxima[np.isnan(maxima)] = np.inf
    blocks = min(count, maxima.shape[-1])
    chosen = np.sort(np.argpartition(-maxima, blocks - 1, axis=-1)[:, :blocks])
    indices = (chosen[..., None] * _BLOCK + np.arange(_BLOCK)).reshape(len(values), -1)
    found = np.take_along_axis(values, indices.clip(max=length - 1), axis=-1)
    found[np.isnan(found)] = np.inf
    found[indices >= length] = -np.inf
    order = np.argsort(-found, axis=-1, kind="stable")[:, :count]
    return np.take_along_axis(indices, order, axis=-1)


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
