"""Image in, Caption out: the Python interface that the commands and the server use."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from captioner.checkpoint import file_sums, model_folder
from captioner.checkpoint_writer import check_absent, copy_model, save_model
from captioner.config import HardAttentionMode, ModelConfig
from captioner.data.images import ImageInput, as_list, network_input
from captioner.data.transforms import ImageTransform
from captioner.data.vocabulary import Vocabulary
from captioner.engines import Engine, EngineName, Precision, open_engine
from captioner.errors import ConfigError
from captioner.generation import Hypothesis, SearchOptions, force_decode, sample, search
from captioner.generation.arrays import to_numpy
from captioner.generation.confidence import CALIBRATOR, Calibrator
from captioner.log import logger
from captioner.runtime.device import choose_device
from captioner.runtime.parallel import prefetch
from captioner.types import Geometry, Grid, hard_attention_mode
from captioner.visualization import Caption

if TYPE_CHECKING:
    from captioner.data.splits import CaptionedImage
    from captioner.evaluation.evaluate import Evaluation
    from captioner.models.model import CaptionModel

_RANDOM_NUMBERS = threading.Lock()  # held where an engine's random numbers are seeded and drawn


class Captioner:
    """A trained model with its vocabulary, preprocessing and search settings.

    The model given is copied and left as it is; the copy can no longer be trained.

    >>> captioner = Captioner.from_pretrained()  # doctest: +SKIP
    >>> captioner.caption("photo.jpg").text  # doctest: +SKIP
    'two dogs run through the snow'

    Args:
        model: The model, or the folder that `engine` has loaded it from.
        calibrator: Gives captions their confidence.
        engine: What computes; None is PyTorch on the CPU.
    """

    def __init__(
        self,
        model: CaptionModel | Path,
        config: ModelConfig,
        vocabulary: Vocabulary,
        calibrator: Calibrator | None = None,
        engine: Engine | None = None,
    ) -> None:
        if engine is None:
            from captioner.engines.pytorch import TorchEngine

            assert not isinstance(model, Path)  # a folder comes with its engine
            engine = TorchEngine(model, choose_device("cpu"))
        self.engine, self._saved = engine, model
        self.device: Any = engine.device  # a `torch.device`, or without PyTorch of type `cpu`
        self.dtype: Any = engine.dtype  # of the encoder, in PyTorch or NumPy
        self.config, self.vocabulary, self.calibrator = config, vocabulary, calibrator
        self.transform = ImageTransform(**vars(config.preprocess))

    @property
    def model(self) -> CaptionModel:
        """The model in PyTorch, a copy for inference; a ConfigError says that there is none.

        Its batch norms are folded. `save_pretrained` does not write changes of it; to change and
        save a model, begin with `captioner.checkpoint.load_model`.
        """
        model: CaptionModel | None = getattr(self.engine, "model", None)
        if model is None:
            raise ConfigError(
                "engine: runtime has no model in PyTorch; load it with engine='torch'"
            )
        return model

    def in_torch(self) -> Captioner:
        """Return this captioner if it computes with PyTorch, else its model loaded into PyTorch."""
        if self.engine.name == "torch" or not isinstance(self._saved, Path):
            return self
        return Captioner.from_pretrained(self._saved, device="cpu", engine="torch")

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path = "soft",
        *,
        device: str = "auto",
        precision: Precision = "float32",
        engine: EngineName = "auto",
    ) -> Captioner:
        """Load a bundled model by its name, or a model folder (or a run's best) by its path.

        A string that names a bundled model is that model, even where a folder has the same name;
        a Path is a path, where there is one.

        Args:
            model: Name or path.
            device: auto, cpu, cuda or cuda:N.
            precision: Number format of the encoder, which does most of the work. In bfloat16 about
                one caption in five differs; whether it is faster depends on the processor.
            engine: `torch` is PyTorch; `runtime` computes on a CPU with the graphs in the model's
                folder and does not import PyTorch; `auto` takes the runtime where it can.

        Raises:
            CaptionerError: There is no such model, device, precision or engine; the model is
                damaged; or PyTorch is needed and not installed.
        """
        folder = model_folder(model)
        chosen, config, vocabulary = open_engine(
            folder, engine=engine, device=device, precision=precision
        )
        calibrator = None
        if CALIBRATOR in file_sums(folder):
            calibrator = Calibrator.from_folder(folder)
        return cls(folder, config, vocabulary, calibrator, chosen)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the loaded folder, or the constructor's model, to a folder that does not exist."""
        folder = Path(folder)
        check_absent(folder)
        if isinstance(self._saved, Path):
            copy_model(self._saved, folder)
            return
        extra = self.calibrator.to_files() if self.calibrator else None
        card = "# A captioner model\n"
        save_model(folder, self._saved, self.config, self.vocabulary, card=card, extra_files=extra)

    def caption(self, image: ImageInput, **settings: Any) -> Caption:
        """Caption one image.

        Args:
            image: A path, the bytes of a file, an open binary file, a PIL image of any mode (its
                EXIF orientation is applied), uint8 pixels [H, W, 3] as an array or a tensor, or
                what `captioner.transform(image)` returned, as in a worker of a DataLoader.
            settings: As for `options`, such as `beam_size`, `max_words` or `min_words`.

        Raises:
            ImageError: The image cannot be read.
            ConfigError: A setting cannot be used.
        """
        return self.caption_batch([image], **settings)[0]

    def caption_batch(self, images: Iterable[ImageInput], **settings: Any) -> list[Caption]:
        """Caption several images in one batch, which is faster; settings as for `options`."""
        if settings.get("num_captions") not in (None, 1):
            raise ConfigError("num_captions: this returns one caption an image; use n_best")
        return [captions[0] for captions in self.captions(images, self.options(**settings))]

    def n_best(
        self, images: Iterable[ImageInput], count: int, **settings: Any
    ) -> list[list[Caption]]:
        """Return for each image the `count` captions that the search ranks highest, best first.

        The first is that of `caption_batch`. A list is shorter where the search found fewer: it
        never finds more than `beam_size`.
        """
        return self.captions(images, self.options(num_captions=count, **settings))

    def sample(self, image: ImageInput, count: int = 1, **settings: Any) -> list[Caption]:
        """Draw captions of one image word by word from the model's distribution.

        Settings are those of `options`, such as `temperature`, `top_p` and `seed`; the
        log-probabilities are the model's own, without them. Where hard attention samples and there
        is no seed, maps and log-probabilities are those of other cells than the words'.
        """
        return self.captions([image], self.options(num_captions=count, sample=True, **settings))[0]

    def options(self, **settings: Any) -> SearchOptions:
        """Return how captions are written: the model's settings, replaced by those given.

        Args:
            settings: Fields of `captioner.generation.SearchOptions`; None keeps the model's.

        Raises:
            ConfigError: A value cannot be used, or `at_test` or `paths` without hard attention.
        """
        options = SearchOptions.from_config(self.config.decoding, self.vocabulary, **settings)
        samples_cells = self.samples_cells(options.at_test, options.paths)
        for name in ("temperature", "top_p", "seed"):
            is_used = options.sample or (name == "seed" and samples_cells)
            if settings.get(name) is not None and not is_used:
                raise ConfigError(f"{name}: is for captions drawn at random; use sample")
        for name in ("at_test", "paths"):
            value = getattr(options, name)
            if value and not self.has_hard_attention:
                raise ConfigError(f"{name}: {value} is for hard attention, which this model lacks")
        return options

    def captions(
        self, images: Iterable[ImageInput], options: SearchOptions | None = None
    ) -> list[list[Caption]]:
        """Return several captions of each image: found by beam search, or drawn at random.

        Args:
            options: From `options()`; None takes the model's settings.

        Returns:
            For each image up to `num_captions` captions, best first, or as they were drawn.

        Raises:
            ImageError: An image cannot be read.
            ConfigError: No caption is as long as `min_words`.
        """
        options = options or self.options()
        inputs = as_list(images)
        if not inputs:
            return []
        grid, read = self._encode(inputs)
        with self._alone_if_random(options), hard_attention_mode(options.at_test):
            return self._captions(inputs, read, grid, options)

    def _captions(
        self, inputs: list[Any], read: list[Any], grid: Grid, options: SearchOptions
    ) -> list[list[Caption]]:
        """Return the captions of a grid, whose images are given as `_encode` takes and returns."""
        self._seed_cells(options.seed)
        calibrator = None if options.sample else self.calibrator
        if options.sample:
            found = self._sample(grid, options)
        else:
            wanted = options
            if calibrator and {"margin", "agreement"} & {*calibrator.features}:  # of all captions
                wanted = replace(options, num_captions=options.beam_size)
            found = search(self.engine.decoder, grid, wanted, self.engine.search_graphs)
        if not all(found):
            raise ConfigError(
                f"min_words: no caption of at least {options.min_words} words was found; use fewer"
            )
        features: Any = to_numpy(grid.features) if calibrator is not None else ()
        results = []
        for index, (hypotheses, (pixels, geometry)) in enumerate(zip(found, read, strict=True)):
            captions = []
            for place, hypothesis in enumerate(hypotheses[: options.num_captions]):
                more: dict[str, Any] = {}
                if calibrator is not None:
                    confidence = calibrator.confidence(hypotheses, features[index], place)
                    # Fitted on photos, it knows nothing of plain surfaces and noise.
                    shows_something = self.transform.shows_something(pixels)
                    more["confidence"] = confidence if shows_something else 0.0
                    more["confidence_threshold"] = calibrator.threshold
                if options.paths:
                    cells = grid.select(slice(index, index + 1))
                    more["paths"] = self._paths(cells, hypothesis.tokens, options.paths)
                captions.append(self._caption(hypothesis, geometry, grid, inputs[index], **more))
            results.append(captions)
        return results

    def _sample(self, grid: Grid, options: SearchOptions) -> list[list[Hypothesis]]:
        """Draw captions of each image, and score them to get the attention to their words."""
        seed = options.seed
        generator = None if seed is None else self.engine.generator(seed)
        drawn, _ = sample(self.engine.decoder, grid, options, generator=generator)
        end, pad = self.vocabulary.end, self.vocabulary.pad
        texts = [
            [[token for token in row if token not in (end, pad)] for row in of_image]
            for of_image in drawn.tolist()
        ]
        self._seed_cells(seed)  # again, so that the maps show the cells that were drawn
        return force_decode(self.engine.decoder, grid, texts, max_words=options.max_words)

    def score(
        self,
        image: ImageInput,
        text: str,
        *,
        at_test: HardAttentionMode | None = None,
        paths: int = 0,
        seed: int | None = None,
    ) -> Caption:
        """Return a given caption with the attention and the log-probability of each word.

        A word that the model does not know is read as `<unk>`, and its log-probability is that of
        any unknown word. A caption as long as the model's learned positions has no log-probability
        of its end, as one that the search cut off there.

        Args:
            image: As for `caption`.
            text: The caption.
            at_test: How hard attention chooses its cell.
            paths: With hard attention, also sample this many sequences of cells.
            seed: Of the cells that are sampled, to draw the same again.

        Raises:
            ImageError: The image cannot be read.
            ConfigError: The text has no words.
        """
        options = self.options(at_test=at_test, paths=paths, seed=seed)
        words = self.vocabulary.tokenizer.split(text)
        if not words:
            raise ConfigError(f"the caption {text!r} has no words; give at least one")
        tokens = self.vocabulary.encode(words)
        (image,) = as_list([image])
        grid, geometries = self.encode([image])
        most = self.config.decoder.reads_at_most
        with self._alone_if_random(options), hard_attention_mode(at_test):
            self._seed_cells(seed)
            ((hypothesis,),) = force_decode(self.engine.decoder, grid, [[tokens]], max_words=most)
            more = {"paths": self._paths(grid, tokens, paths)} if paths else {}
        return self._caption(hypothesis, geometries[0], grid, image, words, **more)

    def evaluate(
        self,
        data: str | Path | Sequence[CaptionedImage],
        *,
        format: str = "auto",
        split: str = "val",
        **settings: Any,
    ) -> Evaluation:
        """Caption the photos of a data set and score the captions against their references.

        Args:
            data: Folder of the data set or its captions file, or images with captions.
            format: Layout of the data set; `auto` recognises it.
            split: Which photos.
            settings: As for `captioner.evaluation.evaluate.evaluate`, such as `beam_size`.
        """
        from captioner.evaluation.evaluate import evaluate  # only here: it imports the scorers

        if not isinstance(data, (str, Path)):
            return evaluate(self, data, **settings)
        from captioner.data.layouts import CaptionedData, DataFiles

        found = CaptionedData(DataFiles(format, data)).split_to_score(split)
        for sentence in found.left_out(split):
            logger.warning(sentence)
        return evaluate(self, found.images, **settings)

    @property
    def has_hard_attention(self) -> bool:
        """Whether attention is hard: `at_test` and `paths` are for such models only."""
        return self.config.attention.select == "hard" and self.config.decoder.kind != "mean"

    @property
    def attention_heads(self) -> tuple[int, int]:
        """Number of layers that attend to the image, and of heads in each."""
        decoder = self.config.decoder
        layers = decoder.layers if decoder.kind == "transformer" else 1
        return layers, self.config.attention.heads

    def samples_cells(self, at_test: HardAttentionMode | None, paths: int = 0) -> bool:
        """Return whether cells are sampled; then batches need a fixed order to be repeatable."""
        mode = at_test or self.config.attention.at_test
        return self.has_hard_attention and (mode == "sample" or paths > 0)

    def encode(self, images: Iterable[ImageInput]) -> tuple[Grid, list[Geometry]]:
        """Return the grid of B images, and for each the geometry from cells to its pixels."""
        grid, read = self._encode(as_list(images))
        return grid, [geometry for _, geometry in read]

    def _encode(self, images: list[Any]) -> tuple[Grid, list[tuple[np.ndarray, Geometry]]]:
        """Return the grid of images read in parallel, and each one's network input and geometry."""
        read = partial(network_input, transform=self.transform)
        inputs = list(prefetch(read, images, self.device))
        return self.engine.encode([pixels for pixels, _ in inputs]), inputs

    def _alone_if_random(self, options: SearchOptions) -> AbstractContextManager[object]:
        """Context in which no other thread samples: an engine has one series of random numbers."""
        is_random = options.sample or self.samples_cells(options.at_test, options.paths)
        return _RANDOM_NUMBERS if is_random else nullcontext()

    def _seed_cells(self, seed: int | None) -> None:
        if seed is not None and self.has_hard_attention:
            self.engine.seed(seed + 1)  # other numbers than those that choose the words

    def _paths(self, grid: Grid, tokens: list[int], count: int) -> np.ndarray:
        """Return sampled cells of a caption, int [count, T]; several heads: [count * heads, T]."""
        with hard_attention_mode("sample"):
            (found,) = force_decode(  # of words alone, so nothing is read behind them
                self.engine.decoder, grid, [[tokens] * count], max_words=len(tokens)
            )
        return np.concatenate([np.atleast_2d(h.cells.T) for h in found if h.cells is not None])

    def _caption(
        self,
        hypothesis: Hypothesis,
        geometry: Geometry,
        grid: Grid,
        image: Any,
        words: list[str] | None = None,
        **more: Any,
    ) -> Caption:
        """Return a hypothesis as a Caption; `words` are given where the vocabulary lacks some."""
        words = self.vocabulary.decode(hypothesis.tokens) if words is None else words
        more["text"] = self.vocabulary.tokenizer.join(words)
        more["image"] = None if isinstance(image, tuple) else image  # prepared: not to draw on
        grid_shape = grid.height, grid.width
        return Caption.from_hypothesis(hypothesis, words, geometry, grid_shape, **more)
