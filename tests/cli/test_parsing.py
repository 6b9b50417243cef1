"""Options of other programs are answered with the option that was meant."""

from __future__ import annotations

import pytest
from programs import Commands

from captioner.cli import COMMANDS
from captioner.cli.suggestions import _REMOVED

MEANT = [
    ("caption a.jpg --beam_size 5", "--beam-size"),
    ("caption --img a.jpg", "captioner caption PHOTO"),
    ("caption a.jpg --max-new-tokens 9", "--max-words"),
    ("caption a.jpg --gpu 0", "--device"),
    ("train --epochs 3", "--train.epochs"),
    ("train --lr 1e-3", "--optim.lr"),
    ("train --data_folder x", "--data.root"),
    ("train --output x", "--train.output"),
    ("evaluate --data_dir x", "--root"),
    ("export a --beamsize 3", "--beam-size"),
    ("check-data --root my.csv", "give ROOT alone: captioner check-data ROOT"),
    ("export --checkpoint runs/mine", "give CHECKPOINT alone: captioner export CHECKPOINT"),
    ("finetune my.csv --checkpoint soft", "did you mean --from?"),
]


@pytest.mark.parametrize(("typed", "meant"), MEANT, ids=[typed for typed, _ in MEANT])
def test_an_option_of_another_program_names_the_one_that_was_meant(
    commands: Commands, typed: str, meant: str
) -> None:
    command = typed.split()[0]
    message = commands.run("captioner", *typed.split()).sentence()
    assert "there is no option -" in message
    assert meant in message
    assert f"captioner {command} --help" in message


@pytest.mark.parametrize("typed", [typed for typed in _REMOVED if " " in typed])
def test_an_option_of_an_earlier_version_says_that_it_is_gone(
    commands: Commands, typed: str
) -> None:
    command, option = typed.split()
    message = commands.run("captioner", command, option).sentence()
    assert message.startswith(f"{option} is gone: {_REMOVED[typed]} (captioner {command} --help")


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_option_is_refused_by_every_command(commands: Commands, command: str) -> None:
    message = commands.run("captioner", command, "--zzz").sentence()
    assert message == f"there is no option --zzz (captioner {command} --help shows the options)"


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("eval", "there is no command 'eval' (did you mean: captioner evaluate)"),
        ("cpation", "(did you mean: captioner caption)"),
        ("fine_tune", "(did you mean: captioner finetune)"),
        ("https://example.org/a", "(did you mean: captioner caption https://example.org/a)"),
        ("--image", "(did you mean: captioner caption)"),
        ("shards", f"captioner shards is gone: {_REMOVED['shards']} (captioner --help"),
    ],
)
def test_a_command_that_does_not_exist_names_the_nearest_or_what_to_do_instead(
    commands: Commands, typed: str, answer: str
) -> None:
    outcome = commands.run("captioner", typed)
    assert outcome.code == 2
    assert answer in outcome.stderr
