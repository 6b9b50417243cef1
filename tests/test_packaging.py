"""What `pip install .` brings: the package with its models and recipes, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from functools import partial
from pathlib import Path

import pytest
import tiny
from PIL import Image

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy, because setuptools builds inside the tree it is given
    made = shutil.ignore_patterns("__pycache__", "*.py[cod]", ".mypy_cache", ".ruff_cache")
    for name in ("captioner", "configs", "tests"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=made)
    for name in ("pyproject.toml", "setup.py", "requirements.txt", "README.md", "LICENSE"):
        shutil.copy(REPOSITORY / name, tree)
    model = tree / "captioner" / "bundled" / "made_up"
    model.mkdir(parents=True)
    for name in ("model.safetensors", "config.yaml", "vocabulary.json", "README.md"):
        (model / name).write_text(name)
    cached = tree / "captioner" / "__pycache__" / "grid.cpython-310.pyc"
    cached.parent.mkdir()
    cached.write_bytes(b"left by an import")

    build = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
    subprocess.run(
        [sys.executable, "-c", build, str(tmp_path)], cwd=tree, check=True, capture_output=True
    )

    (wheel,) = tmp_path.glob("captioner-*.whl")
    files = zipfile.ZipFile(wheel)
    shipped = {name for name in files.namelist() if ".dist-info/" not in name}
    package = {
        path.relative_to(tree).as_posix()
        for path in (tree / "captioner").rglob("*")
        if path.is_file() and path != cached
    }
    recipes = {
        f"captioner/{path.relative_to(tree).as_posix()}"
        for path in (tree / "configs").rglob("*.yaml")
    }
    assert "captioner/bundled/made_up/model.safetensors" in package
    assert "captioner/configs/families/hard.yaml" in recipes
    assert shipped == package | recipes
    (info,) = {name.partition("/")[0] for name in files.namelist() if ".dist-info/" in name}
    entry_points = files.read(f"{info}/entry_points.txt").decode()
    assert "captioner = captioner.__main__:main" in entry_points
    files.extractall(tmp_path / "installed")
    code = "from captioner.config import read_recipe; print(read_recipe('coco_paper').optim.name)"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "installed",
        env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
        check=True,
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip() == "adam"
    metadata = files.read(f"{info}/METADATA").decode()
    assert "\nRequires-Dist: torch>=" in metadata
    assert "\nRequires-Python: >=3.10" in metadata


@pytest.mark.slow
def test_the_sdist_alone_installs_a_package_that_captions(tmp_path: Path) -> None:
    """Tree to sdist, sdist to wheel, wheel into an environment that has only the libraries.

    `make dist` does the same with the libraries installed anew, which takes their gigabytes.
    """
    tree = tmp_path / "tree"
    made = shutil.ignore_patterns(".*", "__pycache__", "out", "runs", "dist", "build", "*.egg-info")
    shutil.copytree(REPOSITORY, tree, ignore=made)
    hook = "import sys; import setuptools.build_meta as b; getattr(b, sys.argv[1])(sys.argv[2])"
    build = [sys.executable, "-c", hook]
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    run([*build, "build_sdist", tmp_path], cwd=tree)
    (sdist,) = tmp_path.glob("captioner-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (source,) = (tmp_path / "unpacked").iterdir()
    run([*build, "build_wheel", tmp_path], cwd=source)
    (wheel,) = tmp_path.glob("captioner-*.whl")
    run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "empty"])
    python = tmp_path / "empty/bin/python"
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    own = Path(run([python, "-c", where]).stdout.strip())
    libraries = run([sys.executable, "-c", where]).stdout.strip()
    (own / "libraries.pth").write_text(libraries)
    alone = ["--no-deps", "--no-index", "--target", own]
    run([sys.executable, "-m", "pip", "install", *alone, wheel])
    tiny.photo(1)[0].save(tmp_path / "photo.jpg")
    command = [python, "-m", "captioner", "caption", "photo.jpg", "--output", "out", "--device=cpu"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    found = run(command, cwd=tmp_path, env=environment)
    assert found.stdout.strip()
    Image.open(tmp_path / "out/photo.attention.png").verify()
    which = "import captioner; print(captioner.__file__)"
    assert run([python, "-c", which], cwd=tmp_path, env=environment).stdout.startswith(str(own))
    assert run([python, "-m", "captioner", "train", "--config=table", "--help"], cwd=tmp_path)
