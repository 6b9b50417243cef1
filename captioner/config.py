"""Every setting, typed, with the reason for its default. YAML files and dotted options fill it.

A recipe in `configs/` names what differs from these defaults. Unknown keys are errors.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_type_hints

import yaml
from jsonargparse import ArgumentError, ArgumentParser

from captioner.errors import ConfigError

ConfigT = TypeVar("ConfigT")


@dataclass(frozen=True)
class DataConfig:
    """Photos and captions.

    Args:
        format: Layout of the data set.
        root: Its folder (for `table` also the file itself).
        file: Karpathy's dataset_*.json or the table, when the folder holds several.
        coco_splits: Folder with coco_{train,val,test,restval}.txt, to use Karpathy's split by
            image names with the `coco` format.
        train_split: Split to train on; `train+restval` joins two.
        val_split: Split to validate on.
        min_count: Words rarer than this in the training captions become `<unk>`.
        max_words: Longer training captions are cut to this many words.
        batch_by: `length` batches captions of equal length (the paper, section 4.3); `photo`
            batches photos with all their captions, so that the encoder runs once a photo.
        batch_size: Captions a batch.
        workers: Processes that read photos.
        flip: Probability of mirroring a training photo.
        min_area: Smallest share of a training photo that a random crop keeps.
        colour: Largest relative change of brightness, contrast and saturation in training.
        cache: Folder for the output of the frozen encoder stages; none computes them each time.
        cache_views: Augmented views a training photo that the cache holds (the first is plain).
    """

    format: Literal["flickr8k", "karpathy", "coco", "table"] = "flickr8k"
    root: str = "data/flickr8k"
    file: str | None = None
    coco_splits: str | None = None
    train_split: str = "train"
    val_split: str = "val"
    min_count: int = 5
    max_words: int = 25
    batch_by: Literal["length", "photo"] = "photo"
    batch_size: int = 160
    workers: int = 2
    flip: float = 0.5
    min_area: float = 0.8
    colour: float = 0.2
    cache: str | None = None
    cache_views: int = 1


@dataclass(frozen=True)
class PreprocessConfig:
    """From a photo to the network's input; stored with the model.

    Args:
        height_px: Height of the network's input.
        width_px: Width of the network's input.
        resize: `squash` the whole photo to the input, or `letterbox` it with its aspect ratio.
        interpolation: Filter for resizing; none takes the backbone's own.
        mean: Channel means for values in [0, 1]; none takes the backbone's own.
        std: Channel standard deviations; none takes the backbone's own.
    """

    height_px: int = 256
    width_px: int = 256
    resize: Literal["squash", "letterbox"] = "squash"
    interpolation: Literal["bilinear", "bicubic", "lanczos"] | None = None
    mean: tuple[float, float, float] | None = None
    std: tuple[float, float, float] | None = None


@dataclass(frozen=True)
class EncoderConfig:
    """Pretrained CNN.

    Args:
        backbone: `efficientnet_lite2`, `vgg19`, `resnet50`, `resnet101`, `resnet152`, or any
            convolutional network of torchvision or timm (`torchvision/NAME`, `timm/NAME`).
        weights: `default`, `none`, the name of a torchvision weights entry, or a file.
        tap: Layer whose output is the grid; none takes the last convolutional one.
        trainable_from: First stage to fine-tune; none freezes the encoder (as the paper does).
        batch_norm: In fine-tuned stages, keep the running statistics (`frozen`, right for small
            batches and for photos that come several times) or update them (`train`).
        project_dim: Size D of the annotation vectors after a learned projection; none uses the
            backbone's own channels, as the paper does.
        dropout: Dropout on the projected annotation vectors.
    """

    backbone: str = "efficientnet_lite2"
    weights: str = "default"
    tap: str | None = None
    trainable_from: str | None = None
    batch_norm: Literal["frozen", "train"] = "frozen"
    project_dim: int | None = None
    dropout: float = 0.0


@dataclass(frozen=True)
class AttentionConfig:
    """Where to look: score, then window, then select.

    Args:
        score: How well a cell fits the decoder's state: `additive` is the paper's f_att.
        window: Which cells may be looked at.
        select: `soft` attention takes the expectation (section 4.2).
        dim: Size A of the space in which states and cells are compared.
    """

    score: Literal["additive"] = "additive"
    window: Literal["global"] = "global"
    select: Literal["soft"] = "soft"
    dim: int = 512


@dataclass(frozen=True)
class DecoderConfig:
    """The LSTM that writes the caption.

    Args:
        kind: `lstm` is the paper's: it attends before each word.
        hidden_dim: Size H of the LSTM.
        embed_dim: Size E of the word embedding.
        gate: beta of section 4.2.1: one number a word (`scalar`, the paper), one a feature
            (`vector`, as popular reimplementations), or `none`.
        output: `deep` is equation 7, with tanh before the last layer as in the original code;
            `plain` is one layer from the LSTM's state.
        tie_embeddings: Use the embedding matrix as last layer too (needs `deep` output).
        dropout: Dropout before the last layer.
        embed_dropout: Dropout on the word embeddings.
    """

    kind: Literal["lstm"] = "lstm"
    hidden_dim: int = 512
    embed_dim: int = 512
    gate: Literal["none", "scalar", "vector"] = "scalar"
    output: Literal["deep", "plain"] = "deep"
    tie_embeddings: bool = False
    dropout: float = 0.5
    embed_dropout: float = 0.0


@dataclass(frozen=True)
class LossConfig:
    """What training minimises.

    Args:
        doubly_stochastic: lambda of equation 14, for the penalty summed over the cells.
        label_smoothing: Share of the target's probability spread over all words.
    """

    doubly_stochastic: float = 1.0
    label_smoothing: float = 0.0


@dataclass(frozen=True)
class OptimConfig:
    """The optimiser and its schedule.

    Args:
        name: `adam` (the paper on COCO), `rmsprop` (the paper on Flickr8k) or `adamw`.
        lr: Learning rate of the decoder and the projection.
        encoder_lr: Learning rate of the fine-tuned encoder stages.
        weight_decay: On weight matrices only: not on biases, norms and embeddings.
        schedule: `constant`, `cosine` down to zero at the last epoch, or `plateau`: the rate
            falls tenfold when the validation metric has not risen for `plateau_epochs`.
        plateau_epochs: Epochs to wait on a plateau.
        warmup_steps: Steps over which the rate rises from zero.
        clip_norm: Largest norm of the gradient; 0 does not clip.
        accumulate: Batches whose gradients make one step.
        ema_decay: Decay of the averaged weights that are validated and saved as the model; 0
            uses the last weights.
    """

    name: Literal["adam", "adamw", "rmsprop"] = "adamw"
    lr: float = 5e-4
    encoder_lr: float = 1e-4
    weight_decay: float = 0.01
    schedule: Literal["constant", "cosine", "plateau"] = "cosine"
    plateau_epochs: int = 2
    warmup_steps: int = 200
    clip_norm: float = 5.0
    accumulate: int = 1
    ema_decay: float = 0.0


@dataclass(frozen=True)
class TrainConfig:
    """The run.

    Args:
        output: Run folder.
        epochs: Passes over the training captions.
        seed: Fixes initial weights, order, augmentation and dropout.
        device: `auto`, `cpu`, `cuda` or `cuda:N`.
        precision: `auto` is bfloat16 autocast on a GPU that has it, else float32.
        patience: Stop after this many epochs without a better validation metric; 0 never.
        metric: Validation metric, of captions written freely, that chooses `best`.
        val_beam_size: Beam of that validation.
        val_photos: Validate on the first so many photos; none takes all.
        checkpoint_every: Steps between checkpoints inside an epoch; 0 saves at its end only.
        log_every: Steps between log entries.
        samples: Validation photos whose maps are shown in TensorBoard.
    """

    output: str = "runs/captioner"
    epochs: int = 20
    seed: int = 1
    device: str = "auto"
    precision: Literal["auto", "float32", "bfloat16"] = "auto"
    patience: int = 5
    metric: Literal["CIDEr", "Bleu_4", "ROUGE_L"] = "CIDEr"
    val_beam_size: int = 3
    val_photos: int | None = None
    checkpoint_every: int = 200
    log_every: int = 20
    samples: int = 4


@dataclass(frozen=True)
class DecodingConfig:
    """How captions are searched, unless the command says otherwise; stored with the model.

    Args:
        beam_size: Hypotheses kept; 1 is greedy search.
        max_words: Longest caption.
        length_penalty: A finished caption's log-probability is divided by its length to this
            power; 0 compares plain log-probabilities, as the paper does.
        no_repeat_ngram: No sequence of this many words comes twice in a caption; 0 allows all, as
            the paper does.
    """

    beam_size: int = 5
    max_words: int = 30
    length_penalty: float = 0.0
    no_repeat_ngram: int = 0


@dataclass(frozen=True)
class ModelConfig:
    """What a model folder's config.yaml holds: all that inference needs."""

    preprocess: PreprocessConfig = field(default_factory=PreprocessConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    attention: AttentionConfig = field(default_factory=AttentionConfig)
    decoder: DecoderConfig = field(default_factory=DecoderConfig)
    decoding: DecodingConfig = field(default_factory=DecodingConfig)


@dataclass(frozen=True)
class Config(ModelConfig):
    """A whole training recipe."""

    data: DataConfig = field(default_factory=DataConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


def parser_for(config_class: type, **options: Any) -> ArgumentParser:
    """Command line parser with an option `--section.key` for every setting of the class."""
    parser = ArgumentParser(**options)
    parser.add_class_arguments(config_class, None)
    return parser


def from_yaml(config_class: type[ConfigT], text: str) -> ConfigT:
    """Settings from YAML; what is not named keeps its default.

    Raises:
        ConfigError: an unknown key or a value of the wrong type, by name.
    """
    try:
        given = yaml.safe_load(text)
        text = yaml.safe_dump(_checked(config_class, {} if given is None else given))
        parser = parser_for(config_class, exit_on_error=False)
        return config_class(**vars(parser.instantiate(parser.parse_string(text))))
    except (ArgumentError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(one_line(str(error))) from None


def _checked(config_class: type, given: Any) -> dict[str, Any]:
    """What jsonargparse takes without a word, or refuses without saying what is accepted."""
    sections = {name: type(value) for name, value in vars(config_class()).items()}
    if not isinstance(given, dict):
        raise ConfigError(f"the settings are no sections; use {', '.join(sections)}")
    checked = {}
    for section, settings in given.items():
        if section not in sections:
            raise ConfigError(f"{section}: no such section; use one of {', '.join(sections)}")
        settings = {} if settings is None else settings
        if not isinstance(settings, dict):
            raise ConfigError(f"{section}: holds no settings; write one 'key: value' a line")
        hints = get_type_hints(sections[section])
        for key, value in settings.items():
            if key not in hints:
                raise ConfigError(
                    f"{section}.{key}: no such setting; use one of {', '.join(hints)}"
                )
            if value is None and type(None) not in get_args(hints[key]):
                raise ConfigError(f"{section}.{key}: must have a value")
        checked[section] = settings
    return checked


def to_yaml(config: Any) -> str:
    """The settings in full."""
    return yaml.safe_dump(_plain(asdict(config)), sort_keys=False, allow_unicode=True)


def one_line(message: str) -> str:
    """A message of several lines as one sentence."""
    return " ".join(message.split())


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return list(value) if isinstance(value, tuple) else value
