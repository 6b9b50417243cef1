"""Model folders that version 0.1 wrote load and give the same captions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny

from captioner import Captioner

FOLDERS = Path(__file__).parent / "earlier_version"


@pytest.mark.parametrize("name", ["lstm_hard", "transformer"])
def test_a_model_folder_of_version_0_1_captions_as_it_did(name: str) -> None:
    """`lstm_hard` is a run folder, whose model lies in `best`."""
    captioner = Captioner.from_pretrained(FOLDERS / name, device="cpu")
    expected = json.loads((FOLDERS / f"{name}.json").read_text(encoding="utf-8"))
    for number, earlier in enumerate(expected):
        caption = captioner.caption(tiny.photo(number)[0]).to_dict()
        for key in ("caption", "words", "cells"):
            assert caption.get(key) == earlier.get(key)
        np.testing.assert_allclose(caption["log_probs"], earlier["log_probs"], atol=2e-4)
        if earlier["beta"] is not None:
            np.testing.assert_allclose(caption["beta"], earlier["beta"], atol=2e-4)
