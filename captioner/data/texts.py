"""Captions without images, several for each image, to learn language from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from captioner.data.text_files import normalize_spaces, numbered_lines, quoted
from captioner.data.vocabulary import Vocabulary
from captioner.errors import DataError
from captioner.runtime.draws import child_seeds, seed_of

FREQUENT = 5e-3  # share of all words above which a word is drawn less often than it occurs


def read_texts(path: Path) -> list[list[str]]:
    """Read captions, grouped by image, from lines of an id, a tab and a caption.

    Whatever follows a # in an id numbers the captions of an image, as in the files of Flickr30k.

    Raises:
        DataError: The file cannot be read, or a line has another form; the message names both.
    """
    captions: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        label, _, text = line.partition("\t")
        image = label.partition("#")[0].strip()
        if not (image and text.strip()):
            raise DataError(
                f"{path}, line {number}: expected an id, a tab and a caption, not {quoted(line)}"
            )
        captions.setdefault(image, []).append(normalize_spaces(text))
    return list(captions.values())


@dataclass(frozen=True)
class TextBatch:
    """Captions by falling length, each with words of other captions of its image.

    Args:
        cells: int64 [N, L], those words.
        targets: int64 [N, T], the words to write, the end token last.
        lengths: int64 [N], number of targets.
        seeds: int64 [N], seeds of random draws, each a function of (seed, step, caption).
    """

    cells: Tensor
    targets: Tensor
    lengths: Tensor
    seeds: Tensor

    def share(self, process: int, processes: int) -> TextBatch:
        """Return every `processes`-th caption from number `process` on, perhaps none."""
        return TextBatch(*(value[process::processes] for value in vars(self).values()))


class TextCaptions:
    """Batches of captions without images; a batch is a function of (seed, step).

    The words that a caption is to be written from come from the image's other captions, so that
    there is nothing to copy; the rarer a word, the likelier it is drawn (the subsampling of Mikolov
    et al., 2013, section 2.3).

    Args:
        max_words: Captions are cut to this many words; None cuts none.
        without: Captions that must not be learned from, as those of the validation images.

    Raises:
        DataError: Nothing can be learned from the captions.
    """

    def __init__(
        self,
        images: list[list[str]],
        vocabulary: Vocabulary,
        *,
        max_words: int | None,
        seed: int,
        without: Iterable[str] = (),
    ) -> None:
        self.seed = seed
        self.vocabulary = vocabulary
        split = vocabulary.tokenizer.split
        self.without = {tuple(split(caption)) for caption in without}
        encoded = (self._encode(captions, max_words) for captions in images)
        self.images = [captions for captions in encoded if len(captions) > 1]
        if not self.images:
            raise DataError(
                "no photo of the captions without photos has two with words that the vocabulary "
                "knows; give others with text.file"
            )
        counts = Counter(word for captions in self.images for words in captions for word in words)
        share = np.zeros(len(vocabulary))
        share[list(counts)] = np.array(list(counts.values())) / counts.total()
        self.weight = np.sqrt(FREQUENT / np.maximum(share, FREQUENT))
        self.weight[vocabulary.unknown] = 0.0

    def _encode(self, captions: list[str], max_words: int | None) -> list[np.ndarray]:
        """Return the encoded captions of an image that have a known word, cut to `max_words`."""
        encoded = (
            np.array(self.vocabulary.encode(words[:max_words]), dtype=np.int64)
            for words in map(self.vocabulary.tokenizer.split, captions)
            if tuple(words) not in self.without
        )
        return [caption for caption in encoded if (caption != self.vocabulary.unknown).any()]

    def batch(self, step: int, *, size: int, cells: int) -> TextBatch:
        """Draw `size` captions, each with `cells` words to be written from."""
        generator = np.random.default_rng((self.seed, step))
        drawn: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(size):
            captions = self.images[generator.integers(len(self.images))]
            chosen = int(generator.integers(len(captions)))
            others = np.concatenate([c for index, c in enumerate(captions) if index != chosen])
            weight = self.weight[others]
            words = generator.choice(others, size=cells, p=weight / weight.sum())
            drawn.append((captions[chosen], words))
        drawn.sort(key=lambda pair: -len(pair[0]))
        end = self.vocabulary.end
        targets = [torch.from_numpy(np.append(caption, end)) for caption, _ in drawn]
        return TextBatch(
            torch.from_numpy(np.stack([words for _, words in drawn])),
            pad_sequence(targets, batch_first=True),
            torch.tensor([len(target) for target in targets]),
            child_seeds(torch.tensor(seed_of(self.seed, step)), torch.arange(size)),
        )
