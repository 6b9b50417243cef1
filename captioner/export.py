"""Models as ONNX graphs, which caption without PyTorch.

Three graphs and a description join the files of a model folder:

- `encoder.onnx`: images to the cells of the grid.
- `prepare.onnx`: cells to the decoder's memory of an image and its first state.
- `step.onnx`: the last words, the state and the memory to logits, attention and the next state.
- `graphs.json`: shapes, and the weights that the graphs belong to.

The graphs hold no weights of the model: their initializers are places in `model.safetensors`.
Batch, beams and words so far may have any size; that of the images is the model's own.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import struct
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from captioner.checkpoint import DESCRIPTION, GRAPHS, WEIGHTS, load_model, sha256
from captioner.checkpoint_writer import add_files
from captioner.engines.graphs import FORMAT
from captioner.errors import CaptionerError, error_summary, needs_extra
from captioner.generation.beam_search import ATTENDED
from captioner.log import progress_bar
from captioner.models.attention.attention import Attention
from captioner.models.attention.hard import HardSelect
from captioner.models.decoders.base import Decoder
from captioner.types import AttentionOutput, Grid

OPSET = 20
_BATCH, _BEAMS, _WORDS = map(torch.export.Dim, ("batch", "beams", "words"))
_ONNX_TYPES = {"F16": 10, "BF16": 16, "F32": 1, "F64": 11}  # of safetensors; TensorProto's numbers
Places: TypeAlias = dict[str, tuple[str, list[int], int, int]]


def export_graphs(folder: Path) -> None:
    """Add the graphs to a model folder, or renew them.

    Raises:
        CheckpointError: The folder is damaged or cannot be written.
        CaptionerError: A library is missing, or the model has a part that ONNX cannot express.
    """
    with needs_extra("the export", "train"):
        import onnx
        import onnxscript  # noqa: F401  (torch's exporter needs it)
    model, config, _ = load_model(folder)
    weights = folder / WEIGHTS
    places = weight_places(model, weights)
    with torch.no_grad():
        images = torch.rand(2, 3, config.preprocess.height_px, config.preprocess.width_px)
        grid = model.encoder(images)
        encoder = _Graph(
            lambda given: _tensors(model.encoder.grid_of(model.encoder.backbone(next(given)))),
            {"images": images},
            list(_walk(grid)),
            encoder=model.encoder,
        )
        decoder_graphs, description = graphs_of_decoder(model.decoder, grid)
        graphs = zip(GRAPHS, (encoder, *decoder_graphs), strict=True)
        with progress_bar(graphs, total=len(GRAPHS), desc="graphs", unit="graph") as bar:
            files = {name: graph.to_onnx(places) for name, graph in bar}
    description = {
        "format": FORMAT,
        "opset": OPSET,
        "made_with": {"torch": torch.__version__, "onnx": onnx.__version__},
        "weights_sha256": sha256(weights),
        **description,
    }
    files[DESCRIPTION] = (json.dumps(description, indent=1) + "\n").encode()
    add_files(folder, files)


@torch.no_grad()
def graphs_of_decoder(decoder: Decoder, grid: Grid) -> tuple[tuple[_Graph, _Graph], dict[str, Any]]:
    """Return the graphs of a decoder, to prepare and to step, and their part of the description.

    Args:
        decoder: In float32 and evaluation mode; its hard attention is replaced.
        grid: An example, of two images.
    """
    choice = SimpleNamespace(noise=[], expectation=torch.zeros(1, dtype=torch.bool))
    layers = heads = 0
    for attention in [each for each in decoder.modules() if isinstance(each, Attention)]:
        if isinstance(attention.select, HardSelect):
            select: Any = _GraphSelect(attention.select, choice, layers)
            attention.select = select
            layers, heads = layers + 1, attention.values.heads if attention.values else 1
    memory = decoder.prepare(grid)
    # Sizes that all differ, or the exporter might equate them: two images, three beams, four words.
    tokens = torch.full((2, 3), 4)
    state = decoder.start(memory, 3)
    for _ in range(4):
        _, attended, state = decoder.step(tokens, state, memory)
    step_inputs = {"tokens": tokens, "position": torch.tensor(4)}
    if layers:
        step_inputs["noise"] = torch.zeros(layers, 2, heads, 3, grid.features.shape[1])
        step_inputs["expectation"] = choice.expectation
    states, memories = _walk(state, "state"), _walk(memory, "memory")
    step_inputs |= states | memories
    attended_names = [name for name in ATTENDED.values() if getattr(attended, name) is not None]

    def prepare(given: Iterator[Tensor]) -> list[Tensor]:
        prepared = decoder.prepare(_filled(grid, given))
        return [*_tensors(prepared), *_tensors(decoder.start(prepared))]

    def step(given: Iterator[Tensor]) -> list[Tensor]:
        tokens, position = next(given), next(given)
        if layers:
            choice.noise, choice.expectation = list(next(given).unbind(0)), next(given)
        before = _filled(state, given, position=position)
        logits, attended, after = decoder.step(tokens, before, _filled(memory, given))
        return [logits, *(getattr(attended, name) for name in attended_names), *_tensors(after)]

    step_outputs = ["logits", *attended_names, *(f"next_{name}" for name in states)]
    graphs = (
        _Graph(prepare, _walk(grid), [*memories, *states], decoder=decoder),
        _Graph(step, step_inputs, step_outputs, decoder=decoder),
    )
    positions = getattr(decoder, "positions", None)  # of a decoder that learns them
    return graphs, {
        "grid": [grid.height, grid.width],
        "hard_attention": [layers, heads],
        "max_words": positions.num_embeddings if isinstance(positions, nn.Embedding) else None,
    }


class _Graph(nn.Module):
    """A function from tensors to tensors that can be exported.

    `inputs` are examples of what it takes, `parts` the modules whose weights it uses.
    """

    def __init__(
        self,
        compute: Callable[[Iterator[Tensor]], list[Tensor]],
        inputs: dict[str, Tensor],
        outputs: list[str],
        **parts: nn.Module,
    ) -> None:
        super().__init__()
        self.compute, self.inputs, self.outputs = compute, inputs, outputs
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        # Copies: an output that is an input too, or two outputs, would share one name.
        return tuple(output.clone() for output in self.compute(iter(tensors)))

    def to_onnx(self, places: Places) -> bytes:
        """Return an ONNX file whose weights are places in another."""
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        logging.getLogger("onnxscript").setLevel(logging.ERROR)
        sizes = tuple(_dynamic_sizes(name, tensor) for name, tensor in self.inputs.items())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                exported = torch.onnx.export(
                    self,
                    tuple(self.inputs.values()),
                    dynamo=True,
                    optimize=False,  # it would fold weights into others
                    verbose=False,
                    external_data=False,
                    opset_version=OPSET,
                    input_names=list(self.inputs),
                    output_names=self.outputs,
                    dynamic_shapes=(sizes,),  # of `*tensors`
                )
            except torch.onnx.OnnxExporterError as error:
                reason = error_summary(error.__cause__ or error, part="line")
                raise CaptionerError(f"this model cannot be exported to ONNX: {reason}") from None
        assert exported is not None
        proto = exported.model_proto
        _refer_to_file(proto, places)
        return proto.SerializeToString()


class _GraphSelect(nn.Module):
    """Hard attention whose randomness is an input: the cell with the largest log alpha + noise.

    With noise of the Gumbel distribution this samples, without noise it is argmax; `expectation`
    mixes all cells. `choice`, which all layers share, has `noise` by layer and `expectation`.
    """

    def __init__(self, select: HardSelect, choice: SimpleNamespace, layer: int) -> None:
        super().__init__()
        self.select, self.choice, self.layer = select, choice, layer

    def forward(self, scores: Tensor, values: Tensor, *_: None) -> AttentionOutput:
        """Attend as any other `Select`; what is for training is not used."""
        log_map, weights, entropy = self.select.distribution(scores)
        if self.choice.noise:
            noise = self.choice.noise[self.layer]  # [B, heads, K, L]
            log_map = log_map + (noise if scores.dim() == 4 else noise[:, 0])
        cells = log_map.argmax(-1)
        chosen = torch.arange(scores.shape[-1]) == cells.unsqueeze(-1)
        mixing = torch.where(self.choice.expectation, weights, chosen.to(weights.dtype))
        context, log_prob = torch.matmul(mixing, values), torch.zeros_like(entropy)
        return AttentionOutput(context, weights, entropy, log_prob, cells=cells)


def _parts(value: Any) -> dict[str, Any]:
    """Return the named parts of a dataclass or of a tuple; nothing else has any."""
    if dataclasses.is_dataclass(value):
        return vars(value)
    if not isinstance(value, tuple):
        return {}
    names = getattr(value, "_fields", map(str, range(len(value))))
    return dict(zip(names, value, strict=True))


def _walk(value: Any, path: str = "") -> dict[str, Tensor]:
    """Return the tensors in a value by their paths, in order, without empty ones."""
    if isinstance(value, Tensor):
        return {path: value} if value.shape[-1] else {}
    found: dict[str, Tensor] = {}
    for name, part in _parts(value).items():
        if name != "position":  # an input of its own
            found |= _walk(part, f"{path}_{name}" if path else name)
    return found


def _tensors(value: Any) -> list[Tensor]:
    return list(_walk(value).values())


def _filled(example: Any, tensors: Iterator[Tensor], **given: Any) -> Any:
    """Return a value like the example, with other tensors, and with the parts that are given."""
    if isinstance(example, Tensor):
        return next(tensors) if example.shape[-1] else example
    parts = {
        name: given[name] if name in given else _filled(part, tensors)
        for name, part in _parts(example).items()
    }
    if not parts:
        return example
    return tuple(parts.values()) if type(example) is tuple else type(example)(**parts)


def weight_places(model: nn.Module, file: Path) -> Places:
    """Return where a model's weights are in its safetensors file: type, shape, offset, bytes."""
    with file.open("rb") as opened:
        (length,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(length))
    state = model.state_dict(keep_vars=True)
    by_pointer = {}  # tied weights are stored once
    for name, entry in header.items():
        if name in state and entry["dtype"] in _ONNX_TYPES:
            begin, end = entry["data_offsets"]
            place = entry["dtype"], entry["shape"], 8 + length + begin, end - begin
            by_pointer[state[name].data_ptr()] = place
    pointers = {name: value.data_ptr() for name, value in state.items()}
    return {name: by_pointer[each] for name, each in pointers.items() if each in by_pointer}


