"""Training on several data sets at once: reading, weights, and the order of an epoch."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch

from captioner.config.settings import DataConfig, SourceConfig
from captioner.data.augmentation import Augmentation
from captioner.data.dataset import CaptionBatches, CaptionDataset, EncodedCaptions, encode_captions
from captioner.data.sources import SourceImages, captions_digest, read_sources
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary

VOCABULARY = Vocabulary(tiny.WORDS)


def table(folder: Path, **sizes: int) -> str:
    return str(tiny.draw_table(folder, **sizes))


@pytest.fixture
def two(tmp_path: Path) -> DataConfig:
    first = SourceConfig("first", "table", table(tmp_path / "a", train=6), loss_weight=0.5)
    second = SourceConfig("second", "table", table(tmp_path / "b", train=4), weight=2.0)
    return DataConfig(sources=(first, second))


def captions_of(images_of_sources: list[int], captions: int = 2) -> EncodedCaptions:
    image_of = np.repeat(np.arange(sum(images_of_sources)), captions)
    lengths = 3 + image_of % 2
    return EncodedCaptions(image_of, [np.zeros(n, dtype=np.int64) for n in lengths], lengths)


def batches(
    images_of_sources: list[int], weights: list[float], by: str = "photo", **changed: Any
) -> tuple[EncodedCaptions, CaptionBatches]:
    captions = captions_of(images_of_sources)
    source_of = np.repeat(np.arange(len(images_of_sources)), images_of_sources)
    settings: dict[str, Any] = {"batch_size": 8, "by": by, "seed": 5} | changed
    return captions, CaptionBatches(captions, source_of=source_of, weights=weights, **settings)


def views(captions: EncodedCaptions, entries: list[np.ndarray]) -> Counter[int]:
    """How often each image comes, and a check that all its captions come with it."""
    repeats, chosen = np.divmod(np.concatenate(entries), len(captions))
    keys = Counter(zip(captions.image_of[chosen].tolist(), repeats.tolist(), strict=True))
    assert set(keys.values()) == {2}
    assert len(set(np.concatenate(entries).tolist())) == len(np.concatenate(entries))
    counts = Counter(image for image, _ in keys)
    for image, count in counts.items():
        assert {repeat for other, repeat in keys if other == image} == set(range(count))
    return counts


def test_the_sources_are_joined_and_each_image_knows_its_own(two: DataConfig) -> None:
    data = read_sources(two)
    assert [image.source for image in data.training] == [0] * 6 + [1] * 4
    assert data.source_of.tolist() == [0] * 6 + [1] * 4
    assert [image.image_id for image in data.training] == [*range(6), *range(4)], "ids may clash"
    assert [(name, len(images)) for name, images in data.validation.items()] == [
        ("first", 3),
        ("second", 3),
    ]
    assert sum(len(image.captions) for image in data.training) == 20
    assert [source.weight for source in data.sources] == [1.0, 2.0]


def test_a_source_may_be_for_training_or_validation_alone(tmp_path: Path) -> None:
    root = table(tmp_path / "a")
    trained = SourceConfig("trained", "table", root, val_split=None)
    validated = SourceConfig("validated", "table", root, train_split=None)
    data = read_sources(DataConfig(sources=(trained, validated)), max_validation_images=2)
    assert {image.source for image in data.training} == {0}
    assert [(name, len(images)) for name, images in data.validation.items()] == [("validated", 2)]


def test_loss_weights_are_per_caption(two: DataConfig) -> None:
    data = read_sources(two)
    captions = encode_captions(data.training, VOCABULARY)
    weights = data.loss_weights(captions)
    assert weights.tolist() == [0.5] * 12 + [1.0] * 8
    assert weights.dtype == np.float32
    dataset = CaptionDataset(
        data.training, captions, ImageTransform(height_px=16, width_px=16), seed=1, weights=weights
    )
    batch = dataset[0, [0, 1, 18, 19]]
    sources = data.source_of[batch.image_numbers.numpy()][batch.image_index.numpy()]
    assert sorted(sources.tolist()) == [0, 0, 1, 1]
    assert batch.weights.tolist() == np.where(sources == 0, 0.5, 1.0).tolist()
    repeated = batch.repeated(3)
    assert torch.equal(repeated.tokens[::3], batch.tokens)
    assert repeated.inputs is batch.inputs


@pytest.mark.parametrize("by", ["photo", "length"])
def test_sources_of_weight_one_come_in_the_order_of_a_single_source(by: str) -> None:
    captions, joined = batches([7, 9], [1.0, 1.0], by)
    single = CaptionBatches(captions, batch_size=8, by=by, seed=5)  # type: ignore[arg-type]
    for epoch in range(3):
        for ours, theirs in zip(joined.epoch(epoch), single.epoch(epoch), strict=True):
            np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("by", ["photo", "length"])
def test_half_of_a_source_comes_in_one_epoch_and_the_other_half_in_the_next(by: str) -> None:
    captions, order = batches([11, 20], [1.0, 0.5], by)
    second = range(11, 31)
    halves = []
    for epoch in range(6):
        counts = views(captions, order.epoch(epoch))
        assert {counts[image] for image in range(11)} == {1}
        halves.append({image for image in second if counts[image]})
        assert len(halves[-1]) == 10
        assert max(counts.values()) == 1
    for epoch in (0, 2, 4):
        assert halves[epoch] | halves[epoch + 1] == set(second)
    assert halves[0] != halves[2]
    assert halves[0] != set(range(11, 21)), "a random half"


@pytest.mark.parametrize("weight", [0.1, 0.7, 2.0, 2.25])
def test_over_the_epochs_all_images_come_equally_often(weight: float) -> None:
    captions, order = batches([13, 10], [1.0, weight])
    total: Counter[int] = Counter()
    for epoch in range(40):
        counts = views(captions, order.epoch(epoch))
        assert sum(counts[image] for image in range(13, 23)) == pytest.approx(10 * weight, abs=1)
        total.update(counts)
    assert {total[image] for image in range(13, 23)} <= {int(40 * weight), round(40 * weight)}


@pytest.fixture
def augmented(two: DataConfig) -> tuple[SourceImages, CaptionDataset]:
    data = read_sources(two)
    augmentation = Augmentation(flip=0.5, min_area=0.5, colour=0.3)
    dataset = CaptionDataset(
        data.training,
        encode_captions(data.training, VOCABULARY),
        ImageTransform(height_px=16, width_px=24, augmentation=augmentation),
        seed=3,
    )
    return data, dataset


def test_the_views_of_an_image_in_an_epoch_differ_and_the_first_is_that_of_a_single_one(
    augmented: tuple[SourceImages, CaptionDataset],
) -> None:
    _, dataset = augmented
    caption, count = 13, len(dataset.captions)
    batch = dataset[2, [caption, caption + count, caption + 2 * count]]
    assert batch.image_numbers.tolist() == [6, 6, 6]
    assert batch.image_index.tolist() == [0, 1, 2]
    assert torch.equal(batch.targets[0], batch.targets[1])
    first, second, third = batch.inputs
    assert torch.equal(dataset[2, [caption]].inputs[0], first)
    assert torch.equal(dataset[2, [caption + count]].inputs[0], second)
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)


@pytest.mark.parametrize("by", ["photo", "length"])
def test_workers_and_resuming_in_mid_epoch_change_nothing(
    by: str, augmented: tuple[SourceImages, CaptionDataset]
) -> None:
    data, dataset = augmented
    order = CaptionBatches(
        dataset.captions,
        batch_size=5,
        by=by,  # type: ignore[arg-type]
        seed=9,
        source_of=data.source_of,
        weights=[source.weight for source in data.sources],
    )
    plain = list(tiny.load_epoch(dataset, order, 1))
    assert len(plain) == len(order.epoch(1)) > 4
    resumed = [*plain[:2], *tiny.load_epoch(dataset, order, 1, first=2, workers=2)]
    for one, other in zip(plain, resumed, strict=True):
        for name in ("inputs", "image_numbers", "image_index", "tokens", "targets", "lengths"):
            assert torch.equal(getattr(one, name), getattr(other, name)), name


def test_the_digest_of_captions_follows_sources_ids_and_texts_but_not_places(
    tmp_path: Path,
) -> None:
    def digest(folder: str, **sizes: int) -> str:
        root = tmp_path / folder
        path = str(root if root.exists() else table(root, **sizes))
        return captions_digest(read_sources(DataConfig("table", path)).training)

    assert digest("a") == digest("b")
    assert digest("a") != digest("c", train=11)
    changed = tmp_path / "b" / "captions.csv"
    changed.write_text(changed.read_text().replace("a disc", "a disk"))
    assert digest("b") != digest("a")


def test_only_training_captions_are_said_to_be_cut(tmp_path: Path, capsys) -> None:
    read_sources(DataConfig("table", table(tmp_path / "a", train=3, val=3), max_words=2))
    cut = [line for line in capsys.readouterr().err.splitlines() if "training cuts them" in line]
    assert [line.partition(":")[0] for line in cut] == ["train"]


def test_validating_on_training_images_is_reported(tmp_path: Path, capsys) -> None:
    read_sources(DataConfig("table", table(tmp_path / "a", train=5, val=2), val_split="train+val"))
    assert "5 of the validation photos are training photos" in capsys.readouterr().err
