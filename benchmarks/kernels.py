"""Count the kernels that Python starts for a training step and for a search.

A GPU waits for each of them.

    python -m benchmarks.kernels

Counted is what PyTorch dispatches on the CPU, views and allocations apart. A GPU's libraries split
or join some, and its AdamW updates many weights at once, as the fused one does here. Steps are of
32 captions of 20 words and 32 images of 64 pixels, with the network of the recipe flickr8k_soft.
Searches are of 20 words for 32 images, with 5 beams, after the encoder.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from captioner.config.recipes import read_recipe
from captioner.config.settings import Config
from captioner.data.batch import Batch
from captioner.data.vocabulary import Vocabulary
from captioner.generation import SearchOptions, search
from captioner.models.backbones.sources import fold_frozen_stages
from captioner.models.build import build_model
from captioner.runtime.cuda_graphs import GraphCache
from captioner.training.capture import FixedShapeStep
from captioner.training.cross_entropy import CrossEntropyTask
from captioner.training.optimizer import build_optimizer
from captioner.training.reinforce import Reinforce
from captioner.training.step import training_step
from captioner.types import Grid

CAPTIONS, WORDS, VOCABULARY = 32, 20, 1000
WAYS = ("packed", "padded", "graphs")
CPU = torch.device("cpu")
StepKind: TypeAlias = Literal["graphs", "inductor", "off"]


class KernelCount(TorchDispatchMode):
    """Context that counts the operations that compute something.

    Attributes:
        count: Their number so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        returns = func._schema.returns
        is_view = bool(returns) and all(
            value.alias_info is not None and not value.alias_info.is_write for value in returns
        )
        allocates = func._schema.name.startswith(("aten::empty", "aten::new_empty", "aten::detach"))
        self.count += not (is_view or allocates)
        return func(*args, **(kwargs or {}))


class RecordedOnce(GraphCache):
    """Functions that were called once are not called again, as where a graph is replayed."""

    def __init__(self) -> None:
        super().__init__(record=False)
        self.record, self.replays = True, 0
        self.results: dict[object, Any] = {}

    def run(self, key: object, function: Callable[[], Any], *, after: object = None) -> Any:
        """Return the function's result of its first call; count the others as one launch."""
        if key not in self.results:
            self.results[key] = function()
        else:
            self.replays += 1
        return self.results[key]


def config_of(select: str) -> Config:
    """Return the recipe flickr8k_soft, with `select` attention, of 64 pixels."""
    config = read_recipe("flickr8k_soft")
    preprocess = replace(config.preprocess, height_px=64, width_px=64)
    attention = replace(config.attention, select=select)
    return replace(config, preprocess=preprocess, attention=attention)


def made_up_batch(
    lengths: Tensor, *, images: int, size_px: int, vocabulary: int = VOCABULARY
) -> Batch:
    """Return noise: square images, and captions of these lengths, which fall."""
    captions, words = len(lengths), int(lengths[0])
    targets = torch.randint(4, vocabulary, (captions, words))
    targets[torch.arange(words) >= lengths.unsqueeze(1)] = 0
    return Batch(
        inputs=torch.rand(images, 3, size_px, size_px),
        image_numbers=torch.arange(images),
        image_index=torch.arange(captions) % images,
        targets=targets,
        lengths=lengths,
        words=float(lengths.sum()),
        captions=float(captions),
        seeds=torch.arange(captions),
        image_seeds=torch.arange(images),
    )


def build_step(
    config: Config,
    vocabulary: int,
    kind: StepKind | None,
    *,
    captions: int,
    device: torch.device = CPU,
    autocast: AbstractContextManager[object] | None = None,
) -> Any:
    """Return a training step with random weights, in fixed shapes unless `kind` is None."""
    torch.manual_seed(1)
    model = build_model(config, vocabulary, pretrained=False).to(memory_format=torch.channels_last)
    reinforce = Reinforce(config.hard) if config.attention.select == "hard" else None
    task = CrossEntropyTask(model, config.loss, reinforce=reinforce).to(device).train()
    fold_frozen_stages(model.encoder)
    options: dict[str, Any] = {
        "optimizer": build_optimizer(task, config.optim, on_device=kind is not None),
        "clip_norm": config.optim.clip_norm,
        "autocast": autocast or nullcontext(),
        "device": device,
    }
    if kind is None:
        return partial(training_step, task, **options)
    return FixedShapeStep(task, **options, kind=kind, captions=captions, longest=WORDS)


def kernels_of_a_step(select: str, way: str) -> int:
    """Return the kernels that Python starts in the second step of a run.

    Args:
        select: `soft` or `hard`.
        way: `packed` is the step without padding, `padded` the one of fixed shapes computed kernel
            by kernel, `graphs` the same where each graph counts as one.
    """
    kind: StepKind | None = None if way == "packed" else "off"
    step = build_step(config_of(select), VOCABULARY, kind, captions=CAPTIONS)
    recorded = RecordedOnce()
    if way == "graphs":
        step.graphs = step.updates = recorded
    lengths = torch.linspace(WORDS, 5, CAPTIONS).long()
    batch = made_up_batch(lengths, images=CAPTIONS, size_px=64)
    step([batch], learning_rate_factor=1.0)
    with KernelCount() as counted:
        step([batch], learning_rate_factor=1.0)
    return counted.count + recorded.replays


def kernels_of_a_search(select: str, way: str, words: int = WORDS) -> int:
    """Return the kernels that Python starts in the second search of a model.

    Args:
        select: `soft` or `hard`.
        way: `packed` is the search that images leave when they are done, `padded` the one of fixed
            shapes computed kernel by kernel, `graphs` the same where each graph counts as one.
    """
    config = config_of(select)
    torch.manual_seed(1)
    model = build_model(config, VOCABULARY, pretrained=False).eval()
    with torch.no_grad():
        model.decoder.vocabulary.bias[Vocabulary.end] = -100.0
    grid = Grid(torch.rand(CAPTIONS, 4, model.encoder.dim), 2, 2)
    recorded = RecordedOnce()
    graphs = {"packed": None, "padded": GraphCache(record=False), "graphs": recorded}[way]
    options = SearchOptions(beam_size=5, max_words=words)
    search(model.decoder, grid, options, graphs)
    with KernelCount() as counted:
        search(model.decoder, grid, options, graphs)
    return counted.count + recorded.replays


def kernels_of_a_word(select: str, way: str) -> int:
    """Return the kernels that the last word of a search takes."""
    fewer, more = (kernels_of_a_search(select, way, words) for words in (WORDS - 1, WORDS))
    return more - fewer


def main() -> None:
    print("| | " + " | ".join(WAYS) + " |\n| --- |" + " --- |" * len(WAYS))
    for select in ("soft", "hard"):
        for name, count in (("step", kernels_of_a_step), ("search", kernels_of_a_search)):
            counts = [count(select, way) for way in WAYS]
            print(f"| {select}, {name} | " + " | ".join(map(str, counts)) + " |", flush=True)
        words = [kernels_of_a_word(select, way) for way in WAYS[:2]]
        print(f"| {select}, a word of the search | {words[0]} | {words[1]} | |", flush=True)


if __name__ == "__main__":
    main()
