"""The deletion test: what is removed, and that it finds the cells that a decoder reads."""

from __future__ import annotations

import numpy as np
import pytest
import tiny
import torch
from PIL import Image

from captioner.captioner import Captioner
from captioner.evaluation.faithfulness import (
    ORDERS,
    REPLACEMENTS,
    SHARES,
    AttentionMeasure,
    attention_summary,
    deletion,
    deletion_summary,
    removal_in_grid,
    removal_in_image,
    removed_cells,
)
from captioner.generation import score
from captioner.models.attention.attention import Memory
from captioner.models.decoders.base import Decoder
from captioner.types import AttentionOutput, Grid


def test_cells_go_in_the_order_of_their_attention() -> None:
    attention = np.random.default_rng(0).permutation(100).astype(float)
    removed = removed_cells(attention, np.random.default_rng(1))
    assert removed.shape == (3, len(SHARES), 100)
    assert removed.sum(-1).tolist() == [[round(100 * share) for share in SHARES]] * 3
    for index, share in enumerate(SHARES):
        count = round(100 * share)
        assert set(attention[removed[0, index]]) == set(range(100 - count, 100))
        assert set(attention[removed[2, index]]) == set(range(count))
    chance = attention[removed[1, -1]]
    assert 20 < chance.mean() < 80
    assert (removed[:, 1:] >= removed[:, :-1]).all(), "what is gone stays gone"


def test_equal_attention_is_removed_in_random_order() -> None:
    generator = np.random.default_rng(0)
    first = [int(removed_cells(np.ones(64), generator)[0, 0].argmax()) for _ in range(50)]
    assert len(set(first)) > 15


@pytest.fixture(scope="module")
def captioner(tiny_model: object) -> Captioner:
    return Captioner.from_pretrained(tiny_model, device="cpu")  # type: ignore[arg-type]


def test_falls_are_those_of_reading_each_changed_grid_alone(captioner: Captioner) -> None:
    decoder: Decoder = captioner.model.decoder
    image = Image.effect_noise((96, 64), 80).convert("RGB")
    grid, _ = captioner.encode([image])
    tokens = [5, 7, 4]
    whole = score(decoder, grid, tokens)[0]
    falls = deletion(
        decoder, grid, tokens, whole.maps, np.random.default_rng(3), removal_in_grid(grid)
    )
    assert falls.shape == (len(ORDERS), len(SHARES), 3)
    generator = np.random.default_rng(3)
    for position in range(3):
        removed = removed_cells(whole.maps[position], generator)
        for order in range(len(ORDERS)):
            for share in range(len(SHARES)):
                features = grid.features.clone()
                features[0, removed[order, share]] = grid.features.mean(1)
                after = score(decoder, Grid(features, grid.height, grid.width), tokens)[0]
                expected = whole.log_probs[position] - after.log_probs[position]
                assert falls[order, share, position] == pytest.approx(expected, abs=1e-5)
    assert np.abs(falls).max() > 1e-4


def test_blur_touches_the_removed_cells_alone(captioner: Captioner) -> None:
    decoder: Decoder = captioner.model.decoder
    image = Image.effect_noise((96, 64), 80).convert("RGB")
    grid, geometries = captioner.encode([image])
    seen: list[np.ndarray] = []

    def encode(images: list[Image.Image]) -> Grid:
        seen.extend(np.asarray(each) for each in images)
        return captioner.encode(images)[0]

    tokens = [5, 7]
    maps = score(decoder, grid, tokens)[0].maps
    remove = removal_in_image(grid, image, geometries[0], encode)
    falls = deletion(decoder, grid, tokens, maps, np.random.default_rng(3), remove)
    generator = np.random.default_rng(3)
    removed = [removed_cells(m, generator).reshape(-1, grid.height * grid.width) for m in maps]
    assert len(seen) == sum(map(len, removed))
    for blurred, cells in zip(seen, np.concatenate(removed), strict=True):
        changed = (blurred != np.asarray(image)).any(-1)
        inside = np.zeros_like(changed)
        for row, column in np.argwhere(cells.reshape(grid.height, grid.width)):
            x0, y0, x1, y1 = geometries[0].cell_box_px(row, column, grid.height, grid.width)
            inside[max(0, round(y0)) : round(y1), max(0, round(x0)) : round(x1)] = True
        assert changed[inside].mean() > 0.9
        assert not changed[~inside].any()
    assert np.isfinite(falls).all()
    assert np.abs(falls).max() > 1e-5


