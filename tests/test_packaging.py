"""What `pip install .` brings: the whole package with its models, and nothing beside it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_every_file_of_the_package_and_nothing_else(tmp_path: Path) -> None:
    tree = tmp_path / "tree"  # a copy, because setuptools builds inside the tree it is given
    made = shutil.ignore_patterns("__pycache__", "*.py[cod]", ".mypy_cache", ".ruff_cache")
    for name in ("captioner", "tests"):
        shutil.copytree(REPOSITORY / name, tree / name, ignore=made)
    for name in ("pyproject.toml", "requirements.txt", "README.md", "LICENSE"):
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
    assert "captioner/bundled/made_up/model.safetensors" in package
    assert shipped == package
    (info,) = {name.partition("/")[0] for name in files.namelist() if ".dist-info/" in name}
    entry_points = files.read(f"{info}/entry_points.txt").decode()
    assert "captioner = captioner.__main__:main" in entry_points
    metadata = files.read(f"{info}/METADATA").decode()
    assert "\nRequires-Dist: torch>=" in metadata
    assert "\nRequires-Python: >=3.10" in metadata
