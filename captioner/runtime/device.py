"""The device that a command runs on, chosen when it runs and never at import."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
from typing import TYPE_CHECKING, Any, Literal

from captioner.errors import CaptionerError, ConfigError, error_summary
from captioner.log import logger

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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


def keep_freed_memory() -> None:
    """Have the C library keep the memory that is freed, where it is glibc.

    By default large blocks go back to the system, which clears each page of the next one: a
    twentieth of a training step's time on a CPU.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another library, or Windows
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(-4, 0)  # M_MMAP_MAX: no block in a mapping of its own
        mallopt(-1, -1)  # M_TRIM_THRESHOLD: never given back


def onednn_is_faster() -> bool:
    """Return whether oneDNN multiplies float32 faster than MKL, which PyTorch takes on a CPU.

    On AMD's processors MKL uses no AVX-512.
    """
    import torch

    features: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # not in all versions
    is_amd = features.get("cpu_name", "").startswith("AMD")
    return is_amd and features["avx512_f"] and torch.backends.mkldnn.is_available()


def padded_size(count: int) -> int:
    """Return the size to which a GPU's batch of this many images is filled up, one of few.

    Batches of whole photos differ in size, and cuDNN plans every convolution again for a new size,
    which takes seconds.
    """
    return count + -count % min(GPU_BATCH_STEP, 1 << max(0, count - 1).bit_length())


def at_least_float32(values: Tensor) -> Tensor:
    """Return values in float32 where they are of half precision, else as they are."""
    import torch

    return values.float() if values.dtype in (torch.bfloat16, torch.float16) else values