def _dynamic_sizes(name: str, tensor: Tensor) -> dict[int, Any]:
    """Return which sizes of an input may change: images, beams, and words so far."""
    if name in ("position", "expectation"):
        return {}
    if name == "noise":  # [layers, B, heads, K, L]
        return {1: _BATCH, 3: _BEAMS}
    if name in ("state_keys", "state_values"):  # of a Transformer
        return {0: _BATCH, 1: _BEAMS, tensor.dim() - 2: _WORDS}
    return {0: _BATCH, 1: _BEAMS} if name.startswith(("tokens", "state")) else {0: _BATCH}


def _refer_to_file(proto: Any, places: Places) -> None:
    """Replace the model's weights in a graph by their places in the file, in its own type."""
    from onnx import TensorProto, helper

    kept, casts = [], []
    for tensor in proto.graph.initializer:
        name = tensor.name.removeprefix("module.")
        if name not in places:
            kept.append(tensor)
            continue
        kind, shape, offset, size = places[name]
        assert list(tensor.dims) == shape, name
        stored = TensorProto(name=tensor.name, dims=shape, data_type=_ONNX_TYPES[kind])
        stored.data_location = TensorProto.EXTERNAL
        for key, value in {"location": WEIGHTS, "offset": offset, "length": size}.items():
            stored.external_data.add(key=key, value=str(value))
        if kind != "F32":
            stored.name = f"{tensor.name}.stored"
            cast = helper.make_node("Cast", [stored.name], [tensor.name], to=TensorProto.FLOAT)
            casts.append(cast)
        kept.append(stored)
    nodes = [*casts, *proto.graph.node]
    used = {name for node in nodes for name in node.input}
    del proto.graph.initializer[:], proto.graph.node[:], proto.graph.value_info[:]
    proto.graph.initializer.extend(tensor for tensor in kept if tensor.name in used)
    proto.graph.node.extend(nodes)
    # Traces of the exporter: names of files and functions on the machine that exported.
    for node in proto.graph.node:
        del node.metadata_props[:]
        node.doc_string = ""
    del proto.metadata_props[:], proto.graph.metadata_props[:]
