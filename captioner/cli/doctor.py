"""`captioner doctor`: check the installation, and say what is missing and how to get it."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import captioner
from captioner.cli import OF_TRAINING, parsing, run_command, show
from captioner.errors import CaptionerError
from captioner.log import printable
from captioner.runtime.cores import available_cores
from captioner.runtime.device import torch_is_installed

Status = Literal["ok", "optional", "missing"]
_MARKS: dict[Status, str] = {"ok": "ok", "optional": "--", "missing": "!!"}


@dataclass(frozen=True)
class Check:
    """One line of the report.

    Attributes:
        status: `ok`; `optional` where something is absent that captioning does without;
            `missing` where captioner does not work without it.
        remedy: How to get what is absent.
    """

    name: str
    status: Status
    found: str
    remedy: str = ""


def main(argv: list[str] | None = None) -> int:
    parser = parsing.CommandParser(
        prog="captioner doctor",
        description="Check the installation: versions, device, models, Java, fonts, caches. Lines "
        "marked !! need mending, -- are optional. Exit code: 0 captioner works, 1 something that "
        "it needs is missing.",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="also caption a photo in float32 and in bfloat16, to see which is faster here",
    )
    return run_command(lambda: _run(parser.parse_args(argv)))


def _run(arguments: argparse.Namespace) -> int:
    checks: list[Check] = []
    for check in _checks(measure=arguments.measure):
        checks.append(check)
        if not arguments.json:
            remedy = f": {check.remedy}" if check.remedy else ""
            line = printable(check.found + remedy)
            show(f"{_MARKS[check.status]}  {check.name:18} {line}")
    broken = [check.name for check in checks if check.status == "missing"]
    if arguments.json:
        show(json.dumps({"works": not broken, "checks": [asdict(check) for check in checks]}))
    elif broken:
        show(f"\ncaptioner needs: {', '.join(broken)}")
    else:
        show("\ncaptioner works here")
    return 1 if broken else 0


def _checks(*, measure: bool) -> Iterator[Check]:
    parts = [_machine, _packages, _device, _models, _java, _fonts, _extras, _places]
    for part in [*parts, _precision] if measure else parts:
        try:
            yield from part()
        except ImportError as error:  # the lines before name the package that is missing
            name = part.__name__.strip("_")
            yield Check(name, "missing", str(error), "pip install --upgrade .")


def _machine() -> Iterator[Check]:
    yield Check("captioner", "ok", f"{captioner.__version__} in {Path(captioner.__file__).parent}")
    system = f"{platform.system()} {platform.machine()}"
    yield Check("Python", "ok", f"{platform.python_version()}, {system}")
    yield Check("processor", "ok", f"{_processor()}, {available_cores()} cores")


def _processor() -> str:
    """Return the name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _packages() -> Iterator[Check]:
    """Compare what is installed with what captioner requires."""
    from packaging.requirements import Requirement  # matplotlib requires it

    try:
        required = importlib.metadata.requires("captioner") or []
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        listed = Path(captioner.__file__).parents[1] / "requirements.txt"
        lines = listed.read_text(encoding="utf-8").splitlines() if listed.is_file() else []
        required = [line.partition("#")[0].strip() for line in lines]
    of_training = {name.replace("_", "-") for name in OF_TRAINING}
    for requirement in map(Requirement, filter(None, required)):
        marker = requirement.marker
        extra = marker is not None and not marker.evaluate({"extra": ""})
        if marker is not None and extra and not marker.evaluate({"extra": "train"}):
            continue
        remedy = f"pip install '{requirement.name}{requirement.specifier}'"
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            if extra:
                continue  # `_device` reports missing PyTorch, and how to install it with these
            # A checkout's list has the packages of the extra [train] too.
            if requirement.name in of_training:
                remedy = "needed to train and evaluate: pip install 'captioner[train]'"
                yield Check(requirement.name, "optional", "not installed", remedy)
            else:
                yield Check(requirement.name, "missing", "not installed", remedy)
            continue
        fits = requirement.specifier.contains(version, prereleases=True)
        if not fits:
            yield Check(requirement.name, "missing", version, remedy)
        elif requirement.name in ("torch", "torchvision", "timm", "pillow", "numpy", "openvino"):
            yield Check(requirement.name, "ok", version)


