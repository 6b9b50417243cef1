"""Batches of captions with their photos, in an order that is a function of seed and epoch alone."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from captioner.data.captioned import CaptionedImage
from captioner.data.feature_cache import FeatureCache
from captioner.data.feature_views import FeatureCrop
from captioner.data.transforms import ImageTransform, open_image
from captioner.data.vocabulary import Vocabulary, tokenize
from captioner.errors import ImageError

SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")  # that end a run; Windows has no SIGHUP


@dataclass(frozen=True)
class Batch:
    """Captions sorted by falling length, and each photo of theirs once.

    inputs: photos [B, 3, H, W], or frozen features [B, C, h, w] from a cache.
    photos: [B], which photos of the data set they are.
    image_index: [N], row of `inputs` for each caption.
    tokens: [N, T], the words read, from the start token on; targets: [N, T], the words to write,
        the end token last; both padded with zeros.
    lengths: [N], number of targets. weights: [N], of the captions in the loss; 1 on average.
    photos and lengths are counted and looked up, and stay on the CPU wherever the batch goes.
    unreadable: photos left out, each with the reason.
    """

    inputs: Tensor
    photos: Tensor
    image_index: Tensor
    tokens: Tensor
    targets: Tensor
    lengths: Tensor
    weights: Tensor | None = None
    from_frozen: bool = False
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lengths)

    def to(self, device: torch.device) -> Batch:
        moved = self._each(lambda value: value.to(device, non_blocking=True))
        moved = replace(moved, photos=self.photos, lengths=self.lengths)
        inputs = moved.inputs.float().contiguous(memory_format=_layout(self.inputs))
        return replace(moved, inputs=inputs)

    def repeated(self, times: int) -> Batch:
        """Every caption so many times, one after another; the photos once."""
        return replace(
            self,
            image_index=self.image_index.repeat_interleave(times),
            tokens=self.tokens.repeat_interleave(times, 0),
            targets=self.targets.repeat_interleave(times, 0),
            lengths=self.lengths.repeat_interleave(times),
            weights=None if self.weights is None else self.weights.repeat_interleave(times),
        )

    def pin_memory(self) -> Batch:
        return self._each(Tensor.pin_memory)

    def _each(self, change: Callable[[Tensor], Tensor]) -> Batch:
        changed: dict[str, Any] = {
            name: change(value) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **changed)


def _layout(inputs: Tensor) -> torch.memory_format:
    """Channels last for pictures; a batch of unreadable photos has none."""
    return torch.channels_last if inputs.dim() == 4 else torch.contiguous_format


class CaptionDataset(Dataset[Batch]):
    """Photos with their captions as indices; an item is a whole batch.

    Randomness of a photo is drawn from (seed, epoch, photo), so that it does not depend on worker
    processes, on the order of work or on where a run was resumed.
    """

    def __init__(
        self,
        photos: Sequence[CaptionedImage],
        vocabulary: Vocabulary,
        transform: ImageTransform,
        *,
        max_words: int | None,
        seed: int,
        cache: FeatureCache | None = None,
        cache_crop: FeatureCrop | None = None,
    ) -> None:
        self.photos = photos
        self.transform = transform
        self.seed = seed
        self.cache = cache
        self.cache_crop = cache_crop
        pairs = [
            (photo, [*vocabulary.encode(words[:max_words]), vocabulary.end])
            for photo, captioned in enumerate(photos)
            for words in map(tokenize, captioned.captions)
            if words
        ]
        self.photo_of = np.array([photo for photo, _ in pairs], dtype=np.int64)
        self.targets = [np.array(target, dtype=np.int64) for _, target in pairs]
        self.lengths = np.array([len(target) for target in self.targets], dtype=np.int64)
        self.weights: np.ndarray | None = None  # of each caption in the loss, where they differ
        self.start = vocabulary.start
        self.not_words = {vocabulary.pad, vocabulary.start, vocabulary.end, vocabulary.unknown}

    def __len__(self) -> int:
        """Number of captions."""
        return len(self.targets)

    def words_of_photos(self) -> list[np.ndarray]:
        """Of each photo the words that the vocabulary knows of its captions, each once."""
        words: list[set[int]] = [set() for _ in self.photos]
        for photo, target in zip(self.photo_of.tolist(), self.targets, strict=True):
            words[photo].update(target.tolist())
        return [np.array(sorted(found - self.not_words), dtype=np.int64) for found in words]

    def __getitem__(self, item: tuple[int, Sequence[int]]) -> Batch:
        """The captions of an (epoch, caption indices) pair."""
        epoch, captions = item
        chosen = np.asarray(captions, dtype=np.int64)
        inputs: dict[int, Tensor] = {}
        unreadable = []
        for photo in np.unique(self.photo_of[chosen]).tolist():
            try:
                inputs[photo] = self._photo(photo, epoch)
            except ImageError as error:
                unreadable.append((str(self.photos[photo].path), str(error)))
        chosen = chosen[np.isin(self.photo_of[chosen], list(inputs))]
        chosen = chosen[np.argsort(-self.lengths[chosen], kind="stable")]
        lengths = torch.from_numpy(self.lengths[chosen])
        targets = torch.zeros(len(chosen), int(lengths.max()) if len(chosen) else 0).long()
        for row, caption in enumerate(chosen):
            targets[row, : self.lengths[caption]] = torch.from_numpy(self.targets[caption])
        tokens = torch.cat([torch.full((len(chosen), 1), self.start), targets[:, :-1]], dim=1)
        row_of = {photo: row for row, photo in enumerate(inputs)}
        return Batch(
            inputs=torch.stack(list(inputs.values())) if inputs else torch.zeros(0),
            photos=torch.tensor(list(inputs), dtype=torch.long),
            image_index=torch.tensor(
                [row_of[photo] for photo in self.photo_of[chosen].tolist()], dtype=torch.long
            ),
            tokens=tokens,
            targets=targets,
            lengths=lengths,
            weights=None if self.weights is None else torch.from_numpy(self.weights[chosen]),
            from_frozen=self.cache is not None,
            unreadable=unreadable,
        )

    def _photo(self, photo: int, epoch: int) -> Tensor:
        generator = np.random.default_rng((self.seed, epoch, photo))
        if self.cache is not None:
            features = self.cache.read(photo, int(generator.integers(self.cache.views)))
            return features if self.cache_crop is None else self.cache_crop(features, generator)
        return self.transform(open_image(self.photos[photo].path), generator)[0]


class CaptionBatches:
    """Deterministic batches of caption indices; batch b of epoch e is f(seed, e, b).

    by="length": captions of one length a batch, as section 4.3 of the paper, batches in random
    order. by="photo": all captions of randomly drawn photos together, so that the encoder runs
    once a photo.
    """

    def __init__(
        self,
        photo_of: np.ndarray,
        lengths: np.ndarray,
        *,
        batch_size: int,
        by: Literal["length", "photo"],
        seed: int,
    ) -> None:
        self.photo_of = photo_of
        self.lengths = lengths
        self.batch_size = batch_size
        self.by = by
        self.seed = seed

    def epoch(self, epoch: int) -> list[np.ndarray]:
        """All batches of an epoch; every caption is in exactly one."""
        generator = np.random.default_rng((self.seed, epoch))
        if self.by == "photo":
            return self._by_photo(generator)
        return self._by_length(generator)

    def _by_length(self, generator: np.random.Generator) -> list[np.ndarray]:
        shuffled = generator.permutation(len(self.lengths))
        ordered = shuffled[np.argsort(self.lengths[shuffled], kind="stable")]
        edges = np.flatnonzero(np.diff(self.lengths[ordered])) + 1
        batches = [
            group[first : first + self.batch_size]
            for group in np.split(ordered, edges)
            for first in range(0, len(group), self.batch_size)
        ]
        return [batches[i] for i in generator.permutation(len(batches))]

    def _by_photo(self, generator: np.random.Generator) -> list[np.ndarray]:
        by_photo = np.argsort(self.photo_of, kind="stable")
        edges = np.flatnonzero(np.diff(self.photo_of[by_photo])) + 1
        groups = np.split(by_photo, edges)
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


def _leave_signals_to_the_main_process(worker: int) -> None:
    """A signal to the whole group, as a terminal sends, must not kill a worker under a step."""
    for name in SIGNALS:
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)


def load_batches(
    dataset: CaptionDataset,
    batches: CaptionBatches,
    epoch: int,
    *,
    first: int = 0,
    workers: int = 0,
    pin_memory: bool = False,
) -> Iterator[Batch]:
    """The batches of an epoch from number `first` on."""
    work = [(epoch, batch) for batch in batches.epoch(epoch)[first:]]
    return iter(
        DataLoader(
            dataset,
            batch_size=None,
            sampler=work,
            num_workers=workers,
            pin_memory=pin_memory,
            prefetch_factor=4 if workers else None,
            # Without one of its own, a loader draws from the generator that dropout draws from, and
            # a resumed run, which makes one loader more, would go another way.
            generator=torch.Generator(),
            worker_init_fn=_leave_signals_to_the_main_process,
        )
    )
