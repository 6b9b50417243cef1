"""A GPU does what the CPU does. Run with -m gpu where there is one."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import tiny
import torch

from captioner import Captioner
from captioner.checkpoint import load_model
from captioner.generation import SearchOptions, sample, search
from captioner.models.build import build_model
from captioner.runtime.cuda_graphs import GraphCache, graphs_of_search
from captioner.training import train
from captioner.training.setup import prepare
from captioner.training.trainer import Trainer

pytestmark = pytest.mark.gpu
CPU, GPU = torch.device("cpu"), torch.device("cuda")

KINDS = [
    {},
    {"attention__select": "hard"},
    {"attention__select": "hard", "hard__baseline": "moving_average"},
    {"decoder__kind": "luong"},
    {"decoder__kind": "top_down"},
    {"decoder__kind": "transformer"},
    {"encoder__trainable_from": "layer4", "encoder__self_attention_layers": 1},
]


@pytest.mark.parametrize("changed", KINDS, ids=str)
def test_a_step_has_the_cpu_s_loss_and_gradients(
    drawn_photos: Path, tmp_path: Path, changed: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    # TF32, the default of convolutions, keeps ten bits: a few gradients would leave the tolerance.
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    if changed.get("attention__select") == "hard":
        changed = changed | {"attention__semi_sampling": 1.0}  # no draws
    config = tiny.recipe(drawn_photos, tmp_path / "run", **(tiny.NO_DROPOUT | changed))
    found = []
    for device in (CPU, GPU):
        torch.manual_seed(0)
        setup = prepare(config, device)
        loss = setup.task(setup.dataset[(0, range(4))].to(device)).loss
        loss.backward()
        gradients = {
            name: parameter.grad.cpu()
            for name, parameter in setup.task.named_parameters()
            if parameter.grad is not None
        }
        found.append((float(loss.detach()), gradients))
    (ours, gradients), (theirs, others) = found
    assert theirs == pytest.approx(ours, rel=1e-3)
    assert gradients.keys() == others.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(others[name], gradient, rtol=2e-2, atol=2e-3, msg=name)


@pytest.mark.parametrize("kind", ["graphs", "inductor"])
@pytest.mark.parametrize("changed", KINDS, ids=str)
def test_steps_of_graphs_are_those_of_kernels_started_one_by_one(
    drawn_photos: Path,
    tmp_path: Path,
    kind: str,
    changed: dict[str, object],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Four steps: the first of a shape is computed, the second recorded, the others replayed."""
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    found = []
    for compiled in ("off", kind):
        changes = {**tiny.NO_DROPOUT, **changed, "train__compile": compiled}
        changes |= {"train__precision": "float32", "train__device": GPU.type, "train__epochs": 2}
        train(tiny.recipe(drawn_photos, tmp_path / compiled, optim__accumulate=1, **changes))
        found.append(losses_of(tmp_path / compiled))
    messages = capsys.readouterr().err
    assert not [m for m in ("one by one", "without inductor") if m in messages], "nothing fell back"
    assert found[1] == pytest.approx(found[0], rel=1e-2)


def test_a_graph_skips_a_step_whose_gradient_is_not_finite(
    drawn_photos: Path, tmp_path: Path
) -> None:
    config = tiny.recipe(drawn_photos, tmp_path / "run", train__device=GPU.type)
    trainer = Trainer(prepare(config, GPU), tmp_path / "run", GPU)
    trainer.task.train()
    batch = trainer.setup.dataset[(0, range(4))]
    infinite = replace(batch, weights=torch.full((len(batch),), torch.inf))
    finite = replace(batch, weights=torch.ones(len(batch)))
    weights = []
    for each in (finite, finite, finite, infinite, finite):
        assert bool(trainer.take_step([each], learning_rate_factor=1.0).updated) == (each is finite)
        weights.append(trainer.model.decoder.vocabulary.bias.detach().clone())
    assert torch.equal(weights[3], weights[2])
    assert not torch.equal(weights[4], weights[3])


