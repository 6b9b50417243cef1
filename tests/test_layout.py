"""The shape of the house: which room may import which, how long a module may be, what ships."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "captioner"
MAX_LINES = 350

# room: what of ours it may import, besides itself and `errors`, which is open to all. The most
# exact row counts, and a name opens all that is below it. `training` stands in one row only.
MAY_IMPORT = {
    "errors": "",
    "grid": "",
    "config": "",
    "device": "",
    "allocator": "",
    "passes": "",
    "onednn": "",
    "linear": "onednn",
    "files": "",
    "data": "grid files",
    "data.vocabulary": "",
    "data.transforms": "grid",
    "encoders": "grid linear onednn",
    "attention": "grid linear",
    "decoders": "grid attention linear",
    "model": "grid config data.transforms encoders attention decoders",
    "decoding": "grid decoders.base",
    "rendering": "grid data.transforms files",
    "evaluation": "grid files",
    "evaluation.faithfulness": "grid decoders.base decoding evaluation.intervals",
    "checkpoint": "grid config data model",
    "pipeline": "passes linear grid config device data attention model checkpoint decoding",
    "serving": "__init__ grid data rendering pipeline",
    "training": "passes files grid config device data encoders decoders model checkpoint decoding rendering evaluation",
    "commands": "allocator passes files grid config device data attention model checkpoint decoding rendering evaluation pipeline "
    "training serving",
    "__init__": "grid pipeline",
    "__main__": "__init__ commands",
}


def is_within(module: str, room: str) -> bool:
    return module == room or module.startswith(room + ".")


def forbidden_imports(package: Path) -> list[str]:
    """One "module imports module" for each import that MAY_IMPORT does not allow."""
    modules = {module_name(package, path): path for path in sorted(package.rglob("*.py"))}
    found = []
    for module, path in modules.items():
        row = max((row for row in MAY_IMPORT if is_within(module, row)), key=len, default=None)
        if row is None:
            found.append(f"{module} has no row in MAY_IMPORT")
            continue
        allowed = ["errors", row, *MAY_IMPORT[row].split()]
        for imported in own_imports(path, module, package.name, modules):
            if not any(is_within(imported, room) for room in allowed):
                found.append(f"{module} imports {imported}")
    return found


def module_name(package: Path, path: Path) -> str:
    """Dotted name inside the package: `grid`, `data.transforms`; a folder's __init__ is the folder.

    The package's own __init__ keeps its name, being a room of its own.
    """
    parts = path.relative_to(package).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)


def own_imports(path: Path, module: str, package: str, modules: dict[str, Path]) -> list[str]:
    """Modules of ours that a file imports, at the top or inside a function, in any spelling."""
    folder = module if path.name == "__init__.py" else module.rpartition(".")[0]
    base = [package, *folder.split(".")] if folder and folder != "__init__" else [package]
    names: list[str] = []
    for node in imports_at_run_time(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
            continue
        source = node.module or ""
        if node.level:
            source = ".".join([*base[: len(base) - node.level + 1], *filter(None, [source])])
        for alias in node.names:  # from captioner import grid: the name may itself be a module
            inner = f"{source}.{alias.name}".partition(".")[2]
            names.append(f"{package}.{inner}" if inner in modules else source)
    return [
        name.partition(".")[2] or "__init__"
        for name in names
        if name == package or name.startswith(package + ".")
    ]


def imports_at_run_time(node: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Imports below a node, without those under `if TYPE_CHECKING:`."""
    found: list[ast.Import | ast.ImportFrom] = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.Import, ast.ImportFrom)):
            found.append(child)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for branch in child.orelse:
                found += imports_at_run_time(ast.Module([branch], []))
        else:
            found += imports_at_run_time(child)
    return found


def test_every_module_imports_only_what_its_room_may() -> None:
    assert forbidden_imports(PACKAGE) == []


def test_every_room_has_a_row_and_every_row_a_room() -> None:
    rooms = {
        path.stem
        for path in PACKAGE.iterdir()
        if path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))
    }
    assert rooms == {row.partition(".")[0] for row in MAY_IMPORT}
    names = {module_name(PACKAGE, path) for path in PACKAGE.rglob("*.py")}
    mentioned = {*MAY_IMPORT, *" ".join(MAY_IMPORT.values()).split()}
    assert mentioned - names == set()


