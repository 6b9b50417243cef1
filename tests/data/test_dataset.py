"""Batches: every caption once, in an order that is a function of seed and epoch alone."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import tiny
import torch

from captioner.config import ResizeMode
from captioner.data.augmentation import Augmentation
from captioner.data.dataset import CaptionBatches, CaptionDataset, EncodedCaptions, encode_captions
from captioner.data.images import open_image
from captioner.data.splits import CaptionedImage
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Tokenizer, Vocabulary

tokenize = Tokenizer().split
MODES = ["photo", "length"]
VOCABULARY = Vocabulary(tiny.WORDS)
AUGMENTATION = Augmentation(flip=0.5, min_area=0.5, colour=0.3)


def transform(
    augmentation: Augmentation | None = AUGMENTATION, resize: ResizeMode = "squash"
) -> ImageTransform:
    return ImageTransform(
        height_px=16,
        width_px=24,
        resize=resize,
        mean=(0.4, 0.5, 0.3),
        std=(0.2, 0.3, 0.25),
        augmentation=augmentation,
    )


def dataset(photos: list[CaptionedImage], *, seed: int = 3, augment: bool = True) -> CaptionDataset:
    captions = encode_captions(photos, VOCABULARY)
    return CaptionDataset(photos, captions, transform(AUGMENTATION if augment else None), seed=seed)


@pytest.fixture(scope="session")
def photos(drawn_photos: Path) -> list[CaptionedImage]:
    return tiny.read_split(format="table", root=drawn_photos, split="train").images


@pytest.fixture
def breakable(tmp_path: Path) -> list[CaptionedImage]:
    """Photos that a test may break."""
    return tiny.read_split(format="table", root=tiny.draw_table(tmp_path), split="train").images


def made_up(photos: int = 60, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Photo and length of made-up captions, 0 to 7 a photo."""
    generator = np.random.default_rng(seed)
    photo_of = np.repeat(np.arange(photos), generator.integers(0, 8, photos))
    return photo_of, generator.integers(2, 12, len(photo_of))


def batches(by: str, *, size: int = 16, seed: int = 1, captions: int = 0) -> CaptionBatches:
    return CaptionBatches(encoded(*made_up(seed=captions)), batch_size=size, by=by, seed=seed)  # type: ignore[arg-type]


def encoded(image_of: np.ndarray, lengths: np.ndarray) -> EncodedCaptions:
    return EncodedCaptions(image_of, [np.zeros(length) for length in lengths], lengths)


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return [b.tolist() for b in one] == [b.tolist() for b in other]


@pytest.mark.parametrize("by", MODES)
@pytest.mark.parametrize("size", [1, 5, 16, 10_000])
def test_every_caption_is_in_exactly_one_batch_of_an_epoch(by: str, size: int) -> None:
    photo_of, _ = made_up()
    for epoch in range(3):
        found = np.concatenate(batches(by, size=size).epoch(epoch))
        assert sorted(found.tolist()) == list(range(len(photo_of)))


@pytest.mark.parametrize("by", MODES)
def test_the_order_is_a_function_of_seed_and_epoch_alone(by: str) -> None:
    np.random.seed(0)
    before = np.random.get_state()[1].tolist(), torch.get_rng_state()
    first = batches(by).epoch(0)
    assert np.random.get_state()[1].tolist() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    np.random.seed(1)
    assert same(batches(by).epoch(0), first)
    used = batches(by)
    for epoch in (2, 1, 0):
        last = used.epoch(epoch)
    assert same(last, first), "not of the epochs that were asked for before"
    assert not same(batches(by).epoch(1), first)
    assert not same(batches(by, seed=2).epoch(0), first)


