"""Every family of attention trained on Flickr8k with one budget: the table of docs/attention.md.

    python -m benchmarks.families --root data/flickr8k --epochs 3 --output runs/families

The encoder is frozen and its features are cached, so that a family takes minutes on a CPU; data,
epochs, seed, optimiser and search are the same for all. A family that has its results.json is not
trained again; an interrupted one goes on. Times are taken at the end, of all families in turns in
one run, because machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch

from benchmarks.timing import Table, in_turns
from captioner.config.recipes import read_recipe
from captioner.config.settings import Config
from captioner.data.batch import Batch
from captioner.data.layouts import CaptionedData, DataFiles
from captioner.evaluation.metrics import score_captions
from captioner.models.build import build_model
from captioner.models.model import CaptionModel
from captioner.runtime.device import choose_device
from captioner.training import train
from captioner.training.cross_entropy import CrossEntropyTask
from captioner.training.optimizer import build_optimizer
from captioner.training.reinforce import Reinforce
from captioner.training.setup import prepare
from captioner.training.step import training_step
from captioner.training.validation import validate

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
BASE = "soft"  # the recipe that the families differ from


def family_config(name: str, arguments: argparse.Namespace) -> Config:
    """The base recipe with the family's overlay and the benchmark's budget."""
    config = read_recipe("flickr8k_soft", *([] if name == BASE else [f"families/{name}"]))
    return replace(
        config,
        data=replace(
            config.data,
            root=arguments.root,
            val_split="dev",
            cache=arguments.cache,
            cache_views=1,
            batch_size=160,
        ),
        encoder=replace(config.encoder, trainable_from=None),
        optim=replace(config.optim, warmup_steps=60, ema_decay=0.99),
        train=replace(
            config.train,
            output=str(Path(arguments.output) / name),
            epochs=arguments.epochs,
            device=arguments.device,
            val_photos=200,
            patience=0,
            samples=0,
            log_every=10,
        ),
    )


def measure(name: str, arguments: argparse.Namespace) -> dict[str, float | str | None]:
    """Train a family and score its last model on the whole validation split, beam 5."""
    config = family_config(name, arguments)
    run = Path(config.train.output)
    train(config, resume=(run / "last").exists())
    device = choose_device(arguments.device)
    whole = replace(config, train=replace(config.train, val_photos=None))
    setup = prepare(whole, device, run / "last")
    model = setup.task.model
    validation = validate(
        model,
        setup.vocabulary,
        setup.validation,
        device=device,
        decoding=replace(config.decoding, beam_size=5),
    )
    split = CaptionedData(DataFiles("flickr8k", config.data.root)).split("dev")
    references = {photo.image_id: photo.captions for photo in split.images}
    scores = score_captions(validation.captions, references)
    return {
        "family": name,
        **scores["metrics"],
        "attention_entropy": validation.figures["attention_entropy"],
        "attention_change": validation.figures.get("attention_change"),
        "parameters": sum(p.numel() for p in model.decoder.parameters())
        + sum(p.numel() for p in model.encoder.parameters() if p.requires_grad),
    }


PHOTOS, CAPTIONS, WORDS, VOCABULARY, BEAM = 32, 160, 12, 2500, 5  # as the training above has them


def measure_speed(
    names: Sequence[str], arguments: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Median seconds of a training step and milliseconds of a word in a search, a family.

    Random photos and captions of the sizes that training has; the families take turns.
    """
    device = choose_device(arguments.device)
    calls: dict[str, Callable[[], None]] = {}
    for name in names:
        config = family_config(name, arguments)
        model = build_model(config, VOCABULARY, pretrained=False).to(device)
        calls[f"step of {name}"] = _training_step(model, config, device)
        calls[f"word of {name}"] = _word(model, device)
    found = in_turns(calls, device=device, rounds=7)
    return {
        name: {
            "seconds_a_step": found[f"step of {name}"].median_s,
            "milliseconds_a_word": 1000 * found[f"word of {name}"].median_s / PHOTOS,
        }
        for name in names
    }


def _training_step(model: CaptionModel, config: Config, device: torch.device) -> Callable[[], None]:
    generator = torch.Generator().manual_seed(0)
    targets = torch.randint(4, VOCABULARY, (CAPTIONS, WORDS), generator=generator).to(device)
    batch = Batch(
        inputs=_frozen(model, device),
        image_numbers=torch.arange(PHOTOS, device=device),
        image_index=torch.arange(CAPTIONS, device=device) % PHOTOS,
        targets=targets,
        lengths=torch.full((CAPTIONS,), WORDS),
        words=CAPTIONS * WORDS,
        captions=CAPTIONS,
        from_frozen=True,
    )
    reinforce = Reinforce(config.hard) if config.attention.select == "hard" else None
    task = CrossEntropyTask(model, config.loss, reinforce=reinforce)
    optimizer = build_optimizer(task.to(device), config.optim)

    def step() -> None:
        training_step(
            task.train(),
            [batch],
            optimizer,
            learning_rate_factor=1.0,
            clip_norm=config.optim.clip_norm,
            autocast=nullcontext(),
            device=device,
        )

    return step


def _word(model: CaptionModel, device: torch.device) -> Callable[[], None]:
    """One word of a beam search for all photos."""
    grid_inputs = _frozen(model, device)
    words = torch.full((PHOTOS, BEAM), 5, device=device)

    @torch.inference_mode()
    def look() -> None:
        model.decoder.step(words, state, memory)

    with torch.inference_mode():
        model.eval()
        memory = model.decoder.prepare(model.encoder(grid_inputs, from_frozen=True))
        state = model.decoder.start(memory, BEAM)
    return look


def _frozen(model: CaptionModel, device: torch.device) -> torch.Tensor:
    photos = torch.randn(PHOTOS, 3, 256, 256, generator=torch.Generator().manual_seed(0))
    return model.encoder.eval().frozen_features(photos.to(device))


def main() -> int:
    known = [BASE, *sorted(file.stem for file in (CONFIGS / "families").glob("*.yaml"))]
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--root", required=True, help="Flickr8k's folder")
    parser.add_argument("--output", default="runs/families", help="a run folder for each family")
    parser.add_argument("--cache", default="cache/families", help="folder for the features")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--device", default="auto")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help=f"of {', '.join(known)}")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.families or known:
        if name not in known:
            parser.error(f"there is no family {name}; the families are {', '.join(known)}")
        results = Path(arguments.output) / name / "results.json"
        if not results.exists():
            print(f"--- {name}", file=sys.stderr)
            results.parent.mkdir(parents=True, exist_ok=True)
            results.write_text(json.dumps(measure(name, arguments), indent=1), encoding="utf-8")
        rows.append(json.loads(results.read_text(encoding="utf-8")))
    speed = measure_speed([row["family"] for row in rows], arguments)
    rows = [row | speed[row["family"]] for row in rows]
    for row in rows:
        for name, value in row.items():
            if value is None:
                row[name] = "not computed"
            elif isinstance(value, float):
                row[name] = f"{value:.3f}"
    title = f"Families, torch {torch.__version__}, {torch.get_num_threads()} threads"
    print(Table(title, rows).text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
