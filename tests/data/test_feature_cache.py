"""The cache of frozen features: right values, never stale, finished after an interruption."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from torch import Tensor

from captioner.data import feature_cache
from captioner.data.dataset import CaptionBatches, CaptionDataset, encode_captions, load_batches
from captioner.data.feature_cache import FeatureCache, FeatureCrop, build_feature_cache
from captioner.data.layouts import read_split
from captioner.data.transforms import Augmentation, ImageTransform, open_image
from captioner.data.vocabulary import Vocabulary
from captioner.errors import DataError, ImageError
from captioner.models.backbones.backbone import build_backbone
from captioner.models.model import Encoder

AUGMENTATION = Augmentation(flip=0.5, min_area=0.5, colour=0.3)


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    torch.manual_seed(0)
    return Encoder(build_backbone("timm/test_resnet", weights="none")).eval()


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    folder = tiny.draw_table(tmp_path / "photos", train=11, val=0, test=0)
    return sorted(folder.glob("*.jpg"))


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


def test_the_other_views_are_augmented_and_differ(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    assert cache.views == 3
    for number in range(len(photos)):
        views = [cache.read(number, view) for view in range(3)]
        assert not torch.equal(views[0], views[1])
        assert not torch.equal(views[1], views[2])


def test_the_encoder_gives_the_same_grid_from_the_cache_as_from_the_photo(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder), views=1)
    plain, _ = transform(augmentation=None)(open_image(photos[4]))
    direct = encoder(plain.unsqueeze(0))
    cached = encoder(cache.read(4, 0).float().unsqueeze(0), from_frozen=True)
    assert (cached.height, cached.width) == (direct.height, direct.width)
    torch.testing.assert_close(cached.features, direct.features, rtol=1e-3, atol=1e-5)


def test_a_worker_is_sent_the_place_and_not_the_values(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    photos[3].write_bytes(b"damaged")
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    sent = pickle.dumps(cache)
    assert len(sent) < 1000 < cache.features.nbytes
    there = pickle.loads(sent)
    assert torch.equal(there.read(4, 2), cache.read(4, 2))
    with pytest.raises(ImageError):
        there.read(3, 0)


def test_features_that_were_read_may_be_changed(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder), views=1)
    before = cache.read(0, 0)
    cache.read(0, 0).zero_()
    assert torch.equal(cache.read(0, 0), before)


def test_a_finished_cache_is_used_again_without_the_encoder(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    first = build(tmp_path / "cache", photos, Encode(encoder))
    counting = Encode(encoder)
    again = build(tmp_path / "cache", photos, counting)
    assert counting.calls == 0
    np.testing.assert_array_equal(again.features, first.features)


def touched(photos: list[Path]) -> None:
    os.utime(photos[5], ns=(1, 1))


def replaced(photos: list[Path]) -> None:
    shutil.copy(photos[0], photos[5])


def renamed(photos: list[Path]) -> None:
    photos[5] = photos[5].rename(photos[5].with_name("other.jpg"))


def reordered(photos: list[Path]) -> None:
    photos[4], photos[5] = photos[5], photos[4]


def one_fewer(photos: list[Path]) -> None:
    photos.pop()


@pytest.mark.parametrize("change", [touched, replaced, renamed, reordered, one_fewer])
def test_other_photos_never_use_a_stale_cache(
    tmp_path: Path, photos: list[Path], encoder: Encoder, change: Callable[[list[Path]], None]
) -> None:
    build(tmp_path / "cache", photos, Encode(encoder))
    change(photos)
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
        {"transform": transform(mean=(0.4, 0.5, 0.5))},
        {"transform": transform(mean=(0.5, 0.5, 0.500001))},
        {"transform": transform(std=(0.5, 0.5, 0.4))},
        {"transform": transform(interpolation="bilinear")},
        {"transform": transform(resize="letterbox")},
        {"transform": transform(height_px=64)},
        {"transform": transform(width_px=96)},
        {"transform": transform(augmentation=Augmentation(flip=0.5, min_area=0.5, colour=0.2))},
        {"transform": transform(augmentation=None)},
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


def test_one_plain_view_depends_on_neither_seed_nor_augmentation(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    first = build(tmp_path / "cache", photos, Encode(encoder), views=1)
    counting = Encode(encoder)
    same = build(
        tmp_path / "cache",
        photos,
        counting,
        views=1,
        seed=99,
        transform=transform(augmentation=None),
    )
    assert counting.calls == 0
    assert same.folder == first.folder


def test_the_fingerprint_follows_every_weight_and_statistic_of_the_frozen_stages() -> None:
    torch.manual_seed(0)
    backbone = build_backbone("timm/test_resnet", weights="none")
    seen = {backbone.fingerprint(1)}
    state = backbone.state_dict()
    names = list(state)
    buffers = [name for name in names if "running_mean" in name]
    for name in (names[0], names[-1], buffers[0]):
        state[name].view(-1)[-1] += 1
        assert backbone.fingerprint(1) not in seen
        seen.add(backbone.fingerprint(1))
    assert backbone.fingerprint(1) in seen


@pytest.mark.parametrize(("stop_after", "save_every"), [(1, 8), (3, 8), (4, 8), (5, 16), (2, 256)])
def test_an_interrupted_build_is_finished_and_equals_one_that_was_not(
    tmp_path: Path,
    photos: list[Path],
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    stop_after: int,
    save_every: int,
) -> None:
    monkeypatch.setattr(feature_cache, "SAVE_EVERY", save_every)
    photos[6].write_bytes(b"damaged")
    whole = build(tmp_path / "whole", photos, Encode(encoder))
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cut", photos, Encode(encoder, stop_after))
    counting = Encode(encoder)
    finished = build(tmp_path / "cut", photos, counting)
    np.testing.assert_array_equal(finished.features, whole.features)
    assert finished.unreadable == whole.unreadable
    assert list(whole.unreadable) == [6]
    if save_every == 8 and stop_after == 4:  # the first call asks for the shape alone
        assert counting.calls == 2, "three chunks of the five were done"


def test_a_build_whose_array_was_lost_ends_in_one_sentence(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    (cache.folder / "features.npy").unlink()
    with pytest.raises(DataError) as caught:
        build(tmp_path / "cache", photos, Encode(encoder))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["features.npy", "progress.json"])
def test_a_file_that_was_cut_short_ends_in_one_sentence_or_is_made_again(
    tmp_path: Path, photos: list[Path], encoder: Encoder, name: str
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    expected = np.array(cache.features)
    path = cache.folder / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    try:
        again = build(tmp_path / "cache", photos, Encode(encoder))
    except DataError as error:
        assert "\n" not in str(error)
        assert str(cache.folder) in str(error)
    else:
        np.testing.assert_array_equal(again.features, expected)


@pytest.mark.parametrize("keep", [0, 20, 20_000])
def test_an_array_that_was_cut_short_is_not_filled_up_with_zeros(
    tmp_path: Path,
    photos: list[Path],
    encoder: Encoder,
    monkeypatch: pytest.MonkeyPatch,
    keep: int,
) -> None:
    monkeypatch.setattr(feature_cache, "SAVE_EVERY", 8)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cache", photos, Encode(encoder, 3))
    (array,) = (tmp_path / "cache").rglob("features.npy")
    assert array.stat().st_size > keep
    os.truncate(array, keep)
    with pytest.raises(DataError, match="the feature cache is damaged .*; delete this folder"):
        build(tmp_path / "cache", photos, Encode(encoder))


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
    again = build(tmp_path / "cache", photos, Encode(encoder), views=2)
    assert again.unreadable == cache.unreadable


def test_a_photo_that_vanished_is_as_unreadable_as_any_other(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    photos[2].unlink()
    photos[4].unlink()
    photos[4].symlink_to(tmp_path / "gone.jpg")  # a listing of the folder shows it
    cache = build(tmp_path / "cache", photos, Encode(encoder), views=1)
    assert set(cache.unreadable) == {2, 4}


def test_a_worker_builds_the_same_cache(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    alone = build(tmp_path / "alone", photos, Encode(encoder))
    helped = build(tmp_path / "helped", photos, Encode(encoder), workers=1)
    np.testing.assert_array_equal(helped.features, alone.features)


def test_progress_ends_at_the_number_of_views(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    seen: list[tuple[int, int]] = []
    build(tmp_path / "cache", photos, Encode(encoder), progress=lambda *state: seen.append(state))
    assert seen[-1] == (33, 33)
    assert seen == sorted(seen)


@pytest.mark.parametrize("kind", ["a file", "below a file"])
def test_a_folder_that_cannot_be_made_ends_in_one_sentence(
    tmp_path: Path, photos: list[Path], encoder: Encoder, kind: str
) -> None:
    (tmp_path / "file").write_text("")
    root = tmp_path / "file" if kind == "a file" else tmp_path / "file" / "cache"
    with pytest.raises(DataError, match="cannot be written") as caught:
        build(root, photos, Encode(encoder))
    assert "\n" not in str(caught.value)


def test_the_disk_is_asked_for_all_of_the_space_before_anything_is_computed(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    # A memory map of a sparse file ends the whole process (SIGBUS) when the disk fills up later.
    class Interrupted(Exception):
        pass

    calls = 0

    def encode(batch: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise Interrupted
        # Of a size that no file system keeps beside its own records.
        return encoder.frozen_features(batch).repeat(1, 64, 1, 1)

    with pytest.raises(Interrupted):
        build(tmp_path / "cache", photos, encode)
    (array,) = (tmp_path / "cache").rglob("features.npy")
    assert array.stat().st_blocks * 512 >= array.stat().st_size


def test_the_dataset_takes_views_of_the_cache_by_seed_epoch_and_photo(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    photos[2].write_bytes(b"damaged")
    captioned = read_split(format="table", root=photos[0].parent, split="train").images
    cache = build(tmp_path / "cache", [photo.path for photo in captioned], Encode(encoder))
    captions = encode_captions(captioned, Vocabulary(tiny.WORDS), max_words=9)
    data = CaptionDataset(captioned, captions, transform(), seed=1, cache=cache)
    order = CaptionBatches(captions, batch_size=6, by="photo", seed=1)
    views: list[set[int]] = [set() for _ in captioned]
    reported: set[str] = set()
    for epoch in range(4):
        batches = list(load_batches(data, order, epoch))
        again = list(load_batches(data, order, epoch, workers=int(epoch == 0)))
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
    captioned = read_split(format="table", root=photos[0].parent, split="train").images
    cache = build(tmp_path / "cache", [photo.path for photo in captioned], Encode(encoder), views=1)
    captions = encode_captions(captioned, Vocabulary(tiny.WORDS), max_words=9)

    def inputs(epoch: int, min_area: float) -> torch.Tensor:
        data = CaptionDataset(
            captioned,
            captions,
            transform(),
            seed=1,
            cache=cache,
            cache_crop=None if min_area == 1 else FeatureCrop(min_area, flip=0.5),
        )
        return data[(epoch, range(6))].inputs.float()

    assert torch.equal(inputs(0, 1.0), inputs(1, 1.0))
    assert torch.equal(inputs(0, 0.6), inputs(0, 0.6))
    assert not torch.equal(inputs(0, 0.6), inputs(1, 0.6))
    assert not torch.equal(inputs(0, 0.6), inputs(0, 1.0))


def test_the_notes_say_which_cache_it_is(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    notes = json.loads((cache.folder / "progress.json").read_text())
    assert notes["done"] == 33
    assert notes["key"].startswith(cache.folder.name)


def test_photos_of_the_same_name_in_two_folders_are_two(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    copies = [Path(shutil.copy2(path, other)) for path in photos]
    first = build(tmp_path / "cache", photos, Encode(encoder), views=1)
    second = build(tmp_path / "cache", copies, Encode(encoder), views=1)
    assert first.folder != second.folder


OTHER_RUN = """
import shutil, sys
from pathlib import Path
from captioner.files import locked
folder, made = sys.argv[1:]
with locked(Path(folder) / ".lock", wait=False):
    print("locked", flush=True)
    sys.stdin.readline()
    for name in ("features.npy", "checksums.npy", "progress.json"):
        shutil.copy(made + "/" + name, folder)
