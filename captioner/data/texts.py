"""Captions without photos: several of each photo that is not at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from captioner.data.text_files import normalize_spaces, numbered_lines, quoted
from captioner.data.vocabulary import Vocabulary
from captioner.errors import DataError

FREQUENT = 5e-3  # share of all words above which a word is drawn less often than it comes


def read_texts(path: Path) -> list[list[str]]:
    """Captions by photo, from lines of ID, a tab and a caption.

    What stands behind a # in an id numbers the photo's captions, as in the files of Flickr30k.

    Raises:
        DataError: the file cannot be read, or a line is not such; the message names both.
    """
    found: dict[str, list[str]] = {}
    for number, line in numbered_lines(path):
        label, _, text = line.partition("\t")
        name = label.partition("#")[0].strip()
        if not (name and text.strip()):
            raise DataError(
                f"{path}, line {number}: expected an id, a tab and a caption, not {quoted(line)}"
            )
        found.setdefault(name, []).append(normalize_spaces(text))
    return list(found.values())


@dataclass(frozen=True)
class TextBatch:
    """Captions by falling length, each with words of other captions of its photo.

    cells: [N, L], those words. tokens: [N, T], the words read, from the start token on; targets:
    [N, T], the words to write, the end token last. lengths: [N], number of targets.
    """

    cells: Tensor
    tokens: Tensor
    targets: Tensor
    lengths: Tensor


class TextCaptions:
    """Batches drawn from (seed, step).

    Raises, when made:
        DataError: nothing can be learned from the captions.

    Words that a caption is to be written from come from the photo's other captions, so that there
    is nothing to copy; the rarer a word, the likelier it is to be among them (the subsampling of
    Mikolov et al., 2013, section 2.3).
    """

    def __init__(
        self,
        photos: list[list[str]],
        vocabulary: Vocabulary,
        *,
        max_words: int | None,
        seed: int,
        without: Iterable[str] = (),
    ) -> None:
        """without: captions that must not be learned from, as those of the validation photos."""
        self.seed = seed
        self.vocabulary = vocabulary
        self.without = {tuple(vocabulary.tokenizer.split(caption)) for caption in without}
        encoded = (self._encoded(photo, max_words) for photo in photos)
        self.photos = [captions for captions in encoded if len(captions) > 1]
        if not self.photos:
            raise DataError(
                "no photo of the captions without photos has two with words that the vocabulary "
                "knows; give others with text.file"
            )
        counts = Counter(word for photo in self.photos for caption in photo for word in caption)
        share = np.zeros(len(vocabulary))
        share[list(counts)] = np.array(list(counts.values())) / counts.total()
        self.weight = np.sqrt(FREQUENT / np.maximum(share, FREQUENT))
        self.weight[vocabulary.unknown] = 0.0

    def _encoded(self, photo: list[str], max_words: int | None) -> list[np.ndarray]:
        """Those of a photo's captions that know a word: each can be written from any other."""
        encoded = (
            np.array(self.vocabulary.encode(words[:max_words]), dtype=np.int64)
            for words in map(self.vocabulary.tokenizer.split, photo)
            if tuple(words) not in self.without
        )
        return [caption for caption in encoded if (caption != self.vocabulary.unknown).any()]

    def batch(self, step: int, *, size: int, cells: int) -> TextBatch:
        """`size` captions, each with `cells` words to be written from."""
        generator = np.random.default_rng((self.seed, step))
        drawn: list[tuple[np.ndarray, np.ndarray]] = []
        for _ in range(size):
            photo = self.photos[generator.integers(len(self.photos))]
            chosen = int(generator.integers(len(photo)))
            others = np.concatenate([c for index, c in enumerate(photo) if index != chosen])
            weight = self.weight[others]
            words = generator.choice(others, size=cells, p=weight / weight.sum())
            drawn.append((photo[chosen], words))
        drawn.sort(key=lambda pair: -len(pair[0]))
        lengths = torch.tensor([len(caption) + 1 for caption, _ in drawn])
        tokens = torch.zeros(size, int(lengths[0]), dtype=torch.long)
        targets = torch.zeros_like(tokens)
        tokens[:, 0] = self.vocabulary.start
        for row, (caption, _) in enumerate(drawn):
            written = torch.from_numpy(caption)
            tokens[row, 1 : len(written) + 1] = written
            targets[row, : len(written)] = written
            targets[row, len(written)] = self.vocabulary.end
        return TextBatch(
            torch.from_numpy(np.stack([words for _, words in drawn])), tokens, targets, lengths
        )
