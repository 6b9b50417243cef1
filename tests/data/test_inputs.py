"""Batches of photos from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from captioner.data import inputs
from captioner.data.inputs import opened
from captioner.runtime import parallel as passes


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_batches_keep_the_order_and_leave_out_unreadable_photos(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing touches the GPU: for it, photos are read by several threads."""
    monkeypatch.setattr(passes, "usable_cores", lambda: 4)
    monkeypatch.setattr(inputs, "BATCH_IMAGES", 3)
    paths = [tmp_path / f"{number}.png" for number in range(10)]
    for number, path in enumerate(paths):
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    paths[4].write_bytes(b"no photo")
    paths[7].unlink()
    failed: list[tuple[int, str]] = []
    batches = list(
        opened(
            enumerate(paths),
            lambda key, error: failed.append((key, str(error))),
            torch.device(device),
        )
    )
    assert [[key for key, _ in batch] for batch in batches] == [[0, 1, 2], [3, 5, 6], [8, 9]]
    for key, image in (pair for batch in batches for pair in batch):
        assert np.asarray(image)[0, 0].tolist() == [key, 0, 0]
    assert [key for key, _ in failed] == [4, 7]
    assert "not a photo" in failed[0][1]
    assert failed[1][1] == "no such file"