"""


def test_a_cache_that_another_run_is_making_is_waited_for(
    tmp_path: Path, photos: list[Path], encoder: Encoder, capfd: pytest.CaptureFixture[str]
) -> None:
    made = build(tmp_path / "made", photos, Encode(encoder)).folder
    folder = tmp_path / "cache" / made.name
    folder.mkdir(parents=True)
    encode = Encode(encoder)
    found: list[FeatureCache] = []
    ours = threading.Thread(target=lambda: found.append(build(tmp_path / "cache", photos, encode)))
    command = [sys.executable, "-c", OTHER_RUN, str(folder), str(made)]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        ours.start()
        ours.join(timeout=0.5)
        assert ours.is_alive()
        assert not list(folder.glob("features.npy")), "nothing is reserved meanwhile"
        other.communicate("go on\n", timeout=30)
    ours.join(timeout=30)
    assert encode.calls == 0
    assert f"{folder}: waiting for another process" in capfd.readouterr().err
    assert (found[0].folder / "features.npy").read_bytes() == (made / "features.npy").read_bytes()


# ------------------------------------------------------------------------------- damaged values


def quarter_of_zeros(folder: Path) -> None:
    path = folder / "features.npy"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(bytes(path.stat().st_size // 4))


def flipped_bit(folder: Path) -> None:
    path = folder / "features.npy"
    data = bytearray(path.read_bytes())
    data[-1000] ^= 4
    path.write_bytes(data)


def no_checksum_file(folder: Path) -> None:
    (folder / "checksums.npy").write_bytes(b"not an array")


@pytest.mark.parametrize("damage", [quarter_of_zeros, flipped_bit, no_checksum_file])
def test_values_that_are_not_those_written_are_noticed(
    tmp_path: Path, photos: list[Path], encoder: Encoder, damage: Callable[[Path], None]
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    damage(cache.folder)
    with pytest.raises(DataError, match="the feature cache is damaged .*; delete this") as caught:
        build(tmp_path / "cache", photos, Encode(encoder))
    assert "\n" not in str(caught.value)
    assert str(cache.folder) in str(caught.value)


def test_damage_to_an_interrupted_build_is_noticed_before_it_goes_on(
    tmp_path: Path, photos: list[Path], encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feature_cache, "SAVE_EVERY", 8)
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cache", photos, Encode(encoder, 3))
    (array,) = (tmp_path / "cache").rglob("features.npy")
    with array.open("r+b") as file:
        file.seek(400)
        file.write(bytes(100))
    with pytest.raises(DataError, match="entries are not what was written"):
        build(tmp_path / "cache", photos, Encode(encoder))


def test_a_cache_without_checksums_gets_those_of_its_content(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    """As one that an earlier version made."""
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    (cache.folder / "checksums.npy").unlink()
    counting = Encode(encoder)
    again = build(tmp_path / "cache", photos, counting)
    assert counting.calls == 0
    np.testing.assert_array_equal(again.features, cache.features)
    flipped_bit(cache.folder)
    with pytest.raises(DataError, match="damaged"):
        build(tmp_path / "cache", photos, Encode(encoder))


@pytest.mark.parametrize(
    "content",
    [
        "",
        "nonsense",
        "[]",
        "3",
        "null",
        "{}",
        '{"done": "many", "unreadable": {}}',
        '{"done": true, "unreadable": {}}',
        '{"done": -3, "unreadable": {}}',
        '{"done": 34, "unreadable": {}}',
        '{"done": 33, "unreadable": []}',
        '{"done": 33, "unreadable": {"x": "gone"}}',
        '{"done": 33, "unreadable": {"1": 7}}',
        "[" * 100_000,
        "\ud800",
    ],
    ids=lambda content: content[:20],
)
def test_notes_of_nonsense_are_one_sentence(
    tmp_path: Path, photos: list[Path], encoder: Encoder, content: str
) -> None:
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    (cache.folder / "progress.json").write_bytes(content.encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match="the feature cache is damaged") as caught:
        build(tmp_path / "cache", photos, Encode(encoder))
    assert "\n" not in str(caught.value)


def test_remains_of_a_killed_build_are_removed(
    tmp_path: Path, photos: list[Path], encoder: Encoder
) -> None:
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path / "cache", photos, Encode(encoder, 1))
    (folder,) = (tmp_path / "cache").iterdir()
    (folder / ".0123456789abcdef.tmp").write_bytes(b"half")
    build(tmp_path / "cache", photos, Encode(encoder))
    old = folder / ".fedcba9876543210.tmp"
    old.touch()
    os.utime(old, (0, 0))
    build(tmp_path / "cache", photos, Encode(encoder))
    names = {path.name for path in folder.iterdir()}
    assert names == {"features.npy", "checksums.npy", "progress.json", ".lock"}


def test_a_photo_that_can_be_read_now_is_read(
    photos: list[Path], tmp_path: Path, encoder: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a HEIC photo, once its library is installed: the file is the same."""

    def lacks_a_library(path: Any) -> Any:
        if path == photos[4]:
            raise ImageError("needs a library")
        return open_image(path)

    monkeypatch.setattr(feature_cache, "open_image", lacks_a_library)
    cache = build(tmp_path / "cache", photos, Encode(encoder))
    assert cache.unreadable == {4: "needs a library"}
    assert build(tmp_path / "cache", photos, Encode(encoder)).unreadable == cache.unreadable
    monkeypatch.undo()
    again = build(tmp_path / "cache", photos, Encode(encoder))
    assert again.unreadable == {}
    plain = build(tmp_path / "other", photos, Encode(encoder))
    for view in range(3):
        torch.testing.assert_close(again.read(4, view), plain.read(4, view), rtol=1e-2, atol=1e-2)
    assert build(tmp_path / "cache", photos, Encode(encoder, stop_after=0)).unreadable == {}