def test_batches_by_length_have_one_length_and_are_full_but_for_the_last_of_each() -> None:
    _, lengths = made_up()
    found = batches("length", size=7).epoch(0)
    sizes: dict[int, list[int]] = {}
    for batch in found:
        (length,) = set(lengths[batch].tolist())
        sizes.setdefault(length, []).append(len(batch))
    for length, counts in sizes.items():
        total = int((lengths == length).sum())
        assert sorted(counts, reverse=True) == ([7] * (total // 7) + [total % 7] * bool(total % 7))


def test_batches_by_photo_keep_the_captions_of_a_photo_together() -> None:
    photo_of, _ = made_up()
    found = batches("photo", size=16).epoch(0)
    at = Counter(photo for batch in found for photo in set(photo_of[batch].tolist()))
    assert set(at.values()) == {1}
    assert all(len(batch) <= 16 for batch in found)
    assert {b[0] for b in found} != {b[0] for b in batches("photo", size=16).epoch(1)}


def test_an_item_is_the_captions_as_indices_and_their_photos_once(
    photos: list[CaptionedImage],
) -> None:
    data = dataset(photos, augment=False)
    chosen = [7, 2, 3, 0, 6]
    batch = data[0, chosen]
    captions = [(n, text) for n, photo in enumerate(photos) for text in photo.captions]
    expected = sorted((captions[c] for c in chosen), key=lambda pair: -len(tokenize(pair[1])))
    assert len(batch) == 5
    on_device = batch.to(torch.device("cpu"))
    assert batch.inputs.dtype == torch.uint8  # a quarter of what is normalised on the device
    assert batch.inputs.shape == (3, 3, 16, 24)  # captions 2 and 3, 6 and 7 are of one photo each
    assert batch.lengths.tolist() == [len(tokenize(text)) + 1 for _, text in expected]
    assert batch.unreadable == []
    assert not batch.from_frozen
    for row, (photo, text) in enumerate(expected):
        length = int(batch.lengths[row])
        words = VOCABULARY.encode(tokenize(text))
        assert batch.targets[row].tolist()[:length] == [*words, VOCABULARY.end]
        assert batch.tokens[row].tolist()[:length] == [VOCABULARY.start, *words]
        assert not batch.targets[row, length:].any()
        plain = transform()(open_image(photos[photo].path))[0]
        assert torch.equal(on_device.inputs[batch.image_index[row]], plain)


@pytest.mark.parametrize("resize", ["squash", "crop", "letterbox"])
def test_training_reads_a_photo_as_captioning_does(
    photos: list[CaptionedImage], resize: ResizeMode
) -> None:
    for augmentation, rounded in ((None, 0), (AUGMENTATION, 0.51 / 255 / 0.2)):
        reading = transform(augmentation, resize)
        data = CaptionDataset(photos, encode_captions(photos, VOCABULARY), reading, seed=3)
        batch = data[0, [0, 2]].to(torch.device("cpu"))
        for image, found in zip(batch.image_numbers.tolist(), batch.inputs, strict=True):
            photo = open_image(photos[image].path)
            expected, _ = reading(photo, np.random.default_rng((3, 0, image, 0)))
            torch.testing.assert_close(found, expected, rtol=0, atol=rounded)


def test_long_captions_are_cut_and_those_without_words_left_out() -> None:
    texts = [("a red disc", "...", ""), ("!!!",), (), ("the square",)]
    images = [CaptionedImage(Path(f"{n}.jpg"), captions, n) for n, captions in enumerate(texts)]
    whole, cut = (encode_captions(images, VOCABULARY, max_words=most) for most in (25, 2))
    assert whole.image_of.tolist() == cut.image_of.tolist() == [0, 3]
    assert whole.lengths.tolist() == [4, 3]
    assert cut.lengths.tolist() == [3, 3]
    assert [target[-1] for target in cut.targets] == [VOCABULARY.end] * 2


def test_a_photo_s_view_depends_on_seed_epoch_and_photo_alone(photos: list[CaptionedImage]) -> None:
    data = dataset(photos)

    def view(data: CaptionDataset, epoch: int, captions: list[int], row: int) -> torch.Tensor:
        return data[epoch, captions].to(torch.device("cpu")).inputs[row]

    alone = view(data, 1, [4], 0)  # the captions 4 and 5 are of photo 2
    assert torch.equal(view(data, 1, [0, 1, 2, 4, 9], 2), alone)
    assert torch.equal(view(data, 1, [5], 0), alone)
    assert torch.equal(view(dataset(photos), 1, [4], 0), alone)
    assert not torch.equal(view(data, 2, [4], 0), alone)
    assert not torch.equal(view(dataset(photos, seed=4), 1, [4], 0), alone)


def test_an_unreadable_photo_is_reported_and_its_captions_are_left_out(
    breakable: list[CaptionedImage],
) -> None:
    breakable[1].path.write_bytes(b"no photo")
    breakable[3].path.unlink()
    data = dataset(breakable, augment=False)
    whole = data[0, range(len(data.captions))]
    assert [path for path, _ in whole.unreadable] == [str(breakable[n].path) for n in (1, 3)]
    assert whole.unreadable[1][1] == "no such file"
    assert len(whole) == len(data.captions) - 4
    assert len(whole.inputs) == len(breakable) - 2
    good = [c for c in range(len(data.captions)) if data.captions.image_of[c] not in (1, 3)]
    expected = data[0, good]
    for name in ("inputs", "image_index", "tokens", "targets", "lengths"):
        assert torch.equal(getattr(whole, name), getattr(expected, name))


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_leaves_the_generator_of_dropout_alone(
    photos: list[CaptionedImage], workers: int
) -> None:
    # A run resumed in mid-epoch begins to load once more often than one that was not interrupted,
    # so if that drew a number, all dropout after it would differ.
    data = dataset(photos)
    order = CaptionBatches(data.captions, batch_size=5, by="photo", seed=9)
    before = torch.get_rng_state()
    next(tiny.load_epoch(data, order, 0, workers=workers))
    assert torch.equal(torch.get_rng_state(), before)
