"""Weights of a network from a file, in the layouts that training programs save them in."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from captioner.errors import WeightsError, error_summary

# Keys under which training programs keep a network's weights in a checkpoint.
_STATE_KEYS = ("state_dict", "model_state_dict", "model", "state_dict_ema", "model_ema", "net")
# Classifiers, which an encoder does not use: missing, or for other classes, they do no harm.
_CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.")


def load_weights_file(network: nn.Module, path: str, name: str) -> None:
    """Load a .pth or .safetensors file into a network.

    A checkpoint's `state_dict` is taken, and a prefix of all names (`module.`, `encoder.`) removed.
    The classifier of the network may be missing, or be one for other classes.

    Raises:
        WeightsError: It cannot be read, or holds the weights of another network.
    """
    own = network.state_dict()
    state = read_weights_file(path, own, name)
    for key in [key for key in {**own, **state} if key.startswith(_CLASSIFIERS)]:
        if key not in own:
            del state[key]
        elif key not in state or state[key].shape != own[key].shape:
            state[key] = own[key]
    try:
        network.load_state_dict(state)
    except RuntimeError as error:  # after its first line, the keys that do not fit
        raise unfit_weights(path, name, str(error).partition("\n")[2]) from None


def read_weights_file(path: str, expected: Collection[str], name: str) -> dict[str, Tensor]:
    """Return the tensors of a weights file by the names that the network expects."""
    content: Any
    try:
        if path.endswith(".safetensors"):
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        reason = (
            "is no file of torch.save, or holds Python objects, such as a whole model, which could "
            "run code; save the weights alone: torch.save(model.state_dict(), FILE)"
        )
        raise unfit_weights(path, name, reason) from None
    except Exception as error:  # noqa: BLE001  torch.load raises almost anything on other files
        raise unfit_weights(path, name, error) from None
    for key in _STATE_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    state = dict(content) if isinstance(content, Mapping) else {}
    state = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    if not state:
        raise unfit_weights(path, name, "it holds no tensors by name")
    # The names may have a prefix: the one with the most of the expected names is removed.
    first = next(iter(expected), "")
    prefixes = ["", *sorted(key.removesuffix(first) for key in state if key.endswith(f".{first}"))]
    best = max(prefixes, key=lambda prefix: sum(f"{prefix}{key}" in state for key in expected))
    return {key.removeprefix(best): x for key, x in state.items() if key.startswith(best)}


def unfit_weights(path: str, name: str, reason: object) -> WeightsError:
    """Return the error for a file that holds something else than the weights of a network."""
    reason = error_summary(reason, part="line", max_length=300)
    return WeightsError(f"{path} does not hold the weights of {name} ({reason})")
