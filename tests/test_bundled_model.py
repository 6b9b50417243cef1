"""The model that ships in the package: whole, small, and able to caption a real photo."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import Captioner
from captioner.checkpoint import GRAPHS, MODELS, bundled_models, verify

MAX_BYTES = 40 * 2**20


@pytest.fixture(scope="module", params=["soft", "hard"], autouse=True)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(name: str) -> Path:
    return MODELS / name


@pytest.fixture(scope="module")
def captioner(folder: Path, name: str) -> Captioner:
    return Captioner.from_pretrained(name, device="cpu")


@pytest.fixture(scope="module")
def photo() -> Path:
    import matplotlib.cbook

    return Path(matplotlib.cbook.get_sample_data("grace_hopper.jpg", asfileobj=False))


def test_it_is_whole_and_listed(folder: Path, name: str) -> None:
    verify(folder)
    assert name in bundled_models()
    names = {path.name for path in folder.iterdir()}
    expected = {"model.safetensors", "config.yaml", "vocabulary.json", "README.md", "manifest.json"}
    expected |= {"calibrator.json", "matcher.safetensors", "graphs.json", *GRAPHS}
    assert names == expected, "all that inference needs, and nothing that can run code"


def test_it_is_small_enough_to_ship_and_in_half_precision(folder: Path) -> None:
    assert sum(path.stat().st_size for path in folder.iterdir()) <= MAX_BYTES
    content = (folder / "model.safetensors").read_bytes()
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    types = {entry["dtype"] for name, entry in header.items() if name != "__metadata__"}
    assert "F16" in types
    assert types <= {"F16", "I64"}


def test_it_captions_a_real_photo_of_a_person(captioner: Captioner, photo: Path) -> None:
    caption = captioner.caption(photo)
    assert len(caption.words) >= 4, caption.text
    assert {"man", "woman", "person"} & set(caption.words), caption.text
    assert "<unk>" not in caption.words
    assert caption.end_log_prob is not None, "it ends by itself"


def test_its_maps_sum_to_one_and_move(captioner: Captioner, photo: Path) -> None:
    caption = captioner.caption(photo)
    count = len(caption.words)
    assert caption.maps.shape[0] == count
    assert min(caption.maps.shape[1:]) >= 7
    np.testing.assert_allclose(caption.maps.sum((1, 2)), 1, atol=1e-4)
    assert ((caption.beta >= 0) & (caption.beta <= 1)).all()
    flat = caption.maps.reshape(count, -1)
    entropy = -(flat * np.log(flat.clip(1e-12))).sum(1) / np.log(flat.shape[1])
    assert entropy.min() < 0.95, "attention is not flat"
    assert 0.5 * np.abs(np.diff(flat, axis=0)).sum(1).max() > 0.05, "attention moves"


def test_it_prefers_a_right_caption_to_a_wrong_one(captioner: Captioner, photo: Path) -> None:
    def log_prob(text: str) -> float:
        scored = captioner.score(photo, text)
        return float(scored.log_probs.sum()) + scored.end_log_prob

    assert log_prob("a man in a uniform") > log_prob("a dog in the snow")


def test_hard_attention_takes_one_cell_a_word_and_moves_between_words(
    captioner: Captioner, photo: Path, name: str
) -> None:
    caption = captioner.caption(photo, paths=5 if name == "hard" else 0)
    if name == "soft":
        assert caption.cells is None
        return
    np.testing.assert_array_equal(
        caption.cells, caption.maps.reshape(len(caption.words), -1).argmax(1)
    )
    assert len(set(caption.cells.tolist())) > 1, "it does not stare at one cell"
    assert caption.paths.shape == (5, len(caption.words))


def test_a_blank_photo_is_never_captioned_as_sure(captioner: Captioner) -> None:
    for colour in ("white", "black", "grey", "navy"):
        caption = captioner.caption(Image.new("RGB", (640, 480), colour))
        assert caption.confidence == 0
        assert caption.is_unsure
