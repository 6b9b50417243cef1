"""Commands that train: from a recipe, from a model with photos of your own; and a run's curves."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn, get_type_hints

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

from captioner.cli import command, parsing, run_command, show
from captioner.cli.suggestions import unknown_option
from captioner.config.fields import REMOVED, in_words, settings_from, warn_of_removed
from captioner.config.recipes import read_recipe, shipped_recipes
from captioner.config.settings import Config
from captioner.config.validation import with_source_roots
from captioner.errors import CaptionerError, CheckpointError, ConfigError, error_summary
from captioner.log import logger

CURVES = ("png", "pdf", "svg")  # kinds of pictures
START, FINETUNE = "soft", "finetune"  # the model and the recipe with which finetune begins
FINETUNE_EXAMPLE = "captioner finetune photos.csv --from soft --output my-model"
EXAMPLE = "example: captioner train --config flickr8k_soft --data.root data/flickr8k"
_MOST_USED = """\
  --config RECIPE               captioner train alone lists the recipes
  --data.root DIR               the photos and captions
  --data.format NAME            layout of the data set
  --train.output DIR            folder of the run
  --resume                      go on with the run in its folder
  --train.epochs N              passes over the photos
  --train.device NAME           auto, cpu, cuda or cuda:N
  --data.batch_size N           smaller if memory runs out
  --optim.lr X                  learning rate
  --encoder.trainable_from NAME fine-tune the encoder from this stage; null freezes it\
"""


def train(words: Sequence[str]) -> int:
    """Train a captioning model from a recipe.

    Every setting of a recipe is also an option, and options win over recipes.
    """
    return run_command(lambda: _train(*train_settings(words)), "train")


def finetune(words: Sequence[str]) -> int:
    """Fine-tune a model with your own captioned photos.

    Give a table with the columns image, caption and, if you have them, split (train, val), or any
    other layout that docs/data.md lists. The model keeps its architecture and its words, and gets
    the words of your captions in addition. Without splits, some photos are held out for validation.
    Every setting of a recipe is also an option.
    """
    return run_command(lambda: _train(*finetune_settings(words), validate_start=True), "finetune")


def _train(config: Config, resume: bool, *, validate_start: bool = False) -> int:
    from captioner.checkpoint import DESCRIPTION
    from captioner.export import export_graphs
    from captioner.training import run

    reports = os.environ.get("RANK", "0") == "0"  # of several processes, the first alone
    try:
        best = run.train(config, resume=resume, validate_start=validate_start)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second one ends without a word
        folder = Path(config.train.output)
        message = f"interrupted before {folder} had a checkpoint; start the same command again"
        if run.holds_a_run(folder):
            message = f"interrupted; go on with the same command and --resume ({folder})"
        if reports:
            print(message, file=sys.stderr)
        return 130  # what a shell reports for a process ended by Ctrl-C
    # An exception during the export can abort the process.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if not reports:
        return 0
    if not (best / DESCRIPTION).exists():  # there are graphs of a run that had ended before
        logger.info(f"writing graphs to {best}, with which it captions without PyTorch")
        try:
            export_graphs(best)
        except CaptionerError as error:
            logger.warning(f"{error}; the model is complete, but needs PyTorch")
    show(best)
    return 0


def train_settings(words: Sequence[str]) -> tuple[Config, bool]:
    """Return the recipe's settings, changed by the options, and whether to resume a run."""
    (recipes, roots), options = split_options(words, "--config", "--data.root")
    if not (recipes or roots or options):
        lines = ["recipes:"]
        for name, path in shipped_recipes().items():  # each with the start of its comment
            comment = path.read_text(encoding="utf-8").partition("\n\n")[0]
            text = " ".join(re.findall(r"^# ?(.*)", comment, re.MULTILINE))
            lines.append(f"  {name:22} {textwrap.shorten(text, 74, placeholder=' ...')}".rstrip())
        print("\n".join([*lines, "", EXAMPLE, ""]), file=sys.stderr)
        raise ConfigError("name a recipe with --config (captioner train --help shows the options)")
    parser = recipe_parser(
        "--config RECIPE --data.root DIR",
        recipe="YAML file, or the name of a recipe that comes with captioner, such as "
        "flickr8k_soft; of several, later ones win",
        prog="captioner train",
        description=train.__doc__,
    )
    parser.usage = f"{parser.usage}\n\n{EXAMPLE}\n\nthe options most used:\n{_MOST_USED}"
    config, arguments = parse_options(parser, read_recipe(*recipes), options)
    if roots:
        # With a single data set, the last of several roots counts, as for other options.
        named = roots if config.data.sources is not None else roots[-1:]
        config = replace(config, data=with_source_roots(config.data, ",".join(named)))
    return config, arguments.resume


def finetune_settings(words: Sequence[str]) -> tuple[Config, bool]:
    """Return the settings of a run, and whether to resume it.

    The recipe is laid over the settings of the model to start from; options win over both.
    """
    from captioner.checkpoint import load_config, model_folder, verify

    (recipes, starts), options = split_options(words, "--config", "--from")
    parser = recipe_parser(
        "DATA --output DIR [--from MODEL]",
        recipe="recipe, as of captioner train",
        default=FINETUNE,
        prog="captioner finetune",
        description=finetune.__doc__,
        epilog=f"example: {FINETUNE_EXAMPLE}",
    )
    add = parser.add_argument
    add("table", metavar="DATA", nargs="?", help="folder of the data set, or its captions file")
    add("--from", metavar="MODEL", default=START, help="bundled model, model folder or run")
    add("--output", type=parsing.folder_name, metavar="DIR", help="run folder to make")
    for action in parser._actions:  # these are given as DATA, --output and --from
        if action.dest in ("data.root", "data.sources", "train.output", "train.start_from"):
            action.help = argparse.SUPPRESS
    start = (starts or [START])[-1]
    folder = model_folder(start)
    verify(folder)
    recipe = read_recipe(*(recipes or [FINETUNE]), base=load_config(folder))
    config, arguments = parse_options(parser, recipe, options)
    if not (arguments.table and arguments.output):
        raise ConfigError("give the captioned photos and a folder to make: " + FINETUNE_EXAMPLE)
    cache = config.data.cache
    if cache and cache == recipe.data.cache:  # it may hold that of another table
        cache = str(Path(arguments.output) / "cache")
    config = replace(
        config,
        data=replace(config.data, root=arguments.table, sources=None, cache=cache),
        train=replace(config.train, start_from=start, output=arguments.output),
    )
    return config, arguments.resume


