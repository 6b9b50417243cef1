"""Exported graphs on the CPU, computed by OpenVINO; NumPy arrays in and out.

`captioner.export` writes the graphs of a model folder. Nothing here imports PyTorch.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from captioner.checkpoint import DESCRIPTION, GRAPHS, MODELS, WEIGHTS
from captioner.config import HardAttentionMode, ModelConfig
from captioner.errors import CheckpointError, ConfigError
from captioner.runtime.parallel import usable_cores
from captioner.types import Grid, given_mode

FORMAT = 1  # version of the description

# Images that are encoded at the same time, each by its share of the cores: on one core an image's
# feature maps stay in that core's cache. Measured on two cores only.
_ENCODED_AT_ONCE = 4

_CACHE_TIMEOUT_S = 30.0  # for another process that fills the cache

_importing = threading.Lock()


def graph_description(folder: Path, weights_sha256: str) -> dict[str, Any] | None:
    """Return the description of a verified folder's graphs; None without graphs that can be used.

    Those of other weights, or written by a newer version, cannot.
    """
    if not (folder / DESCRIPTION).is_file():
        return None
    description: dict[str, Any] = json.loads((folder / DESCRIPTION).read_text(encoding="utf-8"))
    is_usable = description["format"] <= FORMAT and description["weights_sha256"] == weights_sha256
    return description if is_usable else None


class GraphEngine:
    """Computes with the graphs of a verified model folder; as `TorchEngine` in PyTorch."""

    name: ClassVar[str] = "runtime"
    device = SimpleNamespace(type="cpu")
    dtype = np.dtype(np.float32)
    search_graphs = None

    def __init__(self, folder: Path, config: ModelConfig, description: dict[str, Any]) -> None:
        self.height, self.width = description["grid"]
        cache = None
        if folder.parent == MODELS:  # others change with every training
            cache = _cache_folder(folder.name, description["weights_sha256"])
        encoder, prepare, step = (folder / name for name in GRAPHS)
        self._at_once = min(_ENCODED_AT_ONCE, usable_cores())
        self._encoder = Graph(encoder, cache, streams=self._at_once)
        graphs = Graph(prepare, cache), Graph(step, cache)
        self.decoder = GraphDecoder(*graphs, config.attention.at_test, description)

    def encode(self, images: Sequence[np.ndarray]) -> Grid:
        with ThreadPoolExecutor(self._at_once) as threads:
            found = list(threads.map(self._encoder, ({"images": image[None]} for image in images)))
        joined = {name: np.concatenate([grid[name] for grid in found]) for name in found[0]}
        return Grid(joined["features"], self.height, self.width, joined.get("local"))

    def generator(self, seed: int) -> np.random.Generator:
        return np.random.default_rng(seed)

    def seed(self, seed: int) -> None:
        self.decoder.random = np.random.default_rng(seed)


@dataclass(frozen=True)
class GraphMemory:
    """Results of the prepare graph for a grid: arrays [B, ...] by the names of its outputs."""

    arrays: dict[str, np.ndarray]
    cells: int  # of the grid, L

    def select(self, index: np.ndarray) -> GraphMemory:
        """Return the memory of the images of `index`, [B']."""
        return replace(self, arrays={name: array[index] for name, array in self.arrays.items()})


@dataclass(frozen=True)
class GraphState:
    """State of the hypotheses of each image: arrays [B, K, ...], and the next word's number."""

    arrays: dict[str, np.ndarray]
    position: int = 0


class GraphDecoder:
    """A `StepDecoder` that computes with exported graphs."""

    def __init__(
        self, prepare: Graph, step: Graph, at_test: HardAttentionMode, description: dict[str, Any]
    ) -> None:
        self._prepare, self._step = prepare, step
        self.at_test = at_test
        self.layers, self.heads = description["hard_attention"]
        self.random = np.random.default_rng(0)  # as PyTorch, the same numbers in each process
        self.max_words = description["max_words"]

    def prepare(self, grid: Grid) -> GraphMemory:
        inputs = {"features": grid.features}
        if grid.local is not None:
            inputs["local"] = grid.local
        return GraphMemory(self._prepare(inputs), grid.features.shape[1])

    def start(self, memory: GraphMemory, beams: int = 1) -> GraphState:
        states = [name for name in memory.arrays if name.startswith("state")]
        return GraphState({name: np.repeat(memory.arrays[name], beams, axis=1) for name in states})

    def step(
        self, tokens: np.ndarray, state: GraphState, memory: GraphMemory
    ) -> tuple[np.ndarray, Any, GraphState]:
        if self.max_words is not None and state.position >= self.max_words:
            raise ConfigError(
                f"decoder.max_positions: this model has {self.max_words} learned positions, so its "
                "captions cannot be longer; lower max_words"
            )
        mode = given_mode.get() or self.at_test
        inputs = {"tokens": tokens, "position": np.array(state.position), **memory.arrays}
        if self.layers:
            images, beams = tokens.shape
            shape = (self.layers, images, self.heads, beams, memory.cells)
            noise = self.random.gumbel(size=shape) if mode == "sample" else np.zeros(shape)
            inputs["noise"] = noise.astype(np.float32)
            inputs["expectation"] = np.array([mode == "expectation"])
        found = self._step({**inputs, **state.arrays})
        cells = None if mode == "expectation" else found.get("cells")
        attended = SimpleNamespace(
            weights=found["weights"], beta=found.get("beta"), cells=cells, heads=found.get("heads")
        )
        arrays = {name: found[f"next_{name}"] for name in state.arrays}
        return found["logits"], attended, GraphState(arrays, state.position + 1)

    def reorder(self, state: GraphState, images: np.ndarray, beams: np.ndarray) -> GraphState:
        arrays = {name: array[images[:, None], beams] for name, array in state.arrays.items()}
        return replace(state, arrays=arrays)


def _cache_folder(model: str, weights_sha256: str) -> Path | None:
    """Return the folder for a bundled model's compiled graphs; None where none can be made.

    Those of the model's earlier weights are removed.
    """
    try:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "captioner"
        folder = home / f"{model}-{weights_sha256[:16]}"
        if not folder.is_dir():
            for earlier in home.glob(f"{model}-*"):
                shutil.rmtree(earlier, ignore_errors=True)
            folder.mkdir(parents=True)
    except (OSError, RuntimeError):  # RuntimeError: the user has no home
        return None
    return folder if os.access(folder, os.W_OK) else None


def _import_openvino() -> Any:
    """Import OpenVINO without its model converter, which is slow and reports to Google Analytics.

    It does so from a thread, after which forking this process is not safe.
    """
    converter = "openvino.tools.ovc"
    with _importing:
        if "openvino" not in sys.modules:
            sys.modules[converter] = None  # type: ignore[assignment]  # so that importing it fails
            try:
                import openvino
            finally:
                del sys.modules[converter]  # whoever wants to convert models may
        openvino = sys.modules["openvino"]
        # OpenVINO 2026.4 makes its table of NumPy types at the first use. Two threads that both
        # come first wait for ever: one has the table's lock, the other Python's.
        openvino.Type.f32.to_dtype()
    return openvino


class Graph:
    """One graph, compiled for this machine; several threads may call it.

    Args:
        cache: Folder for what was compiled, to start faster the next time; None for none.
        streams: How many calls are computed at once; they share the cores.
    """

    def __init__(self, path: Path, cache: Path | None = None, *, streams: int = 1) -> None:
        # Any other file would be opened. In protobuf: field 1 with 8 letters is the key, field 2
        # with 17 is the value.
        content, place = path.read_bytes(), b"\n\x08location\x12\x11" + WEIGHTS.encode()
        remedy = "write it anew with captioner export --format onnx, or fetch the model again"
        if content.count(b"\x08location") != content.count(place):
            raise CheckpointError(f"{path}: names another file than the folder's weights; {remedy}")
        core = _import_openvino().Core()
        settings = {
            "NUM_STREAMS": streams,
            "INFERENCE_PRECISION_HINT": "f32",  # not bfloat16 where the processor has it
            "INFERENCE_NUM_THREADS": usable_cores(),
            "ENABLE_CPU_PINNING": False,  # or two processes would share some cores
            # OpenVINO 2026.4's are wrong where a cache grows from no word to more than 15.
            "SNIPPETS_MODE": "DISABLE",
        }
        compile_graph = partial(core.compile_model, path, "CPU")
        compiled = None
        if cache is not None:
            # OpenVINO reads its cache through a memory map: a file that another process still
            # writes would end this one by SIGBUS.
            from filelock import FileLock

            try:
                with FileLock(cache / ".lock", timeout=_CACHE_TIMEOUT_S):
                    compiled = compile_graph({**settings, "CACHE_DIR": str(cache)})
            except OSError:  # not to be locked, or for long by another
                pass
            except RuntimeError:  # a full disk, or a damaged cache
                shutil.rmtree(cache, ignore_errors=True)
        try:
            self._compiled = compile_graph(settings) if compiled is None else compiled
        except RuntimeError:  # whose message is many lines about OpenVINO's source
            raise CheckpointError(
                f"{path}: is no graph that this version of captioner can compute; {remedy}"
            ) from None
        # A port has several names where an operator passes a value on as it is.
        self._inputs = [port.names for port in self._compiled.inputs]
        self._outputs = [port.names for port in self._compiled.outputs]
        self._idle_requests: list[Any] = []  # each serves one thread at a time

    def __call__(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Compute; inputs that the graph does not use are left out."""
        try:
            request = self._idle_requests.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        given = [
            np.asarray(next(inputs[name] for name in names if name in inputs), order="C")
            for names in self._inputs
        ]
        request.infer(given, share_inputs=True)
        results = [tensor.data.copy() for tensor in request.output_tensors]
        self._idle_requests.append(request)
        pairs = zip(self._outputs, results, strict=True)
        return {name: array for names, array in pairs for name in names}
