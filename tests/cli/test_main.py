"""`captioner COMMAND`: one program for all commands."""

from __future__ import annotations

import subprocess
import sys

import pytest
from programs import REPOSITORY, Programs

from captioner import __version__
from captioner.__main__ import COMMANDS, main


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_the_version_is_told(programs: Programs, option: str) -> None:
    outcome = programs.run("captioner", option)
    assert (outcome.code, outcome.stdout, outcome.stderr) == (0, f"captioner {__version__}\n", "")


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_command(programs: Programs, option: str) -> None:
    outcome = programs.run("captioner", option)
    assert outcome.code == 0
    assert all(f"  {name}" in outcome.stdout for name in COMMANDS)
    assert outcome.stderr == ""


@pytest.mark.parametrize("arguments", [[], ["paint"], ["paint", "--help"], [""], ["--", "caption"]])
def test_no_command_or_a_wrong_one_is_exit_code_2_with_the_commands_there_are(
    programs: Programs, arguments: list[str]
) -> None:
    outcome = programs.run("captioner", *arguments)
    assert outcome.code == 2
    assert outcome.stdout == ""
    assert "usage: captioner COMMAND" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    if arguments:
        assert f"there is no command '{arguments[0]}'" in outcome.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(programs: Programs, command: str) -> None:
    outcome = programs.run("captioner", command, "--help")
    assert outcome.code == 0, outcome.stderr
    assert f"usage: captioner {command}" in outcome.stdout


def test_arguments_may_be_given_from_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert __version__ in capsys.readouterr().out


def test_version_and_help_do_not_wait_for_torch() -> None:
    code = (
        "import sys; from captioner.__main__ import main; main(['--version']); main(['--help']);"
        "main([]); print('torch' in sys.modules)"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == "False"


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


def test_the_scripts_are_the_commands(programs: Programs) -> None:
    for script, command in (("train.py", "train"), ("caption.py", "caption")):
        one, other = programs.run(script, "--help"), programs.run("captioner", command, "--help")
        assert (one.code, one.stdout) == (other.code, other.stdout)
