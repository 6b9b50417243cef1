"""A batch of captions with the images that they describe."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from captioner.data.vocabulary import Vocabulary
from captioner.runtime.draws import child_seeds


def pack_by_step(values: Tensor, lengths: Tensor) -> Tensor:
    """Lay out [N, T, ...] of N captions as [M, ...], step after step.

    Args:
        values: Padded at the end.
        lengths: int64 [N], falling, on the CPU (a GPU would be waited for): M counts real words
            only. Or their mask, bool [N, T], on the device of the values: the padding stays, M is
            N T, and no shape depends on data.
    """
    if lengths.dim() == 2:
        return values[:, : lengths.shape[1]].transpose(0, 1).flatten(0, 1)
    return pack_padded_sequence(values, lengths, batch_first=True).data


def unpack_by_step(values: Tensor, lengths: Tensor) -> Tensor:
    """Undo `pack_by_step`: [M, ...] to [N, T, ...], zero where a caption has ended."""
    if lengths.dim() == 2:
        by_caption = values.unflatten(0, lengths.shape[::-1]).transpose(0, 1)
        mask = lengths.view(*lengths.shape, *[1] * (by_caption.dim() - 2))
        return by_caption.masked_fill(~mask, 0)
    steps = lengths.new_ones(len(lengths), int(lengths.max()))
    batch_sizes = pack_padded_sequence(steps, lengths, batch_first=True).batch_sizes
    return pad_packed_sequence(PackedSequence(values, batch_sizes), batch_first=True)[0]


def word_mask(lengths: Tensor) -> Tensor:
    """Return bool [N, T], true for real words, of lengths or a mask as in `pack_by_step`."""
    if lengths.dim() == 2:
        return lengths
    return torch.arange(int(lengths.max())) < lengths.unsqueeze(1)


def recoloured(levels: Tensor, factors: Tensor) -> Tensor:
    """Return images with other brightness, contrast and saturation.

    These are the changes of Pillow's ImageEnhance one after another, but levels are cut off once.

    Args:
        levels: float32 [B, 3, H, W], from 0 to 255.
        factors: [B, 3], of `augmentation.colour_factors`.
    """
    brightness, contrast, saturation = factors.T[..., None, None, None]
    red, green, blue = levels.unbind(1)
    grey = (0.299 * red + 0.587 * green + 0.114 * blue).unsqueeze(1)  # as Pillow's
    levels = grey.lerp(levels, saturation)
    levels = grey.mean((2, 3), keepdim=True).lerp(levels, contrast)
    return (brightness * levels).clamp(0, 255)


@dataclass(frozen=True)
class Batch:
    """Captions sorted by falling length, and each image (or view of it) once.

    `image_numbers` and `lengths` stay on the CPU when the batch is moved to a device: they are only
    used for counting and as indices. For steps of fixed shapes, `pad_batch` pads it there.

    Args:
        inputs: Images [B, 3, H, W], or frozen features [B, C, h, w] from a cache. Images may be
            uint8 pixels, which `to` normalises on the device.
        image_numbers: int64 [B], indices of the images in the data set.
        image_index: int64 [N], row of `inputs` for each caption.
        targets: int64 [N, T], the words to write, the end token last, padded with zeros.
        lengths: int64 [N], number of targets; in a batch of fixed shape (`pad_batch`) their mask,
            bool [N, T].
        words: Number of words that losses are divided by: that of this batch, or the mean over the
            processes that share it, so that the mean of their losses is that of the whole batch.
        captions: Number of captions, likewise. In a batch of fixed shape both are tensors.
        weights: float32 [N], weights of the captions in the loss; None weighs all alike.
        seeds: int64 [N], seeds of random draws, each a function of (seed, epoch, caption).
        image_seeds: int64 [B], seeds of random draws for the images.
        seed: Seed of dropout, a function of (seed, epoch, entries).
        colours: float32 [B, 3], factors by which `to` changes the colours of pixels.
        mean_std: float32 [2, 3], the mean and standard deviation of pixels in `inputs`.
        from_frozen: Whether `inputs` are features of the encoder's frozen stages.
        unreadable: Files left out, each with the reason.
    """

    inputs: Tensor
    image_numbers: Tensor
    image_index: Tensor
    targets: Tensor
    lengths: Tensor
    words: float | Tensor
    captions: float | Tensor
    weights: Tensor | None = None
    seeds: Tensor | None = None
    image_seeds: Tensor | None = None
    seed: int = 0
    colours: Tensor | None = None
    mean_std: Tensor | None = None
    from_frozen: bool = False
    unreadable: list[tuple[str, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> Tensor:
        """int64 [N, T], the words read: the start token and all targets but the last."""
        return F.pad(self.targets[:, :-1], (1, 0), value=Vocabulary.start)

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device, inputs as floats (images in channels-last layout)."""
        moved = self._map(lambda value: value.to(device, non_blocking=True))
        inputs = moved.inputs
        if moved.mean_std is not None and inputs.dtype == torch.uint8:
            mean, std = moved.mean_std.view(2, 3, 1, 1)
            inputs = inputs.float()
            if moved.colours is not None:
                inputs = recoloured(inputs, moved.colours)
            inputs = inputs.div_(255).sub_(mean).div_(std)
        # Without a readable image, `inputs` is empty and has no layout.
        layout = torch.channels_last if inputs.dim() == 4 else torch.contiguous_format
        # float32, except in tests of exact equality
        inputs = inputs.to(torch.get_default_dtype()).contiguous(memory_format=layout)
        moved = replace(moved, inputs=inputs, colours=None, mean_std=None)
        return replace(moved, image_numbers=self.image_numbers, lengths=self.lengths)

    def repeated(self, times: int) -> Batch:
        """Return the batch with each caption `times` times in a row, with seeds of their own."""
        if times == 1:
            return self
        changed: dict[str, Any] = {
            name: value.repeat_interleave(times, 0)
            for name in ("image_index", "targets", "lengths", "weights")
            if (value := getattr(self, name)) is not None
        }
        if self.seeds is not None:
            number = torch.arange(times, device=self.seeds.device)
            changed["seeds"] = child_seeds(self.seeds.unsqueeze(1), number).flatten()
        return replace(self, words=times * self.words, captions=times * self.captions, **changed)

    def pin_memory(self) -> Batch:
        """Return the batch in page-locked memory (called by the DataLoader)."""
        return self._map(Tensor.pin_memory)

    def _map(self, function: Callable[[Tensor], Tensor]) -> Batch:
        """Return the batch with a function applied to each of its tensors."""
        tensors = ((name, value) for name, value in vars(self).items() if isinstance(value, Tensor))
        changed: dict[str, Any] = {name: function(value) for name, value in tensors}
        return replace(self, **changed)
