"""`captioner COMMAND`: one program for all commands."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from programs import REPOSITORY, Commands

from captioner import __version__
from captioner.__main__ import main
from captioner.cli import COMMANDS, run_command
from captioner.cli.doctor import SHELLS, script


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_printed(commands: Commands, option: str) -> None:
    outcome = commands.run("captioner", option)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, f"captioner {__version__}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h", "help"])
def test_help_names_every_command(commands: Commands, option: str) -> None:
    outcome = commands.run("captioner", option)
    assert outcome.code == 0
    assert all(f"  {name}" in outcome.stdout for name in COMMANDS)
    assert "examples:" in outcome.stdout
    lines = outcome.stdout.splitlines()
    assert len(lines) < 24, "and the prompt below it"
    assert max(map(len, lines)) < 80, "it fits a terminal of 80 x 24"
    assert outcome.stderr == ""


def test_no_command_is_exit_code_2_with_the_commands_there_are(commands: Commands) -> None:
    outcome = commands.run("captioner")
    assert (outcome.code, outcome.stdout) == (2, "")
    assert "usage: captioner COMMAND" in outcome.stderr


def test_help_of_a_command_does_not_wait_for_torch() -> None:
    code = (
        "import sys\n"
        "from captioner.__main__ import main\n"
        "for name in sys.argv[1:]:\n"
        "    try: main([name, '--help'])\n"
        "    except SystemExit: pass\n"
        "    print(f'{name}:', 'torch' in sys.modules)\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", code, *COMMANDS],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    told = [line for line in found.stdout.splitlines() if line.endswith((": True", ": False"))]
    assert told == [f"{name}: False" for name in COMMANDS]


def test_a_full_disk_under_standard_output_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert main(["completion", "bash"]) == 1
    told = capsys.readouterr().err
    assert told.startswith("error: standard output cannot be written (No space left on device); ")
    assert told.count("\n") == 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_quiet_or_verbose_but_not_both(
    commands: Commands, command: str
) -> None:
    listed = commands.run("captioner", command, "--help").stdout
    assert f"usage: captioner {command}" in listed
    assert "-q, --quiet" in listed
    assert "-v, --verbose" in listed
    both = commands.run("captioner", command, "-q", "--verbose")
    assert both.code == 2
    assert "not allowed with" in both.stderr


def test_quiet_leaves_out_the_bar_and_verbose_says_the_time(
    drawn_photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    def said(*options: str) -> str:
        assert main(["check-data", str(drawn_photos), *options]) in (0, 1)
        return capsys.readouterr().err

    assert "100%" in said()
    assert said("--quiet") == ""
    assert re.search(r"\d s$", said("-v").strip())


def test_doctor_names_what_is_installed_and_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    absent = "prometheus_fastapi_instrumentator"
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == absent else found(name)
    )
    monkeypatch.setenv("PATH", "/nowhere")
    assert main(["doctor"]) == 0
    printed = capsys.readouterr().out
    assert "captioner works here" in printed
    for line in (
        "ok  Python ",
        "ok  torch ",
        "ok  model soft ",
        "--  Java ",
        "--  captioner[serve]",
    ):
        assert f"\n{line}" in printed
    assert "default-jre-headless" in printed
    assert "pip install 'captioner[serve]'" in printed


def test_doctor_fails_on_a_damaged_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from captioner import checkpoint

    shutil.copytree(checkpoint.MODELS / "soft", tmp_path / "soft")
    (tmp_path / "soft" / "config.yaml").write_text("changed")
    monkeypatch.setattr(checkpoint, "MODELS", tmp_path)
    assert main(["doctor"]) == 1
    printed = capsys.readouterr().out
    assert "!!  model soft" in printed
    assert "config.yaml" in printed


@pytest.fixture(scope="module")
def completion_scripts() -> dict[str, str]:
    return {shell: script(shell) for shell in SHELLS}


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes(completion_scripts: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "completion"
    file.write_text(completion_scripts["bash"])
    (tmp_path / "photo.jpg").touch()
    expected = {
        "captioner cap": {"caption"},
        "captioner caption --rec": {"--recursive"},
        "captioner train --config ./comp": {"./completion"},
        "captioner train --decoder.k": {"--decoder.kind"},
        "captioner train --decoder.kind tra": {"transformer"},
        "captioner evaluate --format kar": {"karpathy"},
        "captioner caption pho": {"photo.jpg"},
    }
    code = [f"source {file}"]
    for typed in expected:
        code += [
            f"COMP_WORDS=({typed}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); COMPREPLY=()",
            "COMP_TYPE=9; _shtab_captioner captioner",
            'echo "${COMPREPLY[@]}"',
        ]
    answer = subprocess.run(
        ["bash", "-c", "\n".join(code)], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert answer.stderr == ""
    found = [set(line.split()) for line in answer.stdout.splitlines()]
    assert dict(zip(expected, found, strict=True)) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_takes_the_script_before_its_completion_is_set_up(
    completion_scripts: dict[str, str], tmp_path: Path
) -> None:
    file = tmp_path / "completion"
    file.write_text(completion_scripts["zsh"])
    code = f'eval "$(<{file})"; echo ${{_comps[captioner]}}'
    run = subprocess.run(["zsh", "-fc", code], capture_output=True, text=True, cwd=tmp_path)
    assert "_shtab_captioner" in run.stdout, run.stderr
    assert run.stderr == ""


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("torch", "captioner[train]"),
        ("pyarrow.parquet", "captioner[batch]"),
        ("fastapi", "captioner[serve]"),
    ],
)
def test_a_package_of_an_extra_that_is_missing_is_one_sentence(
    module: str, package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def command() -> int:
        raise ModuleNotFoundError(f"No module named '{module}'", name=module)

    assert run_command(command, "batch") == 2
    needed = module.partition(".")[0]
    sentence = f"error: batch needs {needed}, which is not installed: pip install '{package}'\n"
    assert capsys.readouterr().err == sentence


def test_a_missing_package_of_no_extra_is_no_users_mistake() -> None:
    def command() -> int:
        raise ModuleNotFoundError("No module named 'nowhere'", name="nowhere")

    with pytest.raises(ModuleNotFoundError):
        run_command(command, "batch")
