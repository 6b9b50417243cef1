"""All benchmarks, or those named: a table each, and a JSON file.

    python -m benchmarks [step search folder drawing ...] [--peer PATH] [--output FILE]

Every figure is a ratio of times taken in turns in one run; medians of several rounds, with the
least and the most. One takes two minutes at most. --peer is a checkout of sgrvinod's
a-PyTorch-Tutorial-to-Image-Captioning.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path

import matplotlib.cbook
import torch

from benchmarks import drawing, encoder, folder, peer, search, startup, step
from benchmarks.timing import ROUNDS, has_bfloat16, machine
from captioner.runtime.device import choose_device

NAMES = ("step", "search", "folder", "drawing", "encoder", "startup")


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Benchmarks of captioner: ratios, never times alone."
    )
    parser.add_argument(
        "names", nargs="*", choices=[*NAMES, []], metavar="NAME", help=", ".join(NAMES)
    )
    parser.add_argument("--peer", type=Path, help="checkout of the peer")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--quick", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--output", type=Path, default=Path("out/benchmarks.json"))
    arguments = parser.parse_args()
    if arguments.peer:
        peer.check(arguments.peer)
    device = choose_device(arguments.device)
    quick, rounds = arguments.quick, arguments.rounds
    gpu = device.type == "cuda"
    photo = Path(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
    settings = {"checkout": arguments.peer, "device": device, "rounds": rounds}
    runs = {
        f"step {batch} {dtype}": partial(step.run, batch=batch, dtype=dtype, **settings)
        for batch in ((4,) if quick else (32, 256) if gpu else (32,))
        for dtype in (torch.float32, *([torch.bfloat16] if has_bfloat16(device) else []))
    }
    batch = 4 if quick else 256 if gpu else 32
    photos = 4 if quick else 1000 if gpu else 64
    runs |= {
        "search": partial(search.run, photos=photos, batch=batch, **settings),
        "folder": partial(
            folder.run, photos=16 if quick else 500 if gpu else 96, device=device, rounds=rounds
        ),
        "drawing": partial(drawing.run, photos=4 if quick else 100, rounds=rounds),
        "encoder": partial(encoder.run, batch=4 if quick else 32, device=device, rounds=rounds),
        "startup": partial(startup.run, photo=photo, rounds=rounds),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps(machine(device)))
    tables = {}
    for name, run in runs.items():
        if name.split()[0] in (arguments.names or NAMES):
            tables[name] = run()
            print(f"\n{tables[name].text()}", flush=True)
    content = {
        "machine": machine(device),
        "tables": {name: asdict(table) for name, table in tables.items()},
    }
    arguments.output.write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(f"\n{arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
