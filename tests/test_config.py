"""Recipes, and what a user is told of a setting that cannot be used."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
import torch
import yaml

from captioner.config import Config, ModelConfig, PreprocessConfig, from_yaml, to_yaml
from captioner.errors import ConfigError
from captioner.models.build import build_model
from captioner.models.model import Encoder
from captioner.training import setup

CONFIGS = Path(__file__).resolve().parents[1] / "configs"
RECIPES = sorted(CONFIGS.glob("*.yaml"))
FAMILIES = sorted((CONFIGS / "families").glob("*.yaml"))


def refusal(text: str, config_class: type = Config) -> str:
    """The message for settings that cannot be used, if it is one sentence for a user."""
    with pytest.raises(ConfigError) as caught:
        from_yaml(config_class, text)
    message = str(caught.value)
    assert "\n" not in message
    for inner in ("functools", "object at 0x", "Traceback", "argument after **"):
        assert inner not in message
    assert 10 < len(message) < 600
    return message


# --- recipes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_parses_and_can_be_trained(recipe: Path) -> None:
    config = from_yaml(Config, recipe.read_text(encoding="utf-8"))
    setup.check(config)
    with torch.device("meta"):  # shapes without arithmetic
        model = build_model(config, vocabulary_size=100, pretrained=False)
        photo = torch.empty(1, 3, config.preprocess.height_px, config.preprocess.width_px)
        grid = model.encoder(photo)
    assert isinstance(model.encoder, Encoder)
    assert grid.features.shape == (1, grid.height * grid.width, model.encoder.dim)
    assert min(grid.height, grid.width) >= 7
    assert from_yaml(Config, to_yaml(config)) == config
    assert from_yaml(ModelConfig, to_yaml(model_part(config))) == model_part(config)


def model_part(config: Config) -> ModelConfig:
    return ModelConfig(**{field.name: getattr(config, field.name) for field in fields(ModelConfig)})


@pytest.mark.parametrize(
    "stages",
    [
        ["refine"],
        ["refine", "self_critical"],
        ["refine", "text"],
        ["refine", "consensus"],
        ["refine", "text", "both"],
        ["refine", "text", "hard_text"],
        ["refine", "consensus", "hard_consensus"],
        ["refine", "text", "views"],
        ["refine", "text", "views", "larger"],
        ["hard_taught"],
        ["hard_deeper"],
        ["hard_deeper", "hard_longer"],
        ["hard_deeper", "hard_longer", "hard_second"],
    ],
)
def test_every_stage_can_be_trained(stages: list[str]) -> None:
    hard = any(name.startswith("hard") for name in stages)
    base = "flickr8k_hard" if stages[0].startswith("hard") else "flickr8k_soft"
    files = [CONFIGS / f"{base}.yaml", *(CONFIGS / f"stages/{name}.yaml" for name in stages)]
    config = from_yaml(Config, *(file.read_text(encoding="utf-8") for file in files))
    setup.check(config)
    assert config.encoder.self_attention_layers == (2 if "hard_deeper" in stages else 1)
    assert config.train.start_from is not None
    assert (config.self_critical.samples > 0) == ("self_critical" in stages)
    there = {file.stem for file in (CONFIGS / "stages").iterdir()}
    assert there == {
        *("refine", "self_critical", "text", "consensus", "both", "views", "larger"),
        *("hard_text", "hard_consensus", "hard_taught", "hard_deeper", "hard_longer"),
        "hard_second",
    }
    assert config.attention.select == ("hard" if hard else "soft")


def test_there_are_recipes() -> None:
    assert {path.stem for path in RECIPES} >= {"flickr8k_soft", "flickr8k_paper", "coco_paper"}


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_names_each_setting_once(recipe: Path) -> None:
    """YAML takes the last of two without a word."""

    def keys(node: yaml.Node, place: str = "") -> list[str]:
        if not isinstance(node, yaml.MappingNode):
            return []
        found = []
        for key, value in node.value:
            found += [f"{place}{key.value}", *keys(value, f"{place}{key.value}.")]
        return found

    node = yaml.compose(recipe.read_text(encoding="utf-8"))
    assert node is not None
    found = keys(node)
    assert len(set(found)) == len(found)


# --- values ---------------------------------------------------------------------------------------


def test_what_is_not_named_keeps_its_default() -> None:
    config = from_yaml(Config, "decoder: {gate: vector}\noptim: {lr: 3e-4}")
    default = Config()
    assert config == replace(
        default,
        decoder=replace(default.decoder, gate="vector"),
        optim=replace(default.optim, lr=3e-4),
    )
    assert from_yaml(Config, "{}") == default


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "encoder:\n", "encoder: {}\ndecoder:\n"])
def test_an_empty_file_or_section_is_all_defaults(text: str) -> None:
    assert from_yaml(Config, text) == Config()


@pytest.mark.parametrize("number", ["1e-3", "1.0e-3", "0.001", ".001"])
def test_a_rate_is_a_number_however_it_is_spelt(number: str) -> None:
    assert from_yaml(Config, f"optim: {{lr: {number}}}").optim.lr == 0.001


def test_all_settings_survive_being_written_and_read() -> None:
    default = Config()
    changed = replace(
        default,
        data=replace(default.data, root="données/été: 1", cache="a b", workers=0, flip=0.25),
        preprocess=replace(
            default.preprocess, mean=(0.1, 0.2, 0.3), std=(1.0, 2.0, 3.0), interpolation="lanczos"
        ),
        encoder=replace(default.encoder, weights="none", tap="blocks.3", project_dim=7),
        optim=replace(default.optim, lr=1e-5, ema_decay=0.99),
        train=replace(default.train, val_photos=10),
    )
    found = from_yaml(Config, to_yaml(changed))
    assert found == changed
    assert isinstance(found.preprocess.mean, tuple)
    for section in ("data", "preprocess", "encoder", "optim", "train"):
        assert getattr(found, section) != getattr(default, section)


def test_every_setting_is_documented() -> None:
    for section in fields(Config):
        kind = type(getattr(Config(), section.name))
        documentation = kind.__doc__ or ""
        for field in fields(kind):
            assert (
                f"        {field.name}: " in documentation or f"    {field.name}: " in documentation
            )


# --- refusals -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def refusals_of_an_unknown_key() -> dict[str, str]:
    """By section."""
    return {s.name: refusal(f"{s.name}: {{no_such_key: 3}}") for s in fields(Config)}


def test_an_unknown_key_is_named(refusals_of_an_unknown_key: dict[str, str]) -> None:
    for section, message in refusals_of_an_unknown_key.items():
        assert section in message
        assert "no_such_key" in message


def test_an_unknown_key_is_named_with_the_accepted_ones(
    refusals_of_an_unknown_key: dict[str, str],
) -> None:
    unsaid = {
        f"{section}.{field.name}"
        for section, message in refusals_of_an_unknown_key.items()
        for field in fields(getattr(Config(), section))
        if field.name not in message
    }
    assert unsaid == set()


@pytest.mark.parametrize("text", ["encodr: {backbone: vgg19}", "encodr: 3", "encodr:\n"])
def test_an_unknown_section_is_named_with_the_accepted_ones(text: str) -> None:
    message = refusal(text)
    assert "encodr" in message
    assert {section.name for section in fields(Config) if section.name not in message} == set()


@pytest.mark.parametrize(
    "text", ["encodr: {}", "encoder: {no_such_key: {}}", "encoder: {backbone: vgg19, tpa: {}}"]
)
def test_an_unknown_key_is_refused_even_when_it_holds_nothing(text: str) -> None:
    refusal(text)


def test_a_model_folder_holds_no_settings_of_training() -> None:
    assert "optim" in refusal("optim: {lr: 1.0}", ModelConfig)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("decoder: {hidden_dim: many}", "decoder.hidden_dim"),
        ("decoder: {hidden_dim: 1.5}", "decoder.hidden_dim"),
        ("decoder: {hidden_dim: true}", "decoder.hidden_dim"),
        ("decoder: {hidden_dim: [1]}", "decoder.hidden_dim"),
        ("optim: {lr: fast}", "optim.lr"),
        ("decoder: {tie_embeddings: 3}", "decoder.tie_embeddings"),
        ("encoder: {tap: 3}", "encoder.tap"),
        ("preprocess: {mean: [0.1, 0.2]}", "preprocess.mean"),
        ("preprocess: {mean: 0.5}", "preprocess.mean"),
        ("preprocess: {mean: [a, b, c]}", "preprocess.mean"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_by_its_key(text: str, key: str) -> None:
    assert key in refusal(text)


@pytest.mark.parametrize(
    ("key", "accepted"),
    [
        ("decoder.gate", ["none", "scalar", "vector"]),
        ("decoder.output", ["deep", "plain"]),
        ("encoder.batch_norm", ["frozen", "train"]),
        ("preprocess.resize", ["squash", "letterbox"]),
        ("optim.schedule", ["constant", "cosine", "plateau"]),
        ("data.format", ["flickr8k", "karpathy", "coco", "table"]),
    ],
)
def test_a_choice_that_is_not_offered_is_refused_with_those_that_are(
    key: str, accepted: list[str]
) -> None:
    section, name = key.split(".")
    message = refusal(f"{section}: {{{name}: other}}")
    assert key in message
    assert all(choice in message for choice in accepted)


def test_null_is_taken_where_a_setting_may_be_none() -> None:
    optional: dict[str, dict[str, None]] = {}
    for section in fields(Config):
        hints = get_type_hints(type(getattr(Config(), section.name)))
        optional[section.name] = {
            name: None for name, hint in hints.items() if type(None) in get_args(hint)
        }
    assert sum(map(len, optional.values())) > 8
    config = from_yaml(Config, yaml.safe_dump(optional))
    for section_name, names in optional.items():
        assert all(getattr(getattr(config, section_name), name) is None for name in names)


@pytest.mark.parametrize(
    "key",
    [
        "decoder.hidden_dim",
        "optim.lr",
        "encoder.backbone",
        "decoder.tie_embeddings",
        "decoder.gate",
        "data.root",
        "train.epochs",
    ],
)
def test_null_is_refused_by_its_key_where_a_setting_may_not_be_none(key: str) -> None:
    section, name = key.split(".")
    assert key in refusal(f"{section}: {{{name}: null}}")


@pytest.mark.parametrize("value", ["3", "[1, 2]", "vgg19", "true"])
def test_a_section_that_is_no_section_is_refused_by_its_name(value: str) -> None:
    assert "encoder" in refusal(f"encoder: {value}")


@pytest.mark.parametrize("text", ["hello", "[1, 2]", "3", "a: [", "a: 1\n---\nb: 2", "\x00", "\t"])
def test_a_file_that_holds_no_settings_is_refused(text: str) -> None:
    refusal(text)


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
    text = (CONFIGS / "flickr8k_soft.yaml").read_text(encoding="utf-8")
    base, config = from_yaml(Config, text), from_yaml(Config, text, overlay.read_text("utf-8"))
    differing = [
        f"{section}.{key}"
        for section in Config.__dataclass_fields__
        for key, value in vars(getattr(config, section)).items()
        if value != getattr(getattr(base, section), key)
    ]
    assert 1 <= len(differing) <= 5, differing
    named = yaml.safe_load(overlay.read_text(encoding="utf-8"))
    assert {f"{s}.{k}" for s, keys in named.items() for k in keys} == set(differing)
    small = replace(
        config,
        preprocess=PreprocessConfig(height_px=64, width_px=64),
        encoder=replace(
            config.encoder, backbone="timm/test_resnet", weights="none", trainable_from=None
        ),
    )
    setup.check(small)
    network = build_model(small, 30)
    lengths = torch.tensor([4, 2])
    tokens = torch.randint(4, 30, (2, 4))
    grid = network.encoder(torch.rand(2, 3, 64, 64))
    forced = network(grid, torch.tensor([0, 1]), tokens, lengths)
    assert forced.logits.shape == (6, 30)
    assert torch.isfinite(forced.logits).all()