@pytest.mark.parametrize("precision", ["float32", "auto"])
@pytest.mark.parametrize("changed", [{}, {"self_critical__samples": 3}], ids=str)
def test_a_run_is_resumed_and_read_on_the_cpu(
    drawn_photos: Path, tmp_path: Path, precision: str, changed: dict[str, object]
) -> None:
    def run(name: str, epochs: int, *, resume: bool = False) -> Path:
        changes = {"train__precision": precision, "train__device": GPU.type, **changed}
        config = tiny.recipe(drawn_photos, tmp_path / name, train__epochs=epochs, **changes)
        return train(config, resume=resume)

    whole = run("whole", 2)
    run("parts", 1)
    parts = run("parts", 2, resume=True)
    first, second = (load_model(folder)[0].state_dict() for folder in (whole, parts))
    for name, value in first.items():  # a GPU adds up in any order
        torch.testing.assert_close(second[name], value, rtol=5e-2, atol=5e-2, msg=name)
    if not changed:  # else a sum that is rounded otherwise may draw another word
        # Six small steps move weights less than that tolerance; what they lose would be off by
        # 0.0025 and more (seen on a CPU) if the averaged weights were gone on with.
        losses = [losses_of(folder.parent) for folder in (whole, parts)]
        assert losses[1] == pytest.approx(losses[0], rel=1e-3 if precision == "float32" else 1e-2)
    Captioner.from_pretrained(parts, device="cpu", engine="torch").caption(drawn_photos / "00.jpg")


def losses_of(run: Path) -> list[float]:
    return [entry["total"] for entry in tiny.log_entries(run, "train")]


@pytest.mark.parametrize("changed", KINDS, ids=str)
def test_a_search_in_graphs_finds_what_one_word_after_the_other_does(
    changed: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    """The first search of a shape is computed, the second recorded, the others replayed."""
    recipe = tiny.recipe(Path(), Path(), **changed)
    torch.manual_seed(3)
    model = build_model(recipe, 40, pretrained=False).eval().to(GPU)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.mul_(3.0)
        size = (recipe.preprocess.height_px, recipe.preprocess.width_px)
        grids = [model.encoder(torch.randn(6, 3, *size, device=GPU)) for _ in range(5)]
    graphs = graphs_of_search(GPU)
    for options in (
        SearchOptions(),
        SearchOptions(beam_size=1, no_repeat_ngram=2, repeatable=(5,)),
    ):
        for number, grid in enumerate(grids):
            grid = grid.select(slice(5 + number % 2))
            found = search(model.decoder, grid, options, graphs)
            expected = search(model.decoder, grid, options, GraphCache(record=False))
            for ours, theirs in zip(found, expected, strict=True):
                assert [h.tokens for h in ours] == [h.tokens for h in theirs]
                assert ours[0].score == pytest.approx(theirs[0].score, rel=1e-4)
    assert graphs.graphs
    assert "one by one" not in capsys.readouterr().err, "nothing fell back"


def test_a_search_waits_for_the_gpu_every_few_words_only() -> None:
    recipe = tiny.recipe(Path(), Path())
    model = build_model(recipe, 40, pretrained=False).eval().to(GPU)
    size = (recipe.preprocess.height_px, recipe.preprocess.width_px)
    options, graphs = SearchOptions(max_words=8), graphs_of_search(GPU)
    with torch.inference_mode():
        grid = model.encoder(torch.randn(4, 3, *size, device=GPU))
    search(model.decoder, grid, options, graphs)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            search(model.decoder, grid, options, GraphCache(record=False))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    places = [warning.filename for warning in found if "synchroniz" in str(warning.message)]
    # two checks, nine arrays at the end, the beams of the captions, and the words that may come twice
    assert len(places) <= 13


@pytest.mark.parametrize("model", ["soft", "hard"])
def test_captions_are_the_cpu_s(drawn_photos: Path, model: str) -> None:
    photos = sorted(drawn_photos.glob("*.jpg"))[:6]
    ours = Captioner.from_pretrained(model, device="cpu", engine="torch").caption_batch(photos)
    theirs = Captioner.from_pretrained(model, device=GPU.type).caption_batch(photos)
    same = sum(a.text == b.text for a, b in zip(ours, theirs, strict=True))
    assert same >= 5, "convolutions in TF32 may turn one over"


def test_search_and_samples_stay_on_the_device(drawn_photos: Path) -> None:
    captioner = Captioner.from_pretrained("soft", device=GPU.type)
    grid, _ = captioner.encode(sorted(drawn_photos.glob("*.jpg"))[:3])
    assert grid.features.device.type == GPU.type
    found = search(captioner.model.decoder, grid, SearchOptions(beam_size=3, no_repeat_ngram=2))
    assert len(found) == 3
    torch.manual_seed(1)
    options = SearchOptions(num_captions=4, max_words=9)
    tokens, lengths = sample(captioner.model.decoder, grid, options)
    assert tokens.device.type == lengths.device.type == GPU.type
    assert tokens.shape[:2] == (3, 4)
    assert ((tokens != 0).sum(-1) == lengths).all()
