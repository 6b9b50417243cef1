"""`captioner doctor`: check the installation, and say what is missing and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import platform
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import captioner
from captioner.cli import OF_TRAINING, parsing, run_command, show
from captioner.errors import CaptionerError
from captioner.log import printable
from captioner.runtime.cores import available_cores
from captioner.runtime.device import torch_is_installed

_MARKS = {"ok": "ok", "optional": "--", "missing": "!!"}
_EXTRAS = {  # what pip installs, the modules that it brings, and what needs them
    "'captioner[serve]'": (
        "fastapi uvicorn multipart prometheus_client prometheus_fastapi_instrumentator",
        "captioner serve",
    ),
    "'captioner[batch]'": ("braceexpand fsspec pyarrow ray", "captioner batch"),
    "'captioner[subwords]'": ("tokenizers", "data.tokenizer subwords"),
    "pillow-heif": ("pillow_heif", "HEIC photos"),
}


class Check(NamedTuple):
    """One line of the report: what was found, and how to get what is absent.

    The status is `ok`, `optional` where captioning does without it, or `missing`.
    """

    name: str
    status: str
    found: str
    remedy: str = ""


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner doctor",
        description="Check the installation: versions, device, models, Java, extras. Lines "
        "marked !! need mending, -- are optional. Exit code: 0 captioner works, 1 something that "
        "it needs is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="also caption a photo in float32 and in bfloat16, to see which is faster here",
    )
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    checks = []
    parts = [_packages, _device, _models, _java, _extras]
    for part in [*parts, _precision] if arguments.measure else parts:
        for check in part():
            checks.append(check)
            if not arguments.json:
                line = f"{check.found}: {check.remedy}" if check.remedy else check.found
                show(f"{_MARKS[check.status]}  {check.name:18} {printable(line)}")
    broken = [check.name for check in checks if check.status == "missing"]
    if arguments.json:
        content = {"works": not broken, "checks": [check._asdict() for check in checks]}
        show(json.dumps(content))
    else:
        show(f"\ncaptioner needs: {', '.join(broken)}" if broken else "\ncaptioner works here")
    return 1 if broken else 0


def _packages() -> Iterator[Check]:
    """Compare what is installed with what captioner requires."""
    from packaging.requirements import Requirement  # matplotlib requires it

    yield Check("captioner", "ok", f"{captioner.__version__} in {Path(captioner.__file__).parent}")
    system = f"{platform.system()} {platform.machine()}, {available_cores()} cores"
    yield Check("Python", "ok", f"{platform.python_version()}, {system}")
    try:
        required = importlib.metadata.requires("captioner") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        listed = Path(captioner.__file__).parents[1] / "requirements.txt"
        lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
        required = [line.partition("#")[0].strip() for line in lines]
    of_training = {name.replace("_", "-") for name in OF_TRAINING}
    for requirement in map(Requirement, filter(None, required)):
        name, marker = requirement.name, requirement.marker
        if marker is not None and not marker.evaluate({"extra": "train"}):
            continue
        remedy = f"pip install '{name}{requirement.specifier}'"
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name == "torch":
                found = "not installed, needed to train and for a GPU"
                yield Check("PyTorch", "optional", found, "pip install 'captioner[train]'")
            elif name not in of_training:
                yield Check(name, "missing", "not installed", remedy)
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            yield Check(name, "missing", version, remedy)
        elif name in ("torch", "timm", "pillow", "openvino"):
            yield Check(name, "ok", version)


def _device() -> Iterator[Check]:
    if not torch_is_installed():  # as `_packages` has said
        return
    import torch

    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        gigabytes = properties.total_memory / 2**30
        yield Check(f"cuda:{index}", "ok", f"{properties.name}, {gigabytes:.0f} GiB")
    if not torch.cuda.is_available():
        remedy = "to train faster install an NVIDIA driver and a PyTorch with CUDA"
        yield Check("GPU", "optional", "none; the CPU is fine for captioning", remedy)


def _models() -> Iterator[Check]:
    from captioner.checkpoint import bundled_models, model_folder, verify

    for name in bundled_models():
        try:
            verify(model_folder(name))
        except CaptionerError as error:
            yield Check(f"model {name}", "missing", str(error), "install captioner again")
        else:
            yield Check(f"model {name}", "ok", "checksums match")


def _java() -> Iterator[Check]:
    remedy = "METEOR needs it (Debian and Ubuntu: apt-get install default-jre-headless)"
    java = shutil.which("java")
    if java is None:
        yield Check("Java", "optional", "not installed", remedy)
    else:
        yield Check("Java", "ok", java)


def _extras() -> Iterator[Check]:
    for package, (modules, purpose) in _EXTRAS.items():
        name = package.strip("'")
        if all(map(importlib.util.find_spec, modules.split())):
            yield Check(name, "ok", f"installed, for {purpose}")
        else:
            found = f"not installed, needed for {purpose}"
            yield Check(name, "optional", found, f"pip install {package}")


def _precision() -> Iterator[Check]:
    """Compare the seconds of the encoder in both number formats."""
    from captioner.checkpoint import model_folder
    from captioner.engines.choice import open_engine
    from captioner.engines.speed import speed_ratio

    try:
        folder = model_folder("soft")
        half, config, _ = open_engine(folder, engine="auto", device="auto", precision="bfloat16")
        whole, _, _ = open_engine(folder, engine="auto", device="auto", precision="float32")
    except CaptionerError as error:  # such as no PyTorch, or a damaged model, which was said above
        yield Check("bfloat16", "optional", f"not measured: {error}")
        return
    ratio = speed_ratio(half, whole, config.preprocess)
    advice = "use --precision bfloat16" if ratio > 1.1 else "leave --precision at float32"
    yield Check("bfloat16", "ok", f"{ratio:.2f} times as fast as float32 here: {advice}")
