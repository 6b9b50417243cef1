"""The device that a command runs on, chosen when it runs and never at import, and its cores."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from captioner.errors import CaptionerError, ConfigError, error_summary
from captioner.log import logger

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_CGROUP = Path("/sys/fs/cgroup")
GPU_BATCH_STEP = 64  # images; smaller batches grow to the next power of two


def require_torch(purpose: str) -> None:
    """Raise a CaptionerError, whose subject is the purpose, where PyTorch is not installed."""
    if not torch_is_installed():
        raise CaptionerError(
            f"{purpose} needs PyTorch, which is not installed: pip install 'captioner[train]'"
        )


def torch_is_installed() -> bool:
    """Return whether PyTorch can be imported, without importing it."""
    return importlib.util.find_spec("torch") is not None


def may_have_gpu() -> bool:
    """Return whether a GPU's driver is installed; only PyTorch knows whether it can be used."""
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0") in ("", "-1"):
        return False
    if Path("/dev/kfd").exists():  # of AMD
        return True
    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return False
    return True


def choose_device(name: str = "auto") -> torch.device:
    """Return the device of this name; `auto` is the GPU if one works, else the CPU."""
    import torch

    if name == "auto":
        try:
            return _working_device("cuda" if torch.cuda.is_available() else "cpu")
        except RuntimeError as error:  # this PyTorch has no kernels for it, or it is full
            reason = error_summary(error, part="line")
            logger.warning(f"the GPU cannot be used ({reason}); going on with the CPU")
            return torch.device("cpu")
    try:
        device = _working_device(name)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError):  # TypeError: no string
        raise ConfigError(
            f"device: '{name}' cannot be used on this machine; use auto, cpu or, where PyTorch "
            "finds a GPU, cuda"
        ) from None
    if device.type == "cuda":
        torch.cuda.set_device(device)  # or pinned memory would come from the first GPU
    return device


def _working_device(name: str) -> torch.device:
    """Return the device after a computation on it."""
    import torch

    value = torch.zeros(1, device=torch.device(name)) + 1
    value.item()  # `meta` has no values
    return value.device  # with its index: another GPU may be the current one later


def autocast(
    device: torch.device, precision: Literal["auto", "float32", "bfloat16"]
) -> contextlib.AbstractContextManager[Any]:
    """Return the context of a forward pass; `auto` is bfloat16 on a GPU that has it."""
    import torch

    if precision == "auto" and device.type == "cuda":
        with torch.cuda.device(device):  # older GPUs emulate it slowly
            has_bfloat16 = torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bfloat16" if has_bfloat16 else "float32"
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()


def padded_size(count: int) -> int:
    """Return the size to which a GPU's batch of this many images is filled up."""
    return count + -count % min(GPU_BATCH_STEP, 1 << max(0, count - 1).bit_length())


def with_empty_images(images: Tensor) -> Tensor:
    """Return images [B, ...] with empty ones at the end, so that few sizes of batches occur.

    Batches of whole photos differ in size, and cuDNN plans every convolution again for a new size,
    which takes seconds.
    """
    import torch

    missing = padded_size(len(images)) - len(images)
    return torch.cat([images, images.new_zeros(missing, *images.shape[1:])]) if missing else images


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32 where they are of half precision, else as they are."""
    import torch

    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores by affinity and by the quota of the control group (version 2)."""
    affinity = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1
    try:
        quota, period = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return min(cores, max(1, math.ceil(float(quota) / float(period))))
    except (OSError, ValueError):  # no control groups, or "max"
        return cores


def usable_cores(cgroup: Path = _CGROUP) -> int:
    """Count the cores for the threads of this process: those available, or OMP_NUM_THREADS."""
    cores = available_cores(cgroup)
    given = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return min(cores, int(given)) if given.isdecimal() and int(given) else cores
