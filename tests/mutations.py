"""Damage to files, by bytes and by structure, drawn from a generator that a test seeds."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

# What a hostile or broken writer may put in the place of any value.
NASTY: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 3.5, 7, -(10**9), 10**9, 2**63, 10**40, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "a", "\0", "../other", "/dev/zero", "é" * 300, "9" * 50),
    *("soft", "hard", "transformer", "none", "\x1b[2J", "x" * 100_000),
    *([], {}, [[]], [None], {"": {}}, [0] * 1000, {"a": [1, {"b": None}]}, [[[[[[[[[[1]]]]]]]]]]),
)


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
