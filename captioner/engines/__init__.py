"""What computes a caption: PyTorch on any device, or exported graphs on the CPU."""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from captioner.checkpoint import WEIGHTS, load_config, load_model, load_vocabulary, verify
from captioner.config import ModelConfig
from captioner.data.vocabulary import Vocabulary
from captioner.engines.graphs import GraphEngine, graph_description
from captioner.errors import CheckpointError, ConfigError
from captioner.runtime.device import choose_device, require_torch, torch_is_installed

if TYPE_CHECKING:
    from captioner.engines.pytorch import TorchEngine

Engine: TypeAlias = "TorchEngine | GraphEngine"  # with the same attributes and methods
EngineName: TypeAlias = Literal["auto", "torch", "runtime"]
Precision: TypeAlias = Literal["float32", "bfloat16"]


def choose_engine(
    folder: Path, *, engine: EngineName, device: str, precision: Precision
) -> dict[str, Any] | None:
    """Return the description of a folder's graphs, or None for PyTorch.

    `auto` takes the graphs on a CPU in float32.
    """
    for name, value, kind in (("engine", engine, EngineName), ("precision", precision, Precision)):
        if value not in (accepted := get_args(kind)):
            raise ConfigError(f"{name}: '{value}' is not accepted; use {' or '.join(accepted)}")
    on_cpu = precision == "float32" and device in ("auto", "cpu")
    if engine == "runtime" and not on_cpu:
        raise ConfigError(
            "engine: runtime computes on the CPU in float32; leave device and precision, or use "
            "engine torch"
        )
    if engine == device == "auto" and on_cpu and may_have_gpu() and torch_is_installed():
        on_cpu = choose_device(device).type == "cpu"
    if engine != "torch" and on_cpu:
        description = graph_description(folder, verify(folder)[WEIGHTS])
        if description is not None:
            return description
        if engine == "runtime" and torch_is_installed():
            raise CheckpointError(
                f"{folder}: has no graphs of its weights; add them with: captioner export --format "
                f"onnx {folder}"
            )
        require_torch(f"{folder} has no graphs, so it")
    require_torch(f"engine {engine} on {device} in {precision}")
    return None


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


def open_engine(
    folder: Path, *, engine: EngineName, device: str, precision: Precision
) -> tuple[Engine, ModelConfig, Vocabulary]:
    """Load a model folder into an engine, chosen and refused as by `choose_engine`."""
    description = choose_engine(folder, engine=engine, device=device, precision=precision)
    if description is not None:
        config, vocabulary = load_config(folder), load_vocabulary(folder)
        return GraphEngine(folder, config, description), config, vocabulary
    if "torch" not in sys.modules:  # threads that wait sleep instead of spinning
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from captioner.engines.pytorch import TorchEngine

    model, config, vocabulary = load_model(folder)
    return TorchEngine(model, choose_device(device), precision), config, vocabulary
