"""Recipes, and messages about settings that cannot be used."""

from __future__ import annotations

import functools
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import tiny
import torch
import yaml

from captioner.cli.train import train_settings
from captioner.config import EncoderConfig, ModelConfig, PreprocessConfig, from_yaml, to_yaml
from captioner.config.recipes import read_recipe, shipped_recipes
from captioner.config.settings import Config
from captioner.config.validation import data_sources, unused_settings, validate, with_source_roots
from captioner.errors import ConfigError
from captioner.models.build import build_decoder, build_encoder, build_model
from captioner.registry import SCORES

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
FAMILIES = sorted((CONFIGS / "families").glob("*.yaml"))


def refusal(text: str, config_class: type = Config) -> str:
    return tiny.sentence(ConfigError, from_yaml, config_class, text)


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses_and_can_be_trained(recipe: Path) -> None:
    config = read_recipe(recipe)
    validate(with_roots(config))
    rows, columns, dim = shape_of_grid(
        config.encoder, (config.preprocess.height_px, config.preprocess.width_px)
    )
    assert min(rows, columns) >= 7
    with torch.device("meta"):
        build_decoder(config.decoder, config.attention, feature_dim=dim, vocabulary_size=100)
    assert from_yaml(Config, to_yaml(config)) == config
    assert from_yaml(ModelConfig, to_yaml(model_part(config))) == model_part(config)


@functools.cache  # recipes share encoders, and each takes a second
def shape_of_grid(config: EncoderConfig, size_px: tuple[int, int]) -> tuple[int, int, int]:
    """Rows, columns and D."""
    with torch.device("meta"):  # shapes without arithmetic
        encoder = build_encoder(config, size_px=size_px, pretrained=False)
        grid = encoder(torch.empty(1, 3, *size_px))
    assert grid.features.shape == (1, grid.height * grid.width, encoder.dim)
    return grid.height, grid.width, encoder.dim


def with_roots(config: Config) -> Config:
    """A recipe may leave it to the command line where a source is."""
    if config.data.sources is None:
        return config
    roots = ",".join(f"{source.name}=data/{source.name}" for source in data_sources(config.data))
    return replace(config, data=with_source_roots(config.data, roots))


def model_part(config: Config) -> ModelConfig:
    return ModelConfig(**{field.name: getattr(config, field.name) for field in fields(ModelConfig)})


def test_settings_of_earlier_versions_are_read_and_reported_where_they_did_something(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = """
        data: {check_photos: sample, sources: [{format: table, root: a, style: web}]}
        loss: {consensus: 0.5, visual_concepts: 0.0, label_smoothing: 0.1}
        text: {file: null, batch_size: 80, cells: 12, weight: 1.0}
    """
    assert from_yaml(Config, old).loss.label_smoothing == 0.1
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["data.sources.style", "loss.consensus"]
    config, _ = train_settings(["--config", "table", "--data.root", "a", "--loss.consensus", "0.5"])
    assert config.data.root == "a"
    assert capsys.readouterr().err.startswith("loss.consensus: this setting is gone")


def test_the_recipes_of_the_paper_have_its_constants() -> None:
    flickr8k, coco = read_recipe("flickr8k_paper"), read_recipe("coco_paper")
    optim = flickr8k.optim
    assert (optim.name, optim.lr, optim.alpha) == ("rmsprop_graves", 1e-4, 0.95)
    assert (optim.momentum, optim.eps) == (0.9, 1e-4)
    assert (coco.optim.name, coco.optim.lr, coco.optim.eps) == ("adam", 2e-4, 1e-8)
    for config in (flickr8k, coco):
        assert (config.data.vocabulary_size, config.data.min_count) == (10000, 1)
        assert config.data.max_words is None
        assert config.data.batch_by == "length"
        assert config.optim.clip_norm == 0
        assert config.preprocess.resize == "crop"
        assert config.loss.doubly_stochastic == 1
        assert config.encoder.trainable_from is None
        assert config.train.metric == "Bleu_4"
        assert unused_settings(config, captions=30000) == []
    hard = read_recipe("flickr8k_paper", "families/hard_paper").hard
    n, t = flickr8k.data.batch_size, 11.7
    assert hard.reward_scale == pytest.approx(n / (10 * t), rel=0.02)
    assert hard.entropy == pytest.approx(0.002 * n, rel=0.02)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_by_name_is_the_one_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # away from the checkout
    assert read_recipe("flickr8k_soft") == read_recipe(CONFIGS / "flickr8k_soft.yaml")
    assert read_recipe("families/hard").attention.select == "hard"
    assert {"coco_soft", "families/dot"} <= shipped_recipes().keys()
    mine = write(tmp_path / "flickr8k_soft.yaml", "optim: {lr: 0.25}")
    assert read_recipe("flickr8k_soft") == read_recipe(mine), "a file of one's own comes first"


def test_bases_are_relative_to_the_recipe_and_may_have_bases(tmp_path: Path) -> None:
    write(tmp_path / "one.yaml", "optim: {lr: 0.1, eps: 0.1}\ndata: {batch_size: 1}")
    write(tmp_path / "in" / "two.yaml", "base: ../one.yaml\noptim: {lr: 0.2}\ntrain: {seed: 2}")
    three = write(tmp_path / "in" / "three.yaml", "base: two\ntrain: {seed: 3}\noptim:\n")
    config = read_recipe(three)
    assert (config.optim.lr, config.optim.eps, config.data.batch_size) == (0.2, 0.1, 1)
    assert config.train.seed == 3
    shipped = write(tmp_path / "four.yaml", "base: flickr8k_soft\ndata: {batch_size: 7}")
    base = read_recipe("flickr8k_soft")
    assert read_recipe(shipped) == replace(base, data=replace(base.data, batch_size=7))


def test_home_is_found_where_no_shell_expands_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine.yaml", "data: {root: ~/photos, cache: ~}")
    config, _ = train_settings(["--config=~/mine.yaml", "--train.output=~/run"])
    assert (config.data.root, config.data.cache) == (str(tmp_path / "photos"), None)
    assert config.train.output == str(tmp_path / "run")
    two, _ = train_settings(["--config", "bundled_teacher", "--data.root", "flickr8k=~/a,people=b"])
    assert [source.root for source in two.data.sources or ()] == [str(tmp_path / "a"), "b"]


def test_of_several_bases_or_recipes_the_later_wins(tmp_path: Path) -> None:
    a = write(tmp_path / "a.yaml", "optim: {lr: 0.1, eps: 0.1}")
    b = write(tmp_path / "b.yaml", "optim: {lr: 0.2}")
    both = write(tmp_path / "both.yaml", "base: [a, b]")
    for config in (read_recipe(a, b), read_recipe(both)):
        assert (config.optim.lr, config.optim.eps) == (0.2, 0.1)
    assert read_recipe(b, a).optim.lr == 0.1
    assert read_recipe() == Config()


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("base: none_such", ["mine.yaml", "none_such", "flickr8k_soft"]),
        ("base: mine", ["mine.yaml", "itself"]),
        ("optim: {lr: fast}", ["mine.yaml", "optim.lr"]),
        ("optim: {rate: 1}", ["mine.yaml", "optim.rate", "lr"]),
        ("- 1", ["mine.yaml"]),
    ],
)
def test_a_recipe_that_cannot_be_used_is_named(tmp_path: Path, text: str, facts: list[str]) -> None:
    mine = write(tmp_path / "mine.yaml", text)
    message = tiny.sentence(ConfigError, read_recipe, mine)
    assert [fact for fact in facts if fact not in message] == []


