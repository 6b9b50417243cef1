"""The cache of frozen features: right values, never stale, finished after an interruption."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from captioner.config import EncoderConfig
from captioner.data.augmentation import Augmentation
from captioner.data.dataset import CaptionBatches, CaptionDataset, encode_captions
from captioner.data.feature_cache import FeatureCache, build_feature_cache, crop_features
from captioner.data.images import open_image
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError
from captioner.models.backbones.backbone import build_backbone
from captioner.models.model import Encoder

AUGMENTATION = Augmentation(flip=0.5, min_area=0.5, colour=0.3)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(build_backbone("timm/test_resnet", weights="none"), EncoderConfig()).eval()


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    return sorted(tiny.draw_table(tmp_path / "photos", train=11, val=0, test=0).glob("*.jpg"))


def transform(**settings: Any) -> ImageTransform:
    given = {"height_px": 48, "width_px": 64, "augmentation": AUGMENTATION}
    return ImageTransform(**{**given, **settings})


class Encode:
    """Counts the photos that it is asked for, and may stop after some, as a power cut does."""

    def __init__(self, encoder: Encoder, stop_after: int | None = None) -> None:
        self.encoder, self.stop_after, self.calls = encoder, stop_after, 0

    def __call__(self, batch: Tensor) -> Tensor:
        if self.stop_after is not None and self.calls >= self.stop_after:
            raise KeyboardInterrupt
        self.calls += 1
        return self.encoder.frozen_features(batch)


def build(
    root: Path, paths: list[Path], encode: Callable[[Tensor], Tensor], **changed: Any
) -> FeatureCache:
    given: dict[str, Any] = {"fingerprint": "abc", "views": 3, "seed": 7, "workers": 0}
    settings = {**given, **changed}
    which = settings.pop("transform", None) or transform()
    return build_feature_cache(root, paths, which, encode, **settings)


def test_view_0_is_the_encoder_s_own_output_of_the_plain_photo(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    for number, path in enumerate(photos):
        plain, _ = transform(augmentation=None)(open_image(path))
        direct = encoder.frozen_features(plain.unsqueeze(0))[0]
        stored = cache.read(number, 0)
        assert stored.dtype == torch.float16
        torch.testing.assert_close(stored.float(), direct, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("change", ["touched", "reordered", "one fewer"])
def test_other_photos_never_use_a_stale_cache(
    tmp_path: Path, photos: list[Path], encoder: Encoder, change: str
) -> None:
    build(tmp_path / "cache", photos, Encode(encoder))
    if change == "touched":
        os.utime(photos[5], ns=(1, 1))
    elif change == "reordered":
        photos[4], photos[5] = photos[5], photos[4]
    else:
        photos.pop()
    counting = Encode(encoder)
    cache = build(tmp_path / "cache", photos, counting)
    assert counting.calls > 0
    plain, _ = transform(augmentation=None)(open_image(photos[5]))
    direct = encoder.frozen_features(plain.unsqueeze(0))[0]
    torch.testing.assert_close(cache.read(5, 0).float(), direct, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(
    "changed",
    [
        {"fingerprint": "other weights"},
        {"seed": 8},
        {"views": 2},
        {"transform": transform(mean=(0.5, 0.5, 0.500001))},
        {"transform": transform(height_px=64)},
        {"transform": transform(augmentation=Augmentation(flip=0.5, min_area=0.5, colour=0.2))},
    ],
    ids=lambda changed: "".join(changed),
)
def test_other_settings_never_use_a_stale_cache(
    tmp_path: Path, photos: list[Path], encoder: Encoder, changed: dict[str, Any]
) -> None:
    before = build(tmp_path / "cache", photos[:2], Encode(encoder))
    counting = Encode(encoder)
    after = build(tmp_path / "cache", photos[:2], counting, **changed)
    assert counting.calls > 0
    assert after.folder != before.folder


def test_an_interrupted_build_is_begun_again_and_a_finished_one_is_used(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    whole = build(tmp_path / "whole", photos, Encode(encoder))
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cut", photos, Encode(encoder, stop_after=3))
    (folder,) = (tmp_path / "cut").iterdir()
    (folder / "progress.json").write_text('{"done": 3, "unreadable": {}}')  # of an old version
    finished = build(tmp_path / "cut", photos, Encode(encoder))
    np.testing.assert_array_equal(finished.features, whole.features)
    counting = Encode(encoder)
    build(tmp_path / "cut", photos, counting)
    assert counting.calls == 0


def test_an_unreadable_photo_is_known_by_its_reason(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    photos[0].write_bytes(b"damaged")  # the first one tells the shape, too
    photos[3].write_bytes(b"")
    cache = build(tmp_path / "cache", photos, Encode(encoder), views=2)
    assert set(cache.unreadable) == {0, 3}
    for view in range(2):
        with pytest.raises(ImageError, match="empty"):
            cache.read(3, view)
    assert torch.isfinite(cache.read(1, 1)).all()
    sent = pickle.dumps(cache)  # to a worker: the place and not the values
    assert len(sent) < 1000 < cache.features.nbytes
    for again in (build(tmp_path / "cache", photos, Encode(encoder), views=2), pickle.loads(sent)):
        assert again.unreadable == cache.unreadable
        assert torch.equal(again.read(4, 1), cache.read(4, 1))


def test_the_dataset_takes_views_of_the_cache_by_seed_epoch_and_photo(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    photos[2].write_bytes(b"damaged")
    captioned = tiny.read_split(format="table", root=photos[0].parent, split="train").images
    cache = build(tmp_path / "cache", [photo.path for photo in captioned], Encode(encoder))
    captions = encode_captions(captioned, Vocabulary(tiny.WORDS), max_words=9)
    data = CaptionDataset(captioned, captions, transform(), seed=1, cache=cache)
    order = CaptionBatches(captions, batch_size=6, by="photo", seed=1)
    views: list[set[int]] = [set() for _ in captioned]
    reported: set[str] = set()
    for epoch in range(4):
        batches = list(tiny.load_epoch(data, order, epoch))
        again = list(tiny.load_epoch(data, order, epoch, workers=int(epoch == 0)))
        for batch, same in zip(batches, again, strict=True):
            assert batch.from_frozen
            assert torch.equal(batch.inputs, same.inputs)
            assert torch.equal(batch.image_index, same.image_index)
            reported |= {path for path, _ in batch.unreadable}
            for features in batch.inputs:
                equal = (cache.features == features.numpy()).all(axis=(2, 3, 4))
                (photo,), (view,) = np.nonzero(equal)
                views[photo].add(view)
    assert reported == {str(photos[2])}
    assert not views[2]
    assert set().union(*views) == {0, 1, 2}
    assert sum(len(found) > 1 for found in views) > 5


def test_the_dataset_crops_cached_features_anew_each_epoch_and_alike_each_time(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    captioned = tiny.read_split(format="table", root=photos[0].parent, split="train").images
    cache = build(tmp_path / "cache", [photo.path for photo in captioned], Encode(encoder), views=1)
    captions = encode_captions(captioned, Vocabulary(tiny.WORDS), max_words=9)

    def inputs(epoch: int, min_area: float) -> torch.Tensor:
        data = CaptionDataset(
            captioned,
            captions,
            transform(),
            seed=1,
            cache=cache,
            cache_crop=None
            if min_area == 1
            else partial(crop_features, min_area=min_area, flip=0.5),
        )
        return data[(epoch, range(6))].inputs.float()

    assert torch.equal(inputs(0, 1.0), inputs(1, 1.0))
    assert torch.equal(inputs(0, 0.6), inputs(0, 0.6))
    assert not torch.equal(inputs(0, 0.6), inputs(1, 0.6))
    assert not torch.equal(inputs(0, 0.6), inputs(0, 1.0))


@pytest.mark.parametrize("min_area", [0.5, 0.95])
def test_crops_lie_inside_and_keep_their_share(min_area: float) -> None:
    x = torch.linspace(-1, 1, 64).expand(64, 64)  # a ramp across
    places = torch.stack([x, x.t()])
    generator = np.random.default_rng(0)
    crop = partial(crop_features, min_area=min_area, flip=0.3)
    areas, stretches, mirrored = [], [], 0
    for _ in range(300):
        view = crop(places, generator)
        assert view.abs().max() <= 1 + 1e-5
        # away from the border, where there is nothing to read between
        across = (view[0, 32, 40] - view[0, 32, 24]).item() * 63 / 32
        down = (view[1, 40, 32] - view[1, 24, 32]).item() * 63 / 32
        mirrored += across < 0
        areas.append(abs(across) * down)
        stretches.append(abs(across) / down)
    assert min_area - 1e-4 <= min(areas) < min_area + 0.05
    assert 0.95 < max(areas) < 1 + 1e-4
    assert max(stretches) > (1.15 if min_area == 0.5 else 1.01)
    assert 60 < mirrored < 120
