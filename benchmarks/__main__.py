"""All benchmarks, or those named: a table each, and a JSON file.

    python -m benchmarks [step search folder encoder startup growth] [--peer PATH] [--output FILE]

Every figure is a ratio of times taken in turns in one run; medians of several rounds, with the
least and the most. --peer is a checkout of sgrvinod's a-PyTorch-Tutorial-to-Image-Captioning.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib.cbook
import torch

from benchmarks import encoder, folder, growth, peer, search, startup, step
from benchmarks.timing import ROUNDS, Table, as_json, machine
from captioner.runtime.device import choose_device

NAMES = ("step", "search", "folder", "encoder", "startup", "growth")


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
    tables: dict[str, Table] = {}

    def done(name: str, table: Table) -> None:
        tables[name] = table
        print(f"\n{table.text()}", flush=True)

    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    print(json.dumps(machine(device)))
    for name in arguments.names or NAMES:
        if name == "step":
            types = [torch.float32, torch.bfloat16]
            for batch in (4,) if quick else (32, 256) if device.type == "cuda" else (32,):
                for dtype in types:
                    done(
                        f"step {batch} {dtype}",
                        step.run(
                            checkout=arguments.peer,
                            device=device,
                            batch=batch,
                            dtype=dtype,
                            rounds=rounds,
                        ),
                    )
        elif name == "search":
            photos = 4 if quick else 1000
            done(
                name,
                search.run(
                    checkout=arguments.peer,
                    device=device,
                    photos=photos,
                    batch=4 if quick else 256 if device.type == "cuda" else 32,
                    rounds=rounds,
                ),
            )
        elif name == "folder":
            done(name, folder.run(device=device, photos=16 if quick else 500, rounds=rounds))
        elif name == "encoder":
            done(name, encoder.run(device=device, batch=4 if quick else 32, rounds=rounds))
        elif name == "startup":
            photo = Path(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))
            done(name, startup.run(photo=photo, rounds=rounds))
        elif name == "growth":
            done(name, growth.run(device=device, rounds=rounds, quick=quick))
            growth.draw(tables[name], arguments.output.with_name("growth.png"))
    content = {
        "machine": machine(device),
        "tables": {name: {"title": t.title, "rows": t.rows} for name, t in tables.items()},
    }
    arguments.output.write_text(json.dumps(content, indent=1, default=as_json), encoding="utf-8")
    print(f"\n{arguments.output}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
