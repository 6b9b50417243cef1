"""The device that a command runs on, chosen when it runs and never at import."""

from __future__ import annotations

import contextlib
from typing import Any, Literal

import torch

from captioner.errors import ConfigError


def choose_device(name: str = "auto") -> torch.device:
    """`auto` is the GPU if there is one, else the CPU.

    Raises:
        ConfigError: no such device on this machine.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # `meta` has no values
    except (RuntimeError, AssertionError, NotImplementedError):
        raise ConfigError(
            f"device: '{name}' cannot be used on this machine; use auto, cpu or cuda"
        ) from None
    return device


def autocast(
    device: torch.device, precision: Literal["auto", "float32", "bfloat16"]
) -> contextlib.AbstractContextManager[Any]:
    """Context of a forward pass; `auto` is bfloat16 on a GPU that has it, else float32."""
    if precision == "bfloat16" or (
        precision == "auto" and device.type == "cuda" and torch.cuda.is_bf16_supported()
    ):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
