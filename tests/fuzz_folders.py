"""Damage the files of a model folder or of a run, load them, and report what came of it.

    python tests/fuzz_folders.py model|run|state FOLDER WORK SEED COUNT

Each case takes a fresh copy of FOLDER in WORK, damages one file, half of the time makes the manifest
agree with it, and loads the model and captions a photo, or resumes the run. `state` damages the
training state alone, always with a manifest that agrees, and resumes the run for one epoch more, so
that all of it is used. Prints the number of each outcome as JSON: `used`, `refused`, and `went back`
for a run that went on from the checkpoint before the damaged one. Ends with an exit code other than
0 when anything else than success or one sentence came of a case, or it took more than LIMIT_S.
Memory is limited, so that a case that fills it fails.
"""

from __future__ import annotations

import json
import random
import resource
import shutil
import signal
import struct
import sys
import time
import traceback
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import mutations
import tiny
import yaml

LIMIT_S = 5.0  # of processor time: the machine may be busy with other work
MEMORY_BYTES = 4 * 2**30  # in addition to what is mapped: without any, OpenVINO itself crashes


class TooSlow(BaseException):
    """A case took more than LIMIT_S; no handler of errors takes it for damage."""


def damage(path: Path, generator: random.Random) -> None:
    data = path.read_bytes()
    if path.suffix == ".json":
        data = mutations.damage_json(data, generator)
    elif generator.random() < 0.3:
        data = mutations.damage_bytes(data, generator)
    elif path.suffix == ".jsonl":
        lines = data.splitlines()
        line = generator.randrange(len(lines))
        lines[line] = mutations.damage_json(lines[line], generator)
        data = b"\n".join(lines) + b"\n"
    elif path.suffix == ".yaml":
        data = yaml.safe_dump(mutations.damage_values(yaml.safe_load(data), generator)).encode()
    elif path.suffix == ".safetensors":
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        changed = json.dumps(mutations.damage_values(header, generator)).encode()
        data = struct.pack("<Q", len(changed)) + changed + data[8 + length :]
    elif path.suffix == ".pt":
        data = mutations.damage_state(data, generator)
    else:
        data = mutations.damage_bytes(data, generator)
    path.write_bytes(data)


def use_model(folder: Path, photo: Path, engine: Any) -> None:
    from captioner import Captioner

    Captioner.from_pretrained(folder, device="cpu", engine=engine).caption(photo)


def resume_run(folder: Path, photo: Path) -> None:
    from captioner.training import train

    train(tiny.recipe(photo.parent, folder, train__epochs=1), resume=True)


def resume_further(folder: Path, photo: Path) -> None:
    from captioner.config import Config, from_yaml
    from captioner.training import train

    config = from_yaml(Config, (folder / "config.yaml").read_text(encoding="utf-8"))
    output, epochs = str(folder), config.train.epochs + 1
    train(replace(config, train=replace(config.train, output=output, epochs=epochs)), resume=True)


def main(what: str, folder: Path, work: Path, seed: int, count: int) -> int:
    from captioner.checkpoint import MANIFEST, write_manifest
    from captioner.errors import CaptionerError

    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY_BYTES, mapped + MEMORY_BYTES))
    photo = folder.parent / "photos" / "00.jpg"
    generator = random.Random(seed)
    skipped = ("tensorboard", "samples", "best", "previous", ".lock")
    names = (
        [Path("last", "training_state.pt")]
        if what == "state"
        else sorted(
            path.relative_to(folder)
            for path in folder.rglob("*")
            if path.is_file() and not set(skipped) & set(path.relative_to(folder).parts)
        )
    )
    outcomes: Counter[str] = Counter()
    slowest_s = 0.0

    def too_slow(*_: object) -> None:
        raise TooSlow

    signal.signal(signal.SIGPROF, too_slow)
    for number in range(count):
        case = work / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(folder, case)
        name = names[number % len(names)]
        print(f"{what} {seed} {number} {name}", file=sys.stderr)  # the last one before a crash
        try:
            damage(case / name, generator)
        except (TypeError, ValueError, OverflowError, yaml.YAMLError):
            outcomes["cannot be written"] += 1  # such as a key of YAML or JSON that is no text
            continue
        signed = what == "state" or (generator.random() < 0.5 and name.name != MANIFEST)
        if signed and (case / name).with_name(MANIFEST).exists():
            write_manifest((case / name).parent)
        began = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, LIMIT_S)
        try:
            if what == "model":
                use_model(case, photo, generator.choice(("auto", "torch")))  # auto: its graphs
            elif what == "run":
                resume_run(case, photo)
            else:
                resume_further(case, photo)
            outcome = "went back" if (case / "last.damaged").exists() else "used"
        except CaptionerError as error:
            outcome = "refused"
            if "\n" in str(error):
                outcome = f"FAILED {name}: no sentence: {error}"
        except (Exception, TooSlow):  # noqa: BLE001  whatever it is, it is a finding
            shutil.copytree(case, work / f"failed-{what}-{seed}-{number}")
            traceback.print_exc()
            outcome = f"FAILED {name} (signed: {signed})"
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        slowest_s = max(slowest_s, time.process_time() - began)
        outcomes[outcome] += 1
    peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    result: dict[str, Any] = {**outcomes, "slowest_s": round(slowest_s, 2), "peak_mb": peak_mb}
    print(json.dumps(result))
    return any(outcome.startswith("FAILED") for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(
        main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
    )
