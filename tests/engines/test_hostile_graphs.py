"""Graphs in a stranger's model folder, whose manifest agrees: used, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import tiny
from onnx import TensorProto, helper

from captioner import Captioner
from captioner.checkpoint import GRAPHS, write_manifest
from captioner.engines.graph_file import check_graph_file
from captioner.errors import CheckpointError


@pytest.fixture
def folder(model_with_graphs: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(model_with_graphs, tmp_path / "model"))


def caption(folder: Path) -> None:
    """Caption a photo by the folder's graphs, which its manifest is made to agree with."""
    write_manifest(folder)
    Captioner.from_pretrained(folder, engine="runtime").caption(tiny.photo(1)[0])


def sentence(folder: Path) -> str:
    """The one sentence that refuses the folder."""
    with pytest.raises(CheckpointError) as caught:
        caption(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    assert len(message) < 600
    return message


def change(path: Path, function: Callable[[Any], None]) -> None:
    """Change an ONNX file without reading what it names."""
    model = onnx.load(path, load_external_data=False)
    function(model)
    path.write_bytes(model.SerializeToString())


def named(model: Any) -> list[Any]:
    """The places that a graph names."""
    return [entry for tensor in model.graph.initializer for entry in tensor.external_data]


def test_the_graphs_of_an_export_are_used(folder: Path) -> None:
    caption(folder)


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize(
    "location", ["../secret", "vocabulary.json", "/dev/zero", "*/_ORT_MEM_ADDR_/*", ""]
)
def test_a_graph_names_no_file_but_the_weights(folder: Path, name: str, location: str) -> None:
    weights = (folder / "model.safetensors").read_bytes()
    (folder.parent / "secret").write_bytes(weights)

    def elsewhere(model: Any) -> None:
        next(e for e in named(model) if e.key == "location").value = location

    change(folder / name, elsewhere)
    assert "another file than the folder's weights" in sentence(folder)


@pytest.mark.parametrize("field", ["offset", "length"])
def test_a_graph_names_no_place_beyond_the_weights(folder: Path, field: str) -> None:
    def beyond(model: Any) -> None:
        next(e for e in named(model) if e.key == field).value = str(10**12)

    change(folder / "encoder.onnx", beyond)
    assert "beyond the end" in sentence(folder)


def test_a_place_hidden_from_one_of_two_readers_is_refused(folder: Path) -> None:
    """A field's number of more than 32 bits, of which OpenVINO's reader may take the lower ones."""
    path = folder / "step.onnx"
    content = path.read_bytes()
    key = 2**32 | 7 << 3 | 2  # the field `graph`
    hidden = bytes((key >> shift & 127) | 128 * (shift < 28) for shift in range(0, 35, 7))
    path.write_bytes(content + hidden + b"\x00")
    assert "it is no ONNX file" in sentence(folder)


def loop(model: Any) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, [])],
    )
    model.graph.node.append(helper.make_node("Loop", ["", ""], [], body=body))


def function(model: Any) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    model.functions.append(
        helper.make_function("local", "f", ["x"], ["y"], [node], [helper.make_opsetid("", 20)])
    )


def foreign(model: Any) -> None:
    model.graph.node[0].domain = "org.openvinotoolkit"


def sparse(model: Any) -> None:
    model.graph.sparse_initializer.add()


def bomb(model: Any) -> None:
    shape = helper.make_tensor("shape", TensorProto.INT64, [2], [2**20, 2**20])
    model.graph.initializer.append(shape)
    model.graph.node.append(helper.make_node("ConstantOfShape", ["shape"], ["large"]))
    model.graph.node.append(helper.make_node("ReduceSum", ["large"], ["sum"]))
    model.graph.output.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1, 1]))


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        (loop, "loops or branches"),
        (function, "functions"),
        (foreign, "another domain"),
        (sparse, "sparse"),
        (bomb, "values at once"),
    ],
)
def test_what_could_run_or_grow_without_end_is_refused_before_it_is_compiled(
    what: Callable[[Any], None], reason: str, folder: Path
) -> None:
    change(folder / "encoder.onnx", what)
    assert reason in sentence(folder)


def test_a_file_of_many_small_fields_is_refused_at_once(folder: Path) -> None:
    (folder / "encoder.onnx").write_bytes(b"\x08\x00" * 2**21)
    with pytest.raises(ValueError, match="fields"):
        check_graph_file(folder / "encoder.onnx", folder / "model.safetensors")


def swap(folder: Path) -> None:
    content = (folder / "step.onnx").read_bytes()
    (folder / "step.onnx").write_bytes((folder / "prepare.onnx").read_bytes())
    (folder / "prepare.onnx").write_bytes(content)


def rename_an_output(folder: Path) -> None:
    def rename(model: Any) -> None:
        for node in model.graph.node:
            for place, name in enumerate(node.output):
                node.output[place] = "others" if name == "logits" else name
        next(o for o in model.graph.output if o.name == "logits").name = "others"

    change(folder / "step.onnx", rename)


def other_size(folder: Path) -> None:
    text = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(text.replace("width_px: 96", "width_px: 128"))


def more_words(folder: Path) -> None:
    content = json.loads((folder / "vocabulary.json").read_text())
    content["words"].append("another")
    (folder / "vocabulary.json").write_text(json.dumps(content))


def describe(**changed: Any) -> Callable[[Path], None]:
    def change_description(folder: Path) -> None:
        path = folder / "graphs.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))

    return change_description


@pytest.mark.parametrize(
    "damage",
    [
        swap,
        rename_an_output,
        other_size,
        more_words,
        describe(grid=[float("inf"), 1]),
        describe(grid=[10**6, 10**6]),
        describe(grid=[1, 1]),
        describe(hard_attention=[10**9, 10**9]),
        describe(grid={"2": 3}),
    ],
)
def test_graphs_that_do_not_fit_their_folder_are_refused(
    damage: Callable[[Path], None], folder: Path
) -> None:
    damage(folder)
    sentence(folder)


def test_graphs_of_a_newer_version_are_not_used(folder: Path) -> None:
    describe(format=2, grid={"rows": 2, "columns": 3}, hard_attention=None)(folder)
    write_manifest(folder)
    assert Captioner.from_pretrained(folder, device="cpu").engine.name == "torch"
