"""Agreement of an image's captions: CIDEr-D as a reward, and as weights of captions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from captioner.data.captioned import CaptionedImage
from captioner.data.dataset import EncodedCaptions
from captioner.data.tokenizer import Tokenizer
from captioner.data.vocabulary import END
from captioner.evaluation.cider import CiderD


def caption_reward(images: Sequence[CaptionedImage], tokenizer: Tokenizer) -> CiderD:
    """Return CIDEr-D against the images' captions, the end of each being a token of it."""
    return CiderD(
        [[[*tokenizer.split(caption), END] for caption in image.captions] for image in images]
    )


def consensus_weights(
    images: Sequence[CaptionedImage],
    captions: EncodedCaptions,
    tokenizer: Tokenizer,
    share: float,
) -> np.ndarray:
    """Return weights of captions that favour what an image's captions agree on.

    A caption weighs (1 - share) + share * r / (the mean r of the image's captions), where r is its
    CIDEr-D against the image's others; 1 where there are none. The weighted cross-entropy of Phan
    et al. (2017, section 3.2) has r itself.

    Args:
        share: From 0, all captions weigh alike, to 1.

    Returns:
        float32 [C].
    """
    reward = caption_reward(images, tokenizer)
    weights = np.ones(len(captions), dtype=np.float32)
    captions_of: dict[int, list[int]] = {}
    for caption, image in enumerate(captions.image_of.tolist()):
        captions_of.setdefault(image, []).append(caption)
    for image, members in captions_of.items():
        has_words = [bool(tokenizer.split(caption)) for caption in images[image].captions]
        agreement = reward.agreement(image)[has_words]
        if agreement.mean() > 0:
            weights[members] = 1 - share + share * agreement / agreement.mean()
    return weights