def test_attention_that_matters_falls_fastest_and_attention_of_noise_does_not() -> None:
    class Reads(torch.nn.Module):
        """Its words follow from one cell of the grid: the first."""

        def prepare(self, grid: Grid) -> torch.Tensor:
            return grid.features

        def start(self, memory: torch.Tensor, times: int) -> None:
            return None

        def step(self, words, state, memory):  # type: ignore[no-untyped-def]
            logits = torch.zeros(len(memory), 1, 6)
            logits[..., 5] = memory[:, :1, 0]
            nothing = torch.zeros(len(memory), 1)
            weights = torch.full((len(memory), 1, 40), 1 / 40)
            return logits, AttentionOutput(nothing[..., None], weights, nothing, nothing), None

    features = torch.zeros(1, 40, 1)
    features[0, 0] = 8.0
    grid, tokens = Grid(features, 5, 8), [5, 5]
    knows = np.zeros((2, 40))
    knows[:, 0] = 1.0
    decoder: Decoder = Reads()  # type: ignore[assignment]
    remove = removal_in_grid(grid)
    good = deletion_summary(
        [deletion(decoder, grid, tokens, knows, np.random.default_rng(0), remove)]
    )
    bad = deletion_summary(
        [deletion(decoder, grid, tokens, -knows, np.random.default_rng(0), remove)]
    )
    assert good["num_words"] == 2
    # The word's logit falls from 8 to the mean of the grid, among five others of 0.
    fall = (8 - np.log(np.exp(8) + 5)) - (0.2 - np.log(np.exp(0.2) + 5))
    assert good["attention"] == pytest.approx([fall] * len(SHARES), abs=1e-5)
    assert good["random"][0] < fall / 2  # type: ignore[index]
    assert good["attention_beats_random"] == 1
    assert bad["attention"] == [0.0] * len(SHARES)
    assert bad["reverse"] == pytest.approx([fall] * len(SHARES), abs=1e-5)


# --- attention replaced ---------------------------------------------------------------------------

CAPTIONS = [[5, 7, 4, 9], [8, 6]]


def tiny_decoder(select: str) -> tuple[Decoder, Grid]:
    model, _, _ = tiny.model(select=select)
    with torch.no_grad():
        model.decoder.attention.score.query.weight *= 20  # the cell depends on the word
    generator = torch.Generator().manual_seed(1)
    return model.eval().decoder, Grid(torch.randn(1, 6, 16, generator=generator), 2, 3)


@torch.no_grad()
def log_probs_with_context(
    decoder: Decoder, grid: Grid, tokens: list[int], contexts: list[torch.Tensor]
) -> np.ndarray:
    """Step by step, with every cell's vector replaced by the context that a word is to get."""
    memory = decoder.prepare(grid)
    state = decoder.start(memory)
    found = []
    for last, token, context in zip([1, *tokens], tokens, contexts, strict=False):
        same = Grid(context.expand_as(grid.features), grid.height, grid.width)
        logits, _, state = decoder.step(torch.tensor([[last]]), state, Memory(same, memory.keys))
        found.append(torch.log_softmax(logits[0, 0], -1)[token].item())
    return np.array(found)


@pytest.mark.parametrize("select", ["soft", "hard"])
def test_losses_are_those_of_contexts_replaced_by_hand(select: str) -> None:
    decoder, grid = tiny_decoder(select)
    losses = AttentionMeasure(decoder, seed=4)(grid, CAPTIONS)
    own = [score(decoder, grid, tokens)[0] for tokens in CAPTIONS]
    features = grid.features[0]
    for kind in ("frozen", "uniform"):
        expected = []
        for tokens, hypothesis in zip(CAPTIONS, own, strict=True):
            first = torch.from_numpy(hypothesis.maps[0])
            if kind == "uniform":
                context = features.mean(0)
            elif select == "hard":
                context = features[first.argmax()]
            else:
                context = first @ features
            after = log_probs_with_context(decoder, grid, tokens, [context] * len(tokens))
            expected.append(hypothesis.log_probs - after)
        np.testing.assert_allclose(losses[kind], np.concatenate(expected), atol=1e-5)
        assert np.abs(losses[kind]).max() > 1e-3
    assert losses["frozen"][0] == pytest.approx(0, abs=1e-6), "the first word keeps its attention"
    assert losses["frozen"][4] == pytest.approx(0, abs=1e-6)
    changes = [
        float(a.argmax() != b.argmax())
        for h in own
        for a, b in zip(h.maps, h.maps[1:], strict=False)
    ]
    assert losses["cell_changes"].tolist() == changes


