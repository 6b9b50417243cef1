"""What a checkpoint was made with: versions, threads, and the revision of a checkout."""

from __future__ import annotations

import functools
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

import captioner

PACKAGES = ("torch", "torchvision", "timm", "numpy", "pillow")


@functools.cache
def made_with() -> dict[str, str]:
    """Return names and values; `revision` is there only in a checkout with git."""
    found = {"captioner": captioner.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    found["threads"] = str(torch.get_num_threads())
    if revision := _revision(Path(captioner.__file__).parent):
        found["revision"] = revision
    return found


def _revision(folder: Path) -> str:
    """Return the commit of the checkout that the package lies in, with `-dirty` if it was changed.

    Empty where there is none: a package installed below somebody's repository is not part of it.
    """

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=True,
            text=True,
            timeout=10,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        ).stdout.strip()

    try:
        git("ls-files", "--error-unmatch", "__init__.py")
        return git("describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")
    except (OSError, subprocess.SubprocessError):
        return ""
