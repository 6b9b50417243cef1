"""`captioner average`: one model from several that began alike."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.cli import run_command, show
from captioner.errors import CheckpointError

if TYPE_CHECKING:
    from captioner.config import ModelConfig

# Settings of training, which leave no trace in a model.
OF_TRAINING = {"weights", "trainable_from", "batch_norm", "dropout", "drop_path", "embed_dropout"}
OF_TRAINING |= {"semi_sampling"}
# Settings that the same weights can have in several ways: the average has the first model's.
OF_READING = {"height_px", "width_px", "select", "at_test"}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="captioner average",
        description="Average the weights of models that were trained on from the same model (model "
        "soups, Wortsman et al., 2022): often better than each, at the cost of one. Models that "
        "began apart do not average; evaluate the result. It looks as the first model does, at "
        "photos of that model's size.",
    )
    parser.add_argument("models", type=Path, nargs="+", help="two or more runs or model folders")
    parser.add_argument("output", type=Path, help="folder to make; it must not exist")
    arguments = parser.parse_args(argv)
    return run_command(lambda: _run(arguments))


def _run(arguments: argparse.Namespace) -> int:
    from captioner.checkpoint import load_model, model_folder, save_model

    if arguments.output.exists():
        raise CheckpointError(f"{arguments.output}: already exists; name another folder")
    if len(arguments.models) < 2:
        raise CheckpointError(f"{arguments.models[0]}: one model is no average; name two or more")
    first = model_folder(arguments.models[0])
    model, config, vocabulary = load_model(first)
    sums = {name: value.double() for name, value in model.state_dict().items()}
    for given in arguments.models[1:]:
        folder = model_folder(given)
        other, its_config, its_vocabulary = load_model(folder)
        difference = _difference(config, its_config)
        if its_vocabulary.tokens != vocabulary.tokens:
            difference = "its vocabulary"
        if difference:
            raise CheckpointError(
                f"{folder}: is not a model like {first} ({difference} differs); average models of "
                "one kind, trained on from the same model"
            )
        theirs = other.state_dict()
        for name, value in theirs.items():
            if value.shape != sums[name].shape:
                raise CheckpointError(
                    f"{folder}: is not a model like {first} ({name} has another size); average "
                    "models of one kind, trained on from the same model"
                )
        for name, value in theirs.items():
            sums[name] += value
    model.load_state_dict({name: value / len(arguments.models) for name, value in sums.items()})
    lines = [f"- `{path}`" for path in arguments.models]
    card = "\n".join(["# A captioner model", "", "The average of the weights of", "", *lines, ""])
    save_model(arguments.output, model, config, vocabulary, card=card)
    show(str(arguments.output))
    return 0


def _difference(one: ModelConfig, other: ModelConfig) -> str:
    """The first setting in which two models are of different kinds, or ""."""
    for section in ("preprocess", "encoder", "attention", "decoder"):
        ours: dict[str, Any] = vars(getattr(one, section))
        theirs: dict[str, Any] = vars(getattr(other, section))
        for name in ours:
            if name not in OF_TRAINING | OF_READING and ours[name] != theirs[name]:
                return f"{section}.{name}"
    return ""