def _device() -> Iterator[Check]:
    if not torch_is_installed():
        yield Check(
            "PyTorch",
            "optional",
            "not installed, needed to train and for a GPU",
            "pip install 'captioner[train]'",
        )
        return
    import torch

    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gigabytes = properties.total_memory / 2**30
            yield Check(f"cuda:{index}", "ok", f"{properties.name}, {gigabytes:.0f} GiB")
        return
    built = torch.version.cuda
    remedy = (
        "fine for captioning; to train faster install an NVIDIA driver"
        if built
        else "fine for captioning; this PyTorch is built without CUDA"
    )
    yield Check("GPU", "optional", "none, the CPU is used", remedy)
    yield Check("CPU threads", "ok", f"{torch.get_num_threads()} (OMP_NUM_THREADS changes it)")


def _models() -> Iterator[Check]:
    from captioner.checkpoint import bundled_models, model_folder, verify

    names = bundled_models()
    for name in names:
        folder = model_folder(name)
        try:
            verify(folder)
        except CaptionerError as error:
            yield Check(f"model {name}", "missing", str(error), "install captioner again")
        else:
            size = sum(file.stat().st_size for file in folder.iterdir())
            yield Check(f"model {name}", "ok", f"{size / 1e6:.0f} MB, checksums match")
    if not names:
        yield Check("bundled models", "missing", "none", "install captioner again")


def _java() -> Iterator[Check]:
    remedy = (
        "METEOR and the standard tokenizer of evaluate need it (Debian and Ubuntu: apt-get install "
        "default-jre-headless)"
    )
    java = shutil.which("java")
    if java is None:
        yield Check("Java", "optional", "not installed", remedy)
        return
    try:
        answer = subprocess.run(
            [java, "-version"],
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # it writes in the encoding of the machine's language
            timeout=30,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        yield Check("Java", "optional", f"{java} does not run ({error})", remedy)
        return
    version = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    yield Check("Java", "ok", f"{version[1] if version else 'some version'} at {java}")


def _fonts() -> Iterator[Check]:
    import matplotlib
    from PIL import ImageFont, features

    file = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    try:
        face = ImageFont.truetype(str(file), 12)
    except OSError as error:
        yield Check("font", "missing", f"{file} ({error})", "install matplotlib again")
        return
    yield Check("font", "ok", f"{face.getname()[0]} (Latin, Greek, Cyrillic, Arabic and more)")
    if features.check_feature("raqm"):
        yield Check("right-to-left", "ok", "Raqm lays out text from right to left")
    else:
        yield Check(
            "right-to-left", "optional", "no Raqm", "install libraqm to draw Arabic and Hebrew"
        )


def _extras() -> Iterator[Check]:
    serve = "fastapi uvicorn multipart prometheus_client prometheus_fastapi_instrumentator"
    for name, modules, purpose, to_install in (
        ("serve", serve, "captioner serve", "'captioner[serve]'"),
        ("batch", "braceexpand fsspec pyarrow ray", "captioner batch", "'captioner[batch]'"),
        ("subwords", "tokenizers", "data.tokenizer subwords", "'captioner[subwords]'"),
        ("pillow-heif", "pillow_heif", "HEIC photos", "pillow-heif"),
    ):
        if all(map(importlib.util.find_spec, modules.split())):
            yield Check(name, "ok", f"installed, for {purpose}")
        else:
            found = f"not installed, needed for {purpose}"
            yield Check(name, "optional", found, f"pip install {to_install}")


def _places() -> Iterator[Check]:
    """Where files are kept: caches of weights, and temporary files."""
    home = Path(os.path.expanduser("~"))  # stays "~" for a user without one, as in some containers
    caches = {
        "TORCH_HOME": Path(os.environ.get("TORCH_HOME", home / ".cache" / "torch")),
        "HF_HOME": Path(os.environ.get("HF_HOME", home / ".cache" / "huggingface")),
    }
    for variable, folder in caches.items():
        unused = "only other encoders than ours use it"
        try:
            size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
            found = f"{size / 1e6:.0f} MB of weights" if folder.is_dir() else f"empty; {unused}"
        except OSError as error:  # of another user, or changed meanwhile
            found = f"cannot be read ({error.strerror}); {unused}"
        yield Check(variable, "ok", f"{folder}, {found}")
    folder = Path(tempfile.gettempdir())
    try:
        with tempfile.NamedTemporaryFile():
            free = shutil.disk_usage(folder).free / 1e9
    except OSError as error:
        yield Check("temporary files", "missing", f"{folder} ({error.strerror})", "set TMPDIR")
    else:
        yield Check("temporary files", "ok", f"{folder}, {free:.0f} GB free")


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
