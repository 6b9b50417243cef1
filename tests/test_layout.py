"""Imports between packages follow the flow of data, and the lock file pins every requirement."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

REPOSITORY = Path(__file__).resolve().parents[1]


def test_packages_import_only_those_below_them() -> None:
    """The contract stands in pyproject.toml (import-linter)."""
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert "1 kept, 0 broken" in linted.stdout


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


def test_requirements_txt_lists_the_dependencies_and_the_extra_for_training() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = (REPOSITORY / "requirements.txt").read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    assert listed == {*project["dependencies"], *project["optional-dependencies"]["train"]}
    light = (REPOSITORY / "requirements-light.lock").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^(\S+)==", light, flags=re.MULTILINE))
    assert {canonicalize_name(Requirement(each).name) for each in project["dependencies"]} <= pinned
    assert "torch" not in pinned
    assert not re.search(r"https?://|file:|index-url", light), "a lock names no host and no folder"
