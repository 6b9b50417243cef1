"""Learning what other models would write."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import plain
import pytest
import tiny
import torch

from captioner.checkpoint import load_model
from captioner.checkpoint_writer import save_model
from captioner.config.settings import Config
from captioner.errors import ConfigError
from captioner.training import train
from captioner.training.distillation import Teachers, TeacherTargets
from captioner.training.setup import prepare

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def teachers(table: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two trained models of the recipe that learns from them."""
    runs = tmp_path_factory.mktemp("runs")
    return tuple(
        str(train(tiny.recipe(table, runs / str(seed), train__epochs=1, train__seed=seed)))
        for seed in (1, 2)
    )


def recipe(table: Path, run: Path, teachers: tuple[str, ...], **changed: object) -> Config:
    return tiny.recipe(table, run, loss__teachers=teachers, train__seed=3, **changed)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_teachers_give_the_mean_of_their_words_and_of_attention_as_sharp_as_the_students(
    table, tmp_path, teachers, temperature: float
) -> None:
    batch = prepare(recipe(table, tmp_path, teachers), CPU).dataset[(0, range(6))].to(CPU)
    models = [load_model(Path(name))[0].eval() for name in teachers]
    taught = Teachers(models, attention=True, temperature=temperature)(batch)
    with torch.no_grad():
        read = [model(model.encoder(batch.inputs), batch) for model in models]
    for word, probs in enumerate(taught.probs.tolist()):
        both = [plain.softmax(of_model.logits[word].tolist()) for of_model in read]
        mean = [sum(pair) / 2 for pair in zip(*both, strict=True)]
        assert probs == pytest.approx(mean, rel=1e-4, abs=1e-7)
    assert len(taught.probs) == int(batch.lengths.sum())
    for caption, length in enumerate(batch.lengths.tolist()):
        assert not taught.maps[caption, length:].any(), "nothing where a caption has ended"
        for word in range(length):
            both = [of_model.maps[caption, word].tolist() for of_model in read]
            powers = [((a + b) / 2) ** (1 / temperature) for a, b in zip(*both, strict=True)]
            expected = [power / sum(powers) for power in powers]
            assert taught.maps[caption, word].tolist() == pytest.approx(
                expected, rel=1e-4, abs=1e-7
            )


def test_a_run_learns_from_them_and_holds_nothing_of_them(table, tmp_path, teachers) -> None:
    alone, taught, unheard = (
        train(recipe(table, tmp_path / name, models, loss__distillation=share, train__epochs=1))
        for name, models, share in (("a", (), 0.5), ("b", teachers, 0.9), ("c", teachers, 0.0))
    )
    weights = [
        load_model(folder)[0].state_dict()["decoder.vocabulary.weight"]
        for folder in (alone, taught, unheard)
    ]
    assert not torch.equal(weights[0], weights[1])
    assert torch.equal(weights[0], weights[2])
    states = [folder.parent / "last" / "training_state.pt" for folder in (alone, taught)]
    sizes = [state.stat().st_size for state in states]
    assert abs(sizes[0] - sizes[1]) < 1000, "the paths of the teachers at most"


def test_a_teacher_may_have_fine_tuned_other_stages(table: Path, tmp_path: Path, teachers) -> None:
    model, config, vocabulary = load_model(Path(teachers[0]))
    stage = model.encoder.backbone.names[0]
    assert model.encoder.frozen_stages > 0
    earlier = replace(config, encoder=replace(config.encoder, trainable_from=stage))
    zeros = [value for value in model.encoder.backbone.stages[0].parameters() if not value.any()]
    assert zeros
    for value in zeros:  # the same number in other bits, as an average of models may have
        value.detach().fill_(-0.0)
    save_model(tmp_path / "earlier", model, earlier, vocabulary, card="#")
    teacher = (str(tmp_path / "earlier"),)
    cache = {"train__start_from": teachers[0], "data__cache": str(tmp_path / "cache")}
    setup = prepare(recipe(table, tmp_path / "run", teacher, **cache), CPU)
    batch = setup.dataset[(0, range(6))].to(CPU)
    assert batch.from_frozen
    taught = setup.task.teachers(batch).probs
    same = Teachers([load_model(Path(teachers[0]))[0]])(batch).probs
    torch.testing.assert_close(taught, same, rtol=0.02, atol=1e-4)


def test_all_samples_of_a_caption_are_taught_the_same(
    table: Path, tmp_path: Path, teachers
) -> None:
    settings = {"attention__select": "hard", "hard__samples": 3, "hard__baseline": "leave_one_out"}
    setup = prepare(recipe(table, tmp_path, teachers, **settings), CPU)
    batch = setup.dataset[(0, range(6))].to(CPU)
    given: list[TeacherTargets] = []
    asked = Teachers([load_model(Path(name))[0] for name in teachers], attention=True)

    class Watched(Teachers):
        def __call__(self, batch):
            given.append(asked(batch))
            return given[-1]

    setup.task.teachers = Watched(asked.models, attention=True)
    setup.task(batch)
    assert len(given) == 1
    assert len(given[0].probs) == int(batch.lengths.sum()), "once for all samples"
    repeated = asked(batch.repeated(3))
    torch.testing.assert_close(given[0].repeated(3).probs, repeated.probs)
    torch.testing.assert_close(given[0].repeated(3).maps, repeated.maps)


def test_unlike_teachers_are_refused_in_one_sentence(table, tmp_path, teachers) -> None:
    model, config, vocabulary = load_model(Path(teachers[0]))
    larger = replace(config, preprocess=replace(config.preprocess, height_px=96))
    save_model(tmp_path / "larger", model, larger, vocabulary, card="#")
    with pytest.raises(ConfigError, match=r"larger has another preprocess"):
        prepare(recipe(table, tmp_path / "run", (str(tmp_path / "larger"),)), CPU)
    with pytest.raises(ConfigError, match="another vocabulary"):
        prepare(recipe(table, tmp_path / "run", teachers, data__min_count=6), CPU)
    with torch.no_grad():
        next(model.encoder.backbone.stages[0].parameters()).mul_(1.01)
    save_model(tmp_path / "other", model, config, vocabulary, card="#")
    cache = {"train__start_from": teachers[0], "data__cache": str(tmp_path / "cache")}
    with pytest.raises(ConfigError, match="other has another frozen encoder"):
        prepare(recipe(table, tmp_path / "run", (str(tmp_path / "other"),), **cache), CPU)