@pytest.mark.parametrize("select", ["soft", "hard"])
def test_a_random_cell_is_one_of_the_cells(select: str) -> None:
    decoder, grid = tiny_decoder(select)
    drawn = AttentionMeasure(decoder, seed=4)(grid, [[5]])["random_cell"][0]
    own = score(decoder, grid, [5])[0].log_probs[0]
    possible = [
        own - log_probs_with_context(decoder, grid, [5], [grid.features[0, cell]])[0]
        for cell in range(6)
    ]
    assert min(abs(drawn - loss) for loss in possible) < 1e-5
    assert AttentionMeasure(decoder, seed=4)(grid, [[5]])["random_cell"][0] == drawn


def test_deletion_takes_the_most_attended_fifth_and_a_random_one_as_control() -> None:
    decoder, grid = tiny_decoder("soft")
    losses = AttentionMeasure(decoder)(grid, CAPTIONS)
    expected, possible = [], []
    for tokens in CAPTIONS:
        own = score(decoder, grid, tokens)[0]
        by_cell = []
        for cell in range(6):  # a fifth of six cells is one
            features = grid.features.clone()
            features[0, cell] = grid.features[0].mean(0)
            by_cell.append(
                own.log_probs - score(decoder, Grid(features, 2, 3), tokens)[0].log_probs
            )
        expected.append(by_cell[int(own.maps.sum(0).argmax())])
        possible.append(by_cell)
    np.testing.assert_allclose(losses["deleted_in_grid"], np.concatenate(expected), atol=1e-5)
    np.testing.assert_array_equal(losses["deleted_before_mixing"], losses["deleted_in_grid"])
    control = losses["deleted_in_grid_control"][:4]
    assert min(np.abs(control - one).max() for one in possible[0]) < 1e-5


def test_before_mixing_the_local_cells_are_deleted_and_mixed_again() -> None:
    decoder, grid = tiny_decoder("soft")
    generator = torch.Generator().manual_seed(2)
    local = torch.randn(1, 6, 16, generator=generator)

    def mix(before: Grid) -> torch.Tensor:
        return before.features.roll(1, dims=1) + before.features

    grid = Grid(mix(Grid(local, 2, 3)), 2, 3, local)
    losses = AttentionMeasure(decoder, mix)(grid, [[5, 7]])
    own = score(decoder, grid, [5, 7])[0]
    cell = int(own.maps.sum(0).argmax())
    changed = local.clone()
    changed[0, cell] = local[0].mean(0)
    after = score(decoder, Grid(mix(Grid(changed, 2, 3)), 2, 3, changed), [5, 7])[0]
    expected = own.log_probs - after.log_probs
    np.testing.assert_allclose(losses["deleted_before_mixing"], expected, atol=1e-5)
    assert np.abs(losses["deleted_before_mixing"] - losses["deleted_in_grid"]).max() > 1e-4


def test_the_decoder_is_not_changed_by_measuring_it() -> None:
    decoder, grid = tiny_decoder("hard")
    before = score(decoder, grid, CAPTIONS[0])[0].log_probs
    names = [name for name, _ in decoder.named_modules()]
    AttentionMeasure(decoder)(grid, CAPTIONS)
    assert [name for name, _ in decoder.named_modules()] == names
    np.testing.assert_array_equal(score(decoder, grid, CAPTIONS[0])[0].log_probs, before)


def test_summaries_are_means_over_words_with_intervals_over_images() -> None:
    names = [*REPLACEMENTS, "deleted_in_grid", "deleted_before_mixing", "cell_changes"]
    names += ["deleted_in_grid_control", "deleted_before_mixing_control"]
    images = [
        {name: np.array([0.0]) for name in names},
        {name: np.array([1.0, 1.0, 1.0]) for name in names},
    ]
    found = attention_summary(images)
    assert set(found) == {*REPLACEMENTS, "deleted_in_grid", "deleted_before_mixing", "cell_changes"}
    for name, entry in found.items():
        assert entry["value"] == 0.75
        assert entry["interval"] == (0.0, 1.0)
        assert ("control" in entry) == name.startswith("deleted")
    one_word = [image | {"cell_changes": np.array([])} for image in images]
    assert "cell_changes" not in attention_summary(one_word)
    assert attention_summary([]) == {}
