"""Begin with the weights of another model, also of another vocabulary; average models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from captioner.checkpoint import load_model, load_vocabulary, model_folder, read_weights
from captioner.config import ModelConfig
from captioner.data.vocabulary import SPECIAL_TOKENS, Vocabulary
from captioner.errors import CheckpointError, ConfigError
from captioner.log import logger
from captioner.models.model import CaptionModel

# Weights with a row for each word; the last layer's weight may be tied to the embedding.
EMBEDDING = "decoder.embedding.weight"
OUTPUT_WEIGHT, OUTPUT_BIAS = "decoder.vocabulary.weight", "decoder.vocabulary.bias"


def load_pretrained(
    model: CaptionModel, vocabulary: Vocabulary, folder: Path, *, seed: int = 0, only: str = ""
) -> None:
    """Fill a model that is to be trained with the weights of a verified folder.

    Weights of the same name and shape are taken; rows of the embedding and the output layer word by
    word. A new word's row is drawn around the mean of the folder's rarer half of words, with half
    their standard deviation; its output bias is their mean. A half-precision weight that is the
    rounding of the one already there leaves it: cached features stay those of the frozen stages.
    The log names the modules whose weights the folder lacks or has in another shape.

    Args:
        seed: Seed of the rows of new words.
        only: Take only weights whose names begin so, such as `encoder.`.
    """
    known = load_vocabulary(folder)
    own = {name: value for name, value in model.state_dict().items() if name.startswith(only)}
    stored = {n: value for n, value in read_weights(folder).items() if n.startswith(only)}
    if OUTPUT_WEIGHT not in stored and EMBEDDING in stored:  # tied there
        stored[OUTPUT_WEIGHT] = stored[EMBEDDING]
    elif {EMBEDDING, OUTPUT_WEIGHT} <= own.keys() & stored.keys() and (
        own[EMBEDDING].data_ptr() == own[OUTPUT_WEIGHT].data_ptr()
    ):
        del stored[EMBEDDING]  # of two tables where this model has one, the output layer's is taken
    rows = {token: row for row, token in enumerate(known.tokens)}
    index = torch.tensor([rows.get(token, -1) for token in vocabulary.tokens])
    for name in (EMBEDDING, OUTPUT_WEIGHT, OUTPUT_BIAS):
        if name in stored and len(stored[name]) == len(known):
            # Seeded again for each table, so that tied tables stay equal.
            stored[name] = _rows_of_words(stored[name], index, torch.Generator().manual_seed(seed))
    matching = [name for name in stored if name in own and own[name].shape == stored[name].shape]
    with torch.no_grad():
        for name in matching:
            if not torch.equal(own[name].to("cpu", stored[name].dtype), stored[name]):
                own[name].copy_(stored[name])
    taken = {own[name].data_ptr() for name in matching}  # tied weights are stored once
    left = [name for name, value in own.items() if value.data_ptr() not in taken]
    if lacks := [name for name in left if re.match(r"decoder\.(?!attention\.)", name)]:
        raise ConfigError(
            f"train.start_from: {folder} is of another architecture: it lacks {lacks[0]} "
            f"and {len(lacks) - 1} more weights of the decoder; leave the settings of decoder as "
            "that model has them (captioner finetune does), or use train.start_with encoder"
        )
    if unused := {name.rpartition(".")[0] for name in stored.keys() - own.keys()}:
        logger.warning(f"{folder}: its weights of {', '.join(sorted(unused))} are not used")
    if left:
        modules = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in left))
        logger.warning(f"{folder}: lacks the weights of {modules}, which begin as initialised")


def _rows_of_words(table: Tensor, index: Tensor, generator: torch.Generator) -> Tensor:
    """Return rows [V, ...] of a table [V', ...] by index; for -1, draw one like its rare words'."""
    rows: Tensor = table[index.clamp(min=0)].clone()
    rare = table[(len(table) + len(SPECIAL_TOKENS)) // 2 :].float()
    new = index < 0
    drawn = rare.mean(0).expand(int(new.sum()), *table.shape[1:]).clone()
    if table.dim() > 1 and len(rare) > 1:
        drawn += 0.5 * rare.std(0) * torch.randn(drawn.shape, generator=generator)
    rows[new] = drawn.to(table.dtype)
    return rows


# Mean cosine of two decoders' weight matrices: about 0 for models that began apart, which average
# to noise; the bundled soft and hard models, of one ancestor, have 0.96.
LEAST_ALIKE = 0.2


def average_models(models: Sequence[str | Path]) -> tuple[CaptionModel, ModelConfig, Vocabulary]:
    """Average models fine-tuned from one (Wortsman et al., 2022); the settings are the first's."""
    first, *others = map(model_folder, models)
    average, config, vocabulary = load_model(first)
    first_weights = average.state_dict()
    sums = {name: value.double() for name, value in first_weights.items()}
    for folder in others:
        model, _, other_vocabulary = load_model(folder)
        weights = model.state_dict()
        shapes, expected = ({n: value.shape for n, value in w.items()} for w in (weights, sums))
        if other_vocabulary.tokens != vocabulary.tokens or shapes != expected:
            raise CheckpointError(
                f"{folder}: is not a model like {first} (its weights differ in size, or its "
                "vocabulary); average models of one kind, fine-tuned from the same model"
            )
        cosines = [
            float(torch.cosine_similarity(value.flatten(), weights[name].flatten(), dim=0))
            for name, value in first_weights.items()
            if name.startswith("decoder.") and value.dim() > 1
        ]
        cosine = sum(cosines) / len(cosines)
        if cosine < LEAST_ALIKE:
            raise CheckpointError(
                f"{folder}: did not begin with the same model as {first} (the cosine of their "
                f"weights is {cosine:.2f}), and the average of such models writes noise; average "
                "models that were fine-tuned from one model"
            )
        for name, value in weights.items():
            sums[name] += value
    average.load_state_dict({name: value / len(models) for name, value in sums.items()})
    return average, config, vocabulary
