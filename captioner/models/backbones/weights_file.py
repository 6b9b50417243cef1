"""Weights of a network from a file, in the layouts that training programs save them in."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from typing import Any

import torch
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
    for key, value in own.items():
        if key.startswith(_CLASSIFIERS) and (key not in state or state[key].shape != value.shape):
            state[key] = value
    state = {k: v for k, v in state.items() if k in own or not k.startswith(_CLASSIFIERS)}
    for key, value in own.items():
        if key in state and state[key].shape != value.shape:
            shapes = f"{list(state[key].shape)}, not {list(value.shape)}"
            raise unfit_weights(path, name, f"its {key} is {shapes}")
    # Files of old versions of PyTorch lack `num_batches_tracked`, which it adds by itself.
    missing = [k for k in own if k not in state and not k.endswith("num_batches_tracked")]
    unlike = [key for key in state if key not in own] or missing
    if unlike:
        names = f"{unlike[0]} and {len(unlike) - 1} more" if unlike[1:] else unlike[0]
        holds, has = ("holds", "lacks") if unlike[0] in state else ("lacks", "has")
        raise unfit_weights(path, name, f"it {holds} {names}, which {name} {has}")
    network.load_state_dict(state)


def read_weights_file(path: str, expected: Collection[str], name: str) -> dict[str, Tensor]:
    """Return the tensors of a weights file by the names that a network has for them.

    Args:
        expected: Names of the network's tensors, by which a prefix of the file's names is found.
        name: The network, for messages.

    Raises:
        WeightsError: The file cannot be read, or holds no tensors by name.
    """
    content: Any
    try:
        if path.endswith(".safetensors"):
            from safetensors.torch import load_file

            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        if "Unsupported" not in str(error) and "GLOBAL" not in str(error):
            raise unfit_weights(path, name, "is no file that torch.save wrote") from None
        raise unfit_weights(
            path,
            name,
            "it holds Python objects, such as a whole model, and reading these could run code; "
            "save the weights alone: torch.save(model.state_dict(), FILE)",
        ) from None
    except Exception as error:  # noqa: BLE001  torch.load raises almost anything on other files
        raise unfit_weights(path, name, error) from None
    for key in _STATE_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise unfit_weights(path, name, f"it holds a {type(content).__name__}")
    state = {key: value for key, value in content.items() if isinstance(value, Tensor)}
    if not state:
        keys = ", ".join(list(map(str, content))[:5]) or "nothing"
        raise unfit_weights(path, name, f"it holds {keys}, and no tensors")
    return _without_prefix(state, expected)


def unfit_weights(path: str, name: str, reason: object) -> WeightsError:
    """Return the error for a file that holds something else than the weights of a network."""
    reason = error_summary(reason, part="line", max_length=300)
    return WeightsError(f"{path} does not hold the weights of {name} ({reason})")


def _without_prefix(state: dict[str, Tensor], expected: Collection[str]) -> dict[str, Tensor]:
    """Return the tensors under the prefix with the most of the expected names, without it."""
    first = next(iter(expected), "")
    prefixes = {key.removesuffix(first) for key in state if key.endswith(f".{first}")}
    best = max(
        ["", *sorted(prefixes)],
        key=lambda prefix: sum(f"{prefix}{name}" in state for name in expected),
    )
    return {k.removeprefix(best): v for k, v in state.items() if k.startswith(best)}
