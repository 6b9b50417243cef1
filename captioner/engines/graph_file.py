"""What an ONNX file asks for, read before OpenVINO opens it: a folder may come from a stranger.

An ONNX file is a protobuf message: fields with a number, a wire type and a value, of which some are
messages again. Only those that matter here are read, so that no library is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

MAX_BYTES = 2**26  # the graphs hold no weights; a large network's have a few MB
MAX_FIELDS = 1_000_000  # Lite2's encoder has 20,000
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # wire types

# Numbers of fields, of onnx.proto.
_GRAPH = 7  # of a model
_TRAINING, _FUNCTIONS = 20, 25
_NODE, _INITIALIZER, _SPARSE_INITIALIZER = 1, 5, 15  # of a graph
_ATTRIBUTE, _DOMAIN = 5, 7  # of a node
_TENSOR, _TENSORS = 5, 10  # of an attribute
_SUBGRAPHS, _SPARSE_TENSORS = (6, 11), (22, 23)
_EXTERNAL_DATA = 13  # of a tensor
_KEY, _VALUE = 1, 2  # of an entry of external data


def check_graph_file(path: Path, weights: Path) -> None:
    """Refuse a graph that could run without end, or that reads elsewhere than in the weights.

    Without functions and subgraphs there is no loop: each operator is computed once.

    Args:
        path: An ONNX file.
        weights: The one file, in the same folder, whose bytes it may name.

    Raises:
        ValueError: Says what is wrong.
    """
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"it has more than {MAX_BYTES} bytes")
    _Reader(weights).read(path.read_bytes())


class _Reader:
    """Reads the fields of a model, counts them, and refuses those that it must not have."""

    def __init__(self, weights: Path) -> None:
        self.file, self.size = weights.name.encode(), weights.stat().st_size
        self.left = MAX_FIELDS

    def read(self, model: bytes) -> None:
        for number, value in self._fields(memoryview(model)):
            if number in (_TRAINING, _FUNCTIONS):
                raise ValueError("it holds functions")
            if number != _GRAPH:
                continue
            for part, content in self._fields(_message(value)):
                if part == _NODE:
                    self._read_node(_message(content))
                elif part == _INITIALIZER:
                    self._read_tensor(_message(content))
                elif part == _SPARSE_INITIALIZER:
                    raise ValueError("it holds sparse tensors")

    def _read_node(self, node: memoryview) -> None:
        """Check the domain and the attributes of a node."""
        for number, value in self._fields(node):
            if number == _DOMAIN and bytes(_message(value)) not in (b"", b"ai.onnx"):
                raise ValueError("it holds operators of another domain than ONNX's own")
            if number != _ATTRIBUTE:
                continue
            for part, content in self._fields(_message(value)):
                if part in _SUBGRAPHS:
                    raise ValueError("it holds loops or branches")
                if part in _SPARSE_TENSORS:
                    raise ValueError("it holds sparse tensors")
                if part in (_TENSOR, _TENSORS):
                    self._read_tensor(_message(content))

    def _read_tensor(self, tensor: memoryview) -> None:
        """Check that a tensor has its numbers inside, or in the weights of the folder."""
        place: dict[bytes, bytes] = {}
        for number, value in self._fields(tensor):
            if number == _EXTERNAL_DATA:
                entry = {
                    part: bytes(_message(text)) for part, text in self._fields(_message(value))
                }
                if entry.get(_KEY) in place:  # which of the two would count?
                    raise ValueError("it names two places for a tensor")
                place[entry.get(_KEY, b"")] = entry.get(_VALUE, b"")
        if not place:
            return
        if place.get(b"location") != self.file:
            raise ValueError("it names another file than the folder's weights")
        offset, length = int(place.get(b"offset", b"0")), int(place.get(b"length", b"0"))
        if min(offset, length) < 0 or offset + length > self.size:
            raise ValueError("it names a place beyond the end of the folder's weights")

    def _fields(self, data: memoryview) -> Iterator[tuple[int, int | memoryview]]:
        """Yield the number and the value of each field of a message."""
        place = 0
        while place < len(data):
            self.left -= 1
            if self.left < 0:
                raise ValueError(f"it has more than {MAX_FIELDS} fields")
            key, place = _varint(data, place)
            if key >= 2**32:  # other readers may take its lower bits only
                raise ValueError("it is no ONNX file")
            kind = key & 7
            if kind == _VARINT:
                number, place = _varint(data, place)
                yield key >> 3, number
                continue
            if kind == _BYTES:
                size, place = _varint(data, place)
            elif kind in (_FIXED_64, _FIXED_32):
                size = 8 if kind == _FIXED_64 else 4
            else:
                raise ValueError("it is no ONNX file")
            if place + size > len(data):
                raise ValueError("it is cut short")
            yield key >> 3, data[place : place + size]
            place += size


def _varint(data: memoryview, place: int) -> tuple[int, int]:
    """Return the whole number at a place, seven bits a byte, and the place behind it."""
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 127) << shift
        place, shift = place + 1, shift + 7
        if byte < 128:
            return value, place
    raise ValueError("it is cut short")


def _message(value: int | memoryview) -> memoryview:
    """Return the value of a field that must hold bytes."""
    if isinstance(value, int):
        raise ValueError("it is no ONNX file")
    return value