@pytest.mark.parametrize(
    ("module", "line", "violation"),
    [
        ("rendering/overlay.py", "from captioner.model import build_model", "model"),
        ("rendering/overlay.py", "import captioner.model as m", "model"),
        ("rendering/overlay.py", "from captioner import model", "model"),
        ("rendering/overlay.py", "from .. import model", "model"),
        ("rendering/overlay.py", "from ..model import build_model", "model"),
        ("rendering/__init__.py", "from ..model import build_model", "model"),
        ("rendering/overlay.py", "def f():\n    from captioner.model import build_model", "model"),
        ("rendering/overlay.py", "from captioner import Captioner", "__init__"),
        ("rendering/overlay.py", "from captioner.data import vocabulary", "data.vocabulary"),
        ("decoding/beam.py", "from captioner.decoders.lstm import LSTMDecoder", "decoders.lstm"),
        ("decoding/beam.py", "from captioner.decoders import Decoder", "decoders"),
        ("data/vocabulary.py", "from captioner.grid import Grid", "grid"),
        ("pipeline.py", "from captioner.training.losses import caption_loss", "training.losses"),
        ("__init__.py", "from .model import build_model", "model"),
    ],
)
def test_a_forbidden_import_is_found_however_it_is_spelt(
    tmp_path: Path, module: str, line: str, violation: str
) -> None:
    package = made_up_package(tmp_path, module, line)
    name = module_name(package, package / module)
    assert forbidden_imports(package) == [f"{name} imports {violation}"]


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("rendering/overlay.py", "from captioner.data.transforms import open_photo"),
        ("rendering/overlay.py", "from captioner.data import transforms"),
        ("rendering/overlay.py", "from . import text"),
        ("rendering/overlay.py", "import numpy, captioner.errors"),
        ("rendering/overlay.py", "from model import captioner"),
        (
            "rendering/overlay.py",
            "if TYPE_CHECKING:\n    from captioner.model import build_model",
        ),
        ("decoding/beam.py", "from captioner.decoders.base import Decoder"),
        ("commands/train.py", "from captioner.training.loop import train"),
        ("__init__.py", "from .pipeline import Captioner"),
    ],
)
def test_an_allowed_import_is_let_through(tmp_path: Path, module: str, line: str) -> None:
    assert forbidden_imports(made_up_package(tmp_path, module, line)) == []


def test_a_module_in_a_room_without_a_row_is_found(tmp_path: Path) -> None:
    package = made_up_package(tmp_path, "attic/box.py", "import os")
    assert forbidden_imports(package) == ["attic.box has no row in MAY_IMPORT"]


def made_up_package(folder: Path, module: str, line: str) -> Path:
    package = folder / "captioner"
    modules = ["__init__", "errors", "grid", "model", "pipeline", "decoders/__init__"]
    modules += ["data/__init__", "data/vocabulary", "data/transforms", "rendering/text"]
    for name in modules:
        path = package / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (package / module).parent.mkdir(parents=True, exist_ok=True)
    (package / module).write_text(line)
    return package


def test_no_module_is_too_long_to_read_in_one_sitting() -> None:
    lengths = {
        str(path.relative_to(REPOSITORY)): len(path.read_text(encoding="utf-8").splitlines())
        for path in PACKAGE.rglob("*.py")
    }
    assert {path: lines for path, lines in lengths.items() if lines > MAX_LINES} == {}


def test_no_committed_file_names_a_path_of_somebodys_machine() -> None:
    machine_path = re.compile(rb"(?<![\w.])/(?:home|root|work|Users)/\w|[A-Z]:\\\\?Users\\")
    assert machine_path.search(b"see /home/" + b"me/captioner")
    found = {}
    for name in files_to_commit():
        match = machine_path.search((REPOSITORY / name).read_bytes())
        if match:
            found[name] = match.group()
    assert found == {}


def files_to_commit() -> list[str]:
    """Files of the repository, those that git does not know yet included, ignored ones not."""
    if not (REPOSITORY / ".git").exists() or shutil.which("git") is None:
        pytest.skip("not a git checkout, or no git")
    # safe.directory: the checkout may belong to another user, as in a container.
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z"]
    command += ["--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=True, text=True)
    return [name for name in listed.stdout.split("\0") if (REPOSITORY / name).is_file()]


def test_the_lock_pins_every_requirement_within_its_range_and_with_hashes() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    ranges = [line.partition("#")[0].strip() for line in lines]
    ranges += project["dependency-groups"]["dev"]
    ranges += [
        each for extra in project["project"]["optional-dependencies"].values() for each in extra
    ]
    lock = (REPOSITORY / "requirements.lock").read_text(encoding="utf-8")
    pins: dict[str, list[str]] = {}
    for name, version, hashes in re.findall(
        r"^(\S+)==([^\s;]+).*\\\n((?:    --hash=\S+.*\n)+)", lock, flags=re.MULTILINE
    ):
        assert "--hash=sha256:" in hashes
        pins.setdefault(name, []).append(version)
    assert sum(map(len, pins.values())) == len(re.findall(r"^\w", lock, flags=re.MULTILINE))
    for requirement in map(Requirement, filter(None, ranges)):
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not in the lock: run make lock"
        for version in versions:
            assert version in requirement.specifier, f"{requirement} is locked at {version}"
    assert not re.search(r"https?://|file:|index-url", lock), "a lock names no host and no folder"
