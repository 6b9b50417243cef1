"""Damage to files, by bytes and by structure, drawn from a generator that a test seeds."""

from __future__ import annotations

import copy
import io
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from typing import Any

# What a hostile or broken writer may put in the place of any value.
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3.5, 7, -(10**9), 10**9, 2**63, 10**40, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "a", "\0", "../other", "/dev/zero", "é" * 300, "9" * 50),
    *("soft", "hard", "transformer", "none", "\x1b[2J", "x" * 100_000),
    *([], {}, [[]], [None], {"": {}}, [0] * 1000, {"a": [1, {"b": None}]}, [[[[[[[[[[1]]]]]]]]]]),
)

EXTREMES = (float("nan"), float("inf"), -float("inf"), 3e38, -3e38, 1e-45)  # of float32


def damage_bytes(data: bytes, generator: random.Random) -> bytes:
    """Return the file with one kind of damage: bytes, numbers, missing, repeated, exchanged parts."""
    changed = bytearray(data)
    if not changed:
        return generator.randbytes(20)
    here = generator.randrange(len(changed))
    kind = generator.randrange(6)
    if kind == 0:
        for _ in range(generator.choice((1, 2, 8, 64))):
            changed[generator.randrange(len(changed))] = generator.randrange(256)
    elif kind == 1:  # headers are where sizes and counts are
        number = generator.choice((0, 1, 0x7F, 0x80, 0xFF, 0x7FFFFFFF, 0xFFFFFFFF))
        place = generator.randrange(min(64, len(changed)))
        order = generator.choice(("big", "little"))
        changed[place : place + 4] = number.to_bytes(4, order)
    elif kind == 2:
        del changed[here:]
    elif kind == 3:
        del changed[here : here + generator.randrange(1, 64)]
    elif kind == 4:
        changed[here:here] = changed[: generator.randrange(1, 256)] * generator.choice((1, 8))
    else:
        there = generator.randrange(len(changed))
        changed[here : here + 32], changed[there : there + 32] = (
            changed[there : there + 32],
            changed[here : here + 32],
        )
    return bytes(changed)


def damage_values(data: Any, generator: random.Random) -> Any:
    """Return a copy of nested dicts and lists with one to three values or keys changed."""
    changed = copy.deepcopy(data)
    for _ in range(generator.choice((1, 1, 1, 2, 3))):
        if not isinstance(changed, (dict, list)) or not changed:
            return generator.choice(NASTY)
        place: Any = changed
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            key = generator.choice(keys)
            inner = place[key]
            if isinstance(inner, (dict, list)) and inner and generator.random() < 0.85:
                place = inner
                continue
            break
        kind = generator.randrange(10)
        if kind < 6:
            place[key] = copy.deepcopy(generator.choice(NASTY))
        elif kind < 8:
            del place[key]
        elif isinstance(place, dict):
            place[generator.choice(("", "x", "\0", 7, *map(str, keys)))] = place.pop(key)
        else:
            place.append(copy.deepcopy(place[key]))
    return changed


def damage_json(data: bytes, generator: random.Random) -> bytes:
    """Return JSON text with other values, or with other bytes."""
    if generator.random() < 0.3:
        return damage_bytes(data, generator)
    return json.dumps(damage_values(json.loads(data), generator)).encode()


def damage_state(data: bytes, generator: random.Random) -> bytes:
    """Return a file of `torch.save` with other values, tensors, or bytes, its pickle's above all."""
    import torch

    kind = generator.randrange(8)
    if kind == 0:
        return damage_bytes(data, generator)
    if kind == 1:  # a whole archive around a damaged pickle
        return _rezipped(data, lambda pickled: damage_bytes(pickled, generator))
    state = torch.load(io.BytesIO(data), weights_only=True)
    if kind == 2:  # what older versions of PyTorch, or other programs, write
        buffer = io.BytesIO()
        torch.save(state, buffer, _use_new_zipfile_serialization=False)
        plain = pickle.dumps(generator.choice(NASTY), protocol=generator.randrange(6))
        return damage_bytes(generator.choice((buffer.getvalue(), plain)), generator)
    changed = damage_values(state, generator) if kind < 5 else _damage_tensors(state, generator)
    buffer = io.BytesIO()
    torch.save(changed, buffer)
    return buffer.getvalue()


def _rezipped(data: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """Return an archive of `torch.save` with another pickle in it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return buffer.getvalue()


def _damage_tensors(state: Any, generator: random.Random) -> Any:
    """Return a copy of nested dicts with one to three tensors of other values, shapes or types."""
    import torch

    changed = copy.deepcopy(state)
    found: list[tuple[Any, Any]] = []

    def collect(place: Any) -> None:
        for key, value in place.items() if isinstance(place, dict) else ():
            if isinstance(value, torch.Tensor):
                found.append((place, key))
            collect(value)

    collect(changed)
    for place, key in generator.sample(found, generator.choice((1, 1, 2, 3))):
        old = place[key]
        place[key] = generator.choice(
            (
                *(torch.full_like(old, value) for value in (0, 1, -1)),
                *(old.double() * value for value in (1e38, 1e300, float("nan"), float("inf"))),
                *(torch.full_like(old, v) if old.is_floating_point() else old for v in EXTREMES),
                *(
                    old.to(kind)
                    for kind in (torch.float16, torch.int64, torch.bool, torch.complex64)
                ),
                *(old.flatten(), old[None], old.new_empty(0), old.new_zeros(()), old.new_zeros(7)),
                *(old.new_zeros(1).expand(10**12), old.new_zeros(1).expand(2**15, 2**15)),
                *(old.reshape(1, -1).to_sparse(), old.to("meta"), torch.nn.Parameter(old.double())),
                old.flatten().flip(0).reshape(old.shape),
            )
        )
    return changed
