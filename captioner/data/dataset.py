"""Batches of captions with their images, in an order that is a function of seed and epoch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from captioner.data.augmentation import colour_factors
from captioner.data.batch import Batch
from captioner.data.feature_cache import FeatureCache
from captioner.data.images import open_image
from captioner.data.splits import CaptionedImage
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.errors import ImageError
from captioner.runtime.draws import child_seeds, seed_of


@dataclass(frozen=True)
class EncodedCaptions:
    """C captions of a list of images as indices of words; captions without words are left out."""

    image_of: np.ndarray  # int64 [C], the image of each caption, rising
    targets: list[np.ndarray]  # for each caption the words to write, int64, the end token last
    lengths: np.ndarray  # int64 [C], number of targets

    def __len__(self) -> int:
        return len(self.targets)


def encode_captions(
    images: Sequence[CaptionedImage], vocabulary: Vocabulary, *, max_words: int | None = None
) -> EncodedCaptions:
    """Split and encode the captions of images, each cut to `max_words` words (None: not cut)."""
    encoded = [
        (image, [*vocabulary.encode(words[:max_words]), vocabulary.end])
        for image, captioned in enumerate(images)
        for words in map(vocabulary.tokenizer.split, captioned.captions)
        if words
    ]
    targets = [np.array(target, dtype=np.int64) for _, target in encoded]
    return EncodedCaptions(
        image_of=np.array([image for image, _ in encoded], dtype=np.int64),
        targets=targets,
        lengths=np.array([len(target) for target in targets], dtype=np.int64),
    )


@dataclass(eq=False)
class CaptionDataset(Dataset[Batch]):
    """Images with their captions as indices; an item is a whole batch.

    An entry of a batch is `caption + repeat * number of captions`, where `repeat` counts the views
    of an image that an epoch shows. The randomness of a view is a function of (seed, epoch, image,
    repeat), whatever the worker processes and wherever a run was resumed.
    """

    images: Sequence[CaptionedImage]
    captions: EncodedCaptions
    transform: ImageTransform
    _: KW_ONLY
    seed: int
    weights: np.ndarray | None = None  # float32 [C], in the loss; None weighs all captions alike
    cache: FeatureCache | None = None
    cache_crop: Callable[[Tensor, np.random.Generator], Tensor] | None = None

    def __getitem__(self, item: tuple[int, Sequence[int]]) -> Batch:
        """Return the batch of an (epoch, entries) pair."""
        epoch, entries = item
        repeats, chosen = np.divmod(np.asarray(entries, dtype=np.int64), len(self.captions))
        views = self.captions.image_of[chosen] + repeats * len(self.images)
        inputs: dict[int, Tensor] = {}
        colours: list[np.ndarray] = []
        unreadable: dict[str, str] = {}
        for view in np.unique(views).tolist():
            repeat, image = divmod(view, len(self.images))
            try:
                inputs[view], factors = self._read(image, epoch, repeat)
                colours += [] if factors is None else [factors]
            except ImageError as error:
                unreadable[str(self.images[image].path)] = str(error)
        order = np.argsort(-self.captions.lengths[chosen], kind="stable")
        order = order[np.isin(views[order], list(inputs))]  # captions of readable images
        chosen, views, repeats = chosen[order], views[order], repeats[order]
        lengths = self.captions.lengths[chosen]
        targets = torch.zeros(len(chosen), int(lengths.max(initial=0)), dtype=torch.long)
        for row, (caption, length) in enumerate(zip(chosen, lengths, strict=True)):
            targets[row, :length] = torch.from_numpy(self.captions.targets[caption])
        seed = torch.tensor(seed_of(self.seed, epoch))
        first = int(entries[0]) if len(entries) else -1  # an entry is in one batch of an epoch only
        read = np.array(list(inputs), dtype=np.int64)  # rising
        joined = default_collate([*inputs.values()]) if inputs else torch.zeros(0)  # shared memory
        pixels = joined.dtype == torch.uint8  # [B, H, W, 3]
        return Batch(
            inputs=joined.permute(0, 3, 1, 2) if pixels else joined,
            image_numbers=torch.from_numpy(read % len(self.images)),
            image_index=torch.from_numpy(np.searchsorted(read, views)),
            targets=targets,
            lengths=torch.from_numpy(lengths),
            words=float(lengths.sum()),
            captions=float(len(lengths)),
            weights=None if self.weights is None else torch.from_numpy(self.weights[chosen]),
            seeds=child_seeds(seed, torch.from_numpy(chosen + repeats * len(self.captions))),
            image_seeds=child_seeds(seed + 1, torch.from_numpy(read)),
            seed=seed_of(self.seed, epoch, first + 1),
            colours=torch.from_numpy(np.stack(colours)) if colours else None,
            mean_std=torch.from_numpy(np.stack([self.transform.mean, self.transform.std])),
            from_frozen=self.cache is not None,
            unreadable=list(unreadable.items()),
        )

    def _read(self, image: int, epoch: int, repeat: int) -> tuple[Tensor, np.ndarray | None]:
        """Return a view of an image, pixels or cached features [C, h, w], and `colour_factors`.

        Pixels are uint8 [H, W, 3], a quarter of the bytes of a network's input; those of
        `letterbox`, whose padding is no level, are normalised, float32 [3, H, W], and have their
        colours.
        """
        generator = np.random.default_rng((self.seed, epoch, image, repeat))
        if self.cache is not None:
            features = self.cache.read(image, int(generator.integers(self.cache.views)))
            if self.cache_crop is not None:
                features = self.cache_crop(features, generator)
            return features, None
        photo = open_image(self.images[image].path)
        if self.transform.resize == "letterbox":
            return self.transform(photo, generator)[0], None
        levels, _ = self.transform.levels(photo, generator)
        factors = colour_factors(self.transform.augmentation, generator)
        return torch.from_numpy(levels.copy()), factors


@dataclass(eq=False)
class CaptionBatches:
    """Batches of the entries of `CaptionDataset`; batch b of epoch e is f(seed, e, b).

    An epoch shows each image of a source of weight w about w times: with 0.5 a random half of them
    and in the next epoch the other half, with 2 each image in two random views.
    """

    captions: EncodedCaptions
    _: KW_ONLY
    batch_size: int
    by: Literal["length", "photo"]  # as `DataConfig.batch_by`
    seed: int
    source_of: np.ndarray | None = None  # int [images], source of each image; None is one source
    weights: Sequence[float] = (1.0,)

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """Return all batches of an epoch; every entry of the epoch is in exactly one."""
        captioned = np.unique(self.captions.image_of)
        sources = np.zeros_like(captioned) if self.source_of is None else self.source_of[captioned]
        views = np.zeros(captioned[-1] + 1, dtype=np.int64)
        for source, weight in enumerate(self.weights):
            images = captioned[sources == source]
            if len(images):
                views[images] = self._views(source, len(images), weight, epoch)
        views_of_captions = views[self.captions.image_of]
        repeats = range(views.max())
        found = [np.flatnonzero(views_of_captions > r) + r * len(self.captions) for r in repeats]
        divide = self._by_image if self.by == "photo" else self._by_length
        return divide(np.concatenate(found), np.random.default_rng((self.seed, epoch)))

    def share(self, entries: np.ndarray, process: int, processes: int) -> np.ndarray:
        """Return the entries of a batch that a process takes, perhaps none.

        The captions of a view stay together; the views of two processes differ by one at most.
        """
        if processes == 1:
            return entries
        repeats, captions = np.divmod(entries, len(self.captions))
        views = self.captions.image_of[captions] + repeats * (self.captions.image_of.max() + 1)
        places = {view: place for place, view in enumerate(dict.fromkeys(views.tolist()))}
        place = np.array([places[view] for view in views.tolist()])
        return entries[place * processes // len(places) == process]

    def _views(self, source: int, images: int, weight: float, epoch: int) -> np.ndarray:
        """Return how often an epoch shows each image of a source, int [images]."""
        # Shuffled passes are laid end to end, so that all images come equally often.
        first = round(epoch * weight * images)
        end = max(first + 1, round((epoch + 1) * weight * images))
        views = np.zeros(images, dtype=np.int64)
        for shuffle in range(first // images, (end - 1) // images + 1):
            # The spawn key tells it from the generators of batches and of views of images.
            key = np.random.SeedSequence((self.seed, source, shuffle), spawn_key=(1,))
            order = np.random.default_rng(key).permutation(images)
            start = shuffle * images
            views[order[max(0, first - start) : end - start]] += 1
        return views

    def _by_length(self, entries: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return batches of captions of one length, in random order."""
        shuffled = entries[generator.permutation(len(entries))]
        lengths = self.captions.lengths[shuffled % len(self.captions)]
        order = np.argsort(lengths, kind="stable")
        edges = np.flatnonzero(np.diff(lengths[order])) + 1
        batches = [
            group[first : first + self.batch_size]
            for group in np.split(shuffled[order], edges)
            for first in range(0, len(group), self.batch_size)
        ]
        return [batches[i] for i in generator.permutation(len(batches))]

    def _by_image(self, entries: np.ndarray, generator: np.random.Generator) -> list[np.ndarray]:
        """Return batches of whole images, with all captions of a view, in random order."""
        repeats, captions = np.divmod(entries, len(self.captions))
        # The captions of an image are neighbours, and repeats come one after another, so that a
        # view is a run of entries with the same image and repeat.
        images = self.captions.image_of[captions]
        groups = np.split(entries, np.flatnonzero(np.diff(images) | np.diff(repeats)) + 1)
        batches: list[np.ndarray] = []
        current: list[np.ndarray] = []
        size = 0
        for index in generator.permutation(len(groups)):
            if current and size + len(groups[index]) > self.batch_size:
                batches.append(np.concatenate(current))
                current, size = [], 0
            current.append(groups[index])
            size += len(groups[index])
        return [*batches, np.concatenate(current)]