SOURCES = """
data:
  sources:
  - {name: people, root: data/flickr8k, weight: 0.5}
  - {format: table, root: a.csv, weight: 2.0, train_split: null}
  - {format: table, root: b.csv, loss_weight: 0.1, val_split: null}
  - {format: coco, root: c}
"""


def test_sources_are_read_named_and_survive_being_written() -> None:
    config = from_yaml(Config, SOURCES)
    sources = data_sources(config.data)
    assert [source.name for source in sources] == ["people", "table-2", "table-3", "coco"]
    assert sources[0].weight == 0.5
    assert (sources[1].weight, sources[1].train_split, sources[1].val_split) == (2.0, None, "val")
    assert (sources[2].loss_weight, sources[2].weight) == (0.1, 1.0)
    again = from_yaml(Config, to_yaml(config))
    assert again == config
    assert isinstance(again.data.sources, tuple)
    assert type(sources[0].weight) is float
    validate(replace(config, train=replace(config.train, val_source="people")))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("encodr: {backbone: vgg19}", ["encodr", *(section.name for section in fields(Config))]),
        ("encoder: {tpa: {}}", ["encoder.tpa", *(key.name for key in fields(Config().encoder))]),
        ("decoder: {hidden_dim: many}", ["decoder.hidden_dim"]),
        ("preprocess: {mean: [0.1, 0.2]}", ["preprocess.mean"]),
        ("data: {sources: [{root: a, nmae: b}]}", ["nmae"]),
        ("decoder: {gate: other}", ["decoder.gate", "none", "scalar", "vector"]),
        ("data: {format: other}", ["data.format", "flickr8k", "karpathy", "coco", "table"]),
        ("attention: {score: other}", ["attention.score", *SCORES]),
    ],
)
def test_unusable_settings_are_named_with_what_is_accepted(text: str, facts: list[str]) -> None:
    message = refusal(text)
    assert [fact for fact in facts if fact not in message] == []


# a setting of each type of numbers, with values that it refuses
OUT_OF_RANGE = {
    "preprocess.height_px": [0, 4097],
    "encoder.dropout": [-0.1, 1.0, math.nan],
    "attention.radius": [0.4, math.inf],
    "decoding.beam_size": [0, 1001],  # model folders with more are not read
    "decoding.max_words": [0, 10_001],
    "decoding.length_penalty": [-10.1, 10.1],
    "loss.doubly_stochastic": [-1.0, math.inf, math.nan],
    "optim.lr": [0.0, math.inf],
    "train.seed": [-1, 2**63],
}