def _accepted(key: str) -> str:
    """Return in words what a setting accepts; nothing for an option that is no setting."""
    section, _, name = key.partition(".")
    hints = get_type_hints(type(getattr(Config(), section, None)), include_extras=True)
    return in_words(hints[name]) if name in hints else ""


class _HelpFormatter(DefaultHelpFormatter):
    """Shows what a setting accepts in words, where jsonargparse shows its Python type."""

    def _get_type_str(self, action: argparse.Action) -> str | None:
        return _accepted(action.dest) or None


class _Parser(ArgumentParser):
    """Raises a ConfigError of one sentence, where argparse ends the program."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if not self.exit_on_error:
            super().error(message, ex)
        # About a value, jsonargparse says which Python types failed; we say what is accepted.
        key = re.search(r'key "(\w+\.\w+)"', message)
        if key and (accepted := _accepted(key[1])):
            raise ConfigError(f"{key[1]}: use {accepted}") from None
        if message.startswith("unrecognized arguments") and self.prog == "captioner train":
            message += "; name a recipe by --config, the data by --data.root"
        raise ConfigError(error_summary(message)) from None


def recipe_parser(
    usage: str, *, recipe: str, default: str | None = None, **texts: Any
) -> ArgumentParser:
    """Return a parser with an option for each setting, `--resume`, and `--config` (the recipe)."""
    usage = f"%(prog)s {usage} [--resume] [--SECTION.KEY VALUE ...]"
    # Some options are read before the parser, which would accept an abbreviation and drop it.
    parser = _Parser(allow_abbrev=False, formatter_class=_HelpFormatter, usage=usage, **texts)
    parser.add_class_arguments(Config, None)
    for action in parser._actions:  # such as --encoder FILE, which is not for users
        if action.dest in vars(Config()):
            action.help = argparse.SUPPRESS
    parser.add_argument("--config", metavar="RECIPE", default=default, help=recipe)
    parser.add_argument("--resume", action="store_true", help="Go on with the run in its folder.")
    parsing.add_log_options(parser)
    return parser


def parse_options(
    parser: ArgumentParser, recipe: Config, options: list[str]
) -> tuple[Config, Namespace]:
    """Return the settings of a recipe, changed by its parser's options, and all that was parsed.

    From here on, the log says as much as they choose.
    """
    sections: dict[str, Any] = {name: vars(settings) for name, settings in vars(recipe).items()}
    for name, values in sections.items():
        parser.set_defaults({f"{name}.{key}": value for key, value in values.items()})
    try:
        if sentence := unknown_option(parser, options):
            raise ConfigError(sentence)
        arguments = parser.parse_args(options)
        parsed = arguments.as_dict()
        config = settings_from(Config, {name: parsed[name] for name in sections})
    except ConfigError as error:
        raise ConfigError(f"{error} ({parser.prog} --help shows the options)") from None
    parsing.set_log_level(arguments)
    return config, arguments


def split_options(words: Sequence[str], *names: str) -> tuple[list[list[str]], list[str]]:
    """Return the values of each of these options, and all other words.

    They are read before the other options, which override a recipe and its model wherever it is
    named, and because each of several data sets has a root.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in (*names, *(f"--{key}" for key in REMOVED)):
        parser.add_argument(name, dest=name, action="append", default=[])
    try:
        found, others = parser.parse_known_args(parsing.with_home(words))
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from None
    for key in REMOVED:  # options of earlier versions
        if getattr(found, f"--{key}"):
            warn_of_removed(key)
    return [getattr(found, name) for name in names], others


@command
def plot(parser: parsing.CommandParser) -> int:
    """Draw a run's curves: losses, rates, metrics, entropy of attention."""
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run folder")
    add("--output", type=parsing.folder, metavar="DIR", help="where to draw (default: RUN/plots)")
    kinds = parsing.names_of((*CURVES, "all"))
    help_ = "kinds to save, separated by commas: png, pdf, svg, or all (default: png)"
    add("--save", type=kinds, default=("png",), metavar="KINDS", help=help_)
    arguments = parser.parse()

    from captioner.visualization.figures import save_curves

    metrics, entries = arguments.run / "metrics.jsonl", []
    with contextlib.suppress(OSError):
        for line in metrics.read_bytes().splitlines():
            with contextlib.suppress(ValueError):  # the last one, while it is written
                entries.append(json.loads(line))
    if not entries:
        raise CheckpointError(
            f"{metrics}: is missing or empty; name a run, the folder that train.output named"
        )
    output = arguments.output or arguments.run / "plots"
    curves = [output / f"curves.{kind}" for kind in CURVES if {kind, "all"} & {*arguments.save}]
    save_curves(entries, curves, title=arguments.run.resolve().name)
    for path in curves:
        show(path)
    return 0
