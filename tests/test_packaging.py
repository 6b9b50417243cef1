"""What `pip install .` brings: the package with its models and recipes, and nothing else."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy, because setuptools builds inside the tree it is given
    # Without weights, which take seconds to compress: a made-up model stands for them.
    made = shutil.ignore_patterns(
        "__pycache__", "*.py[cod]", ".mypy_cache", ".ruff_cache", "*.safetensors"
    )
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
    assert "captioner = captioner.__main__:main" in files.read(f"{info}/entry_points.txt").decode()
    files.extractall(tmp_path / "installed")
    code = "from captioner.config.recipes import read_recipe; print(read_recipe('coco_paper').optim.name)"
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
