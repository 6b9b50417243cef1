"""The README.md of a model folder that training writes."""

from __future__ import annotations

from pathlib import Path

import tiny
import yaml

from captioner.config import from_yaml
from captioner.config.settings import Config
from captioner.training.model_card import model_card

CONFIG = tiny.recipe(Path("photos"), Path("run"))
SOURCES = """
data:
  sources:
    - {name: flickr8k, root: a}
    - {name: web, format: table, root: b, val_split: null}
"""


def test_the_card_tells_the_model_the_data_and_the_figures() -> None:
    card = model_card(
        CONFIG, {"epoch": 3, "CIDEr": 0.51239, "Bleu_4": 0.2}, {"training captions": "0f3a"}
    )
    _, front_matter, text = card.split("---\n", 2)  # as model hubs read it
    assert yaml.safe_load(front_matter)["pipeline_tag"] == "image-to-text"
    assert text.startswith("# ")
    assert card.endswith("\n")
    for fact in ("soft attention", "timm/test_resnet", "table", "split train", "epoch 3", "beam 2"):
        assert fact in card, fact
    assert "| CIDEr | 0.5124 |" in card
    assert "| Bleu_4 | 0.2000 |" in card
    assert "| training captions | 0f3a |" in card
    assert "| epoch" not in card


def test_the_card_names_every_source() -> None:
    card = model_card(from_yaml(Config, SOURCES), {"epoch": 1, "CIDEr": 0.5}, {})
    assert "trained on split train of flickr8k and split train of web" in card
    assert "On split val of flickr8k, epoch 1" in card


def test_a_model_that_was_not_validated_says_so() -> None:
    card = model_card(CONFIG, {}, {})
    assert "Not validated yet." in card
    assert "|" not in card.partition("## Made with")[0]
