"""Every recipe on a pretended GPU: no tensor of the CPU meets one of the GPU, and few waits for it.

A training step waits once, for whether the gradient is finite; a search every few words.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from pretend_gpu import CUDA, Pretended, PretendedGPU, move

from captioner.config import DecodingConfig
from captioner.config.recipes import read_recipe
from captioner.config.settings import Config
from captioner.generation import SearchOptions, sample
from captioner.generation.beam_search import CHECK_EVERY
from captioner.runtime.cuda_graphs import graphs_of_search
from captioner.runtime.device import autocast
from captioner.training.optimizer import build_optimizer
from captioner.training.setup import Setup, prepare
from captioner.training.validation import validate
from captioner.types import Grid

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RECIPES = sorted(path.relative_to(CONFIGS).as_posix() for path in CONFIGS.rglob("*.yaml"))
QUICK = ("table.yaml", "families/hard.yaml", "families/transformer.yaml")
STEP = {"training/step.py:training_step"}
SELF_CRITICAL = {
    "generation/sampling.py:sample",
    "training/self_critical.py:_rewards",
    "training/self_critical.py:forward",
}
SEARCH = {
    "generation/beam_search.py:read_running",
    "generation/beam_search.py:hypotheses",  # at its end, as in the next
    "generation/arrays.py:to_numpy",
}
WORDS = 5


def quick(names: list[str]) -> list[object]:
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.draw_table(tmp_path_factory.mktemp("table"), train=4, val=2, test=0)


def small(recipe: str, table: Path) -> Config:
    """The recipe on drawn photos: smaller ones, and without weights that are not at hand."""
    config = read_recipe(CONFIGS / recipe)
    data = replace(
        config.data, format="table", root=str(table), sources=None, file=None, coco_splits=None,
        train_split="train", val_split="val", min_count=1, cache=None, cache_min_area=1.0, val_share=0.0,
    )  # fmt: skip
    return replace(
        config,
        data=data,
        preprocess=replace(config.preprocess, height_px=96, width_px=96),
        encoder=replace(config.encoder, weights="none"),
        loss=replace(config.loss, teachers=(), distillation=0.0, attention_distillation=0.0),
        train=replace(config.train, start_from=None, device="cpu"),
    )


def step(setup: Setup, device: torch.device, context: Any = nullcontext()) -> torch.Tensor:  # noqa: B008
    """Take an optimizer step by the first captions, and return its loss."""
    torch.manual_seed(1)
    batch, optimizer = setup.dataset[(0, range(4))], build_optimizer(setup.task, setup.config.optim)
    output = tiny.step(setup.task.train(), batch, optimizer, device=device, autocast=context)
    return output.output.loss.detach()


@pytest.mark.parametrize("recipe", quick(RECIPES))
def test_a_recipe_runs_where_its_tensors_are_on_a_gpu(recipe: str, table: Path) -> None:
    setup = prepare(small(recipe, table), torch.device("cpu"))
    with PretendedGPU() as gpu:
        move(setup.task)
        assert isinstance(step(setup, CUDA), Pretended)
        samples = setup.config.self_critical.samples
        assert gpu.waits.keys() == STEP | (SELF_CRITICAL if samples else set()), gpu.waits
        assert gpu.waits["training/step.py:training_step"] == 1
        for beam_size in (1, 3):
            gpu.waits.clear()
            found = validate(
                setup.task.model,
                setup.vocabulary,
                setup.validation,
                device=CUDA,
                decoding=DecodingConfig(beam_size, WORDS, length_penalty=0.5, no_repeat_ngram=2),
                graphs=graphs_of_search(CUDA),
            )
            assert len(found.captions) == 2
            assert gpu.waits.keys() <= SEARCH, gpu.waits
            assert gpu.waits["generation/beam_search.py:read_running"] <= -(-WORDS // CHECK_EVERY)


@pytest.mark.slow  # a processor without bfloat16 takes long
@pytest.mark.parametrize("recipe", ["table.yaml", "families/hard.yaml"])
def test_a_step_in_bfloat16_has_nearly_the_same_loss(recipe: str, table: Path) -> None:
    """On the CPU, where the types meet as on a GPU."""
    cpu = torch.device("cpu")
    losses = []
    for precision in ("float32", "bfloat16"):
        setup = prepare(small(recipe, table), cpu)
        losses.append(float(step(setup, cpu, autocast(cpu, precision))))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_samples_are_the_cpu_s_and_wait_every_few_words_only() -> None:
    decoder = tiny.model()[0].eval().decoder
    features = torch.randn(3, 6, 16, generator=torch.Generator().manual_seed(0))
    options = SearchOptions(num_captions=2, max_words=12)
    likeliest: Any = lambda shares, _: shares.argmax(-1)  # noqa: E731
    expected = sample(decoder, Grid(features, 2, 3), options, draw=likeliest)
    with PretendedGPU() as gpu:
        move(decoder)
        found = sample(decoder, Grid(features.to(CUDA), 2, 3), options, draw=likeliest)
    assert 0 < gpu.waits.total() <= 12 // CHECK_EVERY + 1  # and at its end
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.as_subclass(torch.Tensor), theirs)
    assert expected[0].shape[-1] % CHECK_EVERY, "captions end between two checks"


@pytest.mark.parametrize(("count", "wanted"), [(1, 1), (3, 4), (4, 4), (33, 64), (65, 128)])
def test_the_encoder_sees_few_different_numbers_of_images(count: int, wanted: int) -> None:
    model = tiny.model()[0].eval()
    images = torch.randn(count, 3, 64, 96)
    expected = model.encoder(images).features
    seen = []
    model.encoder.backbone.stages[0].register_forward_pre_hook(
        lambda _, inputs: seen.append(len(inputs[0]))
    )
    with PretendedGPU():
        move(model)
        features = model.encoder(images.to(CUDA)).features
    assert seen == [wanted]
    torch.testing.assert_close(features.as_subclass(torch.Tensor), expected)