@pytest.mark.parametrize("key", OUT_OF_RANGE)
def test_a_number_out_of_range_is_refused_wherever_it_comes_from(key: str) -> None:
    section, name = key.split(".")
    for value in OUT_OF_RANGE[key]:
        assert key in refusal(yaml.safe_dump({section: {name: value}}))
        config = Config()
        settings = replace(getattr(config, section), **{name: value})
        said = tiny.sentence(ConfigError, validate, replace(config, **{section: settings}))
        assert said.startswith(f"{key}: "), "a number given in Python"


LEARNED = "decoder: {kind: transformer, positions: learned, max_positions: 30}"


@pytest.mark.parametrize(
    ("text", "key", "facts"),
    [
        ("hard: {samples: 1}", "hard.samples", []),
        ("self_critical: {samples: 1}", "self_critical.samples", []),
        ("self_critical: {samples: 2}\nloss: {attention_effect: 0.5}", "loss.attention_effect", []),
        ("self_critical: {samples: 2}\nloss: {teachers: [soft]}", "loss.teachers", []),
        (
            "self_critical: {samples: 2}\nattention: {select: hard, at_test: sample}",
            "attention.at_test",
            [],
        ),
        ("attention: {select: hard}\ndecoder: {kind: mean}", "attention.select", []),
        (f"{LEARNED}\ndecoding: {{max_words: 31}}", "decoder.max_positions", ["use 31"]),
        (f"{LEARNED}\ndata: {{max_words: 30}}", "decoder.max_positions", ["use 31"]),
        (f"{LEARNED}\ndata: {{max_words: null}}", "decoder.max_positions", ["data.max_words"]),
        ("data: {sources: [{name: a}]}", "data.sources", ["root", "--data.root a="]),
        ("data: {sources: [{name: a, root: x}, {name: a, root: y}]}", "data.sources", ["name a"]),
        ("data: {sources: [{root: x, train_split: null}]}", "data.sources", ["train_split"]),
        (f"{SOURCES}\ntrain: {{val_source: table-3}}", "train.val_source", ["people", "coco"]),
    ],
)
def test_settings_that_exclude_each_other_are_refused(
    text: str, key: str, facts: list[str]
) -> None:
    message = tiny.sentence(ConfigError, validate, from_yaml(Config, text))
    assert message.startswith(f"{key}: ")
    assert [fact for fact in facts if fact not in message] == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("data: {cache: c}", "data.cache"),
        ("data: {cache_views: 2}", "data.cache_views and data.cache_min_area"),
        ("data: {cache_min_area: 0.5}", "data.cache_views and data.cache_min_area"),
        ("optim: {warmup_steps: 10000}\ntrain: {epochs: 1}", "optim.warmup_steps"),
        ("loss: {attention_effect: 0.5}", "loss.attention_effect"),
        ("hard: {samples: 5}", "hard"),
        ("self_critical: {temperature: 0.5}", "self_critical"),
    ],
)
def test_settings_that_do_nothing_are_reported(text: str, key: str) -> None:
    (sentence,) = unused_settings(from_yaml(Config, text), captions=10**6)
    assert sentence.startswith(f"{key}: ")
    for used in ("{}", "data: {cache: c, cache_views: 2}"):
        assert unused_settings(from_yaml(Config, used), captions=10**6) == []


def test_yaml_cannot_run_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    refusal(f'!!python/object/apply:os.mkdir ["{made}"]')
    refusal(f'encoder: {{backbone: !!python/object/apply:os.mkdir ["{made}"]}}')
    refusal(f"encoder: {{class_path: os.mkdir, init_args: {{path: {made}}}}}")
    assert not made.exists()


@pytest.mark.parametrize("overlay", FAMILIES, ids=lambda path: path.stem)
def test_every_family_differs_from_the_base_in_a_few_settings_and_can_be_built(
    overlay: Path,
) -> None:
    base, config = read_recipe("flickr8k_soft"), read_recipe("flickr8k_soft", overlay)
    differing = [
        f"{section}.{key}"
        for section in Config.__dataclass_fields__
        for key, value in vars(getattr(config, section)).items()
        if value != getattr(getattr(base, section), key)
    ]
    assert 1 <= len(differing) <= 7, differing
    named = yaml.safe_load(overlay.read_text(encoding="utf-8"))
    assert {f"{s}.{k}" for s, keys in named.items() for k in keys} == set(differing)
    small = replace(
        config,
        preprocess=PreprocessConfig(height_px=64, width_px=64),
        encoder=replace(
            config.encoder, backbone="timm/test_resnet", weights="none", trainable_from=None
        ),
    )
    validate(small)
    network = build_model(small, 30)
    memory = network.decoder.prepare(network.encoder(torch.rand(2, 3, 64, 64)))
    forced = network.decoder(memory, torch.randint(4, 30, (2, 4)), torch.tensor([4, 2]))
    assert forced.logits.shape == (6, 30)
    assert torch.isfinite(forced.logits).all()
