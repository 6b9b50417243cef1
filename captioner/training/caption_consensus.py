"""What the captions of a photo agree on: CIDEr-D as a reward, and as weights of captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from captioner.data.captioned import CaptionedImage
from captioner.data.dataset import EncodedCaptions
from captioner.data.tokenizer import Tokenizer
from captioner.data.vocabulary import END
from captioner.evaluation.cider import CiderD


def caption_reward(images: Sequence[CaptionedImage], tokenizer: Tokenizer) -> CiderD:
    """With the data set's captions as references, the end of each being a token of it."""
    return CiderD(
        [[[*tokenizer.split(caption), END] for caption in image.captions] for image in images]
    )


def consensus_weights(
    images: Sequence[CaptionedImage],
    captions: EncodedCaptions,
    tokenizer: Tokenizer,
    share: float,
) -> np.ndarray:
    """Weights of a data set's captions: more for what a photo's captions agree on, float32.

    (1 - share) + share * r / (the mean r of the photo's captions), where r is a caption's CIDEr-D
    against the photo's others. The weighted cross-entropy of Phan et al. (2017, section 3.2) has r
    itself.
    """
    reward = caption_reward(images, tokenizer)
    weights = np.ones(len(captions), dtype=np.float32)
    by_image: dict[int, list[int]] = {}
    for caption, image in enumerate(captions.image_of.tolist()):
        by_image.setdefault(image, []).append(caption)
    for image, members in by_image.items():
        with_words = [bool(tokenizer.split(caption)) for caption in images[image].captions]
        agreement = reward.agreement(image)[with_words]
        if agreement.mean() > 0:
            weights[members] = 1 - share + share * agreement / agreement.mean()
    return weights
