"""Pretrained image encoders: ResNets of torchvision, models of timm, and encoders on the hub."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data.hub import model_folder, why_unreachable
from dpexp.types import ConfigError, MissingData, one_line

WEIGHTS = ("*.safetensors", "*.pth", "*.pt", "*.bin")


@dataclass(frozen=True)
class Encoder:
    """A pretrained image encoder.

    Attributes:
        module: maps normalised images [n, 3, s, s] to features [n, d].
        network: what computes them; its modules may be asked for their outputs.
        files: its weights and settings; their bytes are part of the cache key.
    """

    module: Callable[[Tensor], Tensor]
    network: nn.Module
    files: tuple[Path, ...]


def load(encoder: str, model_root: str, device: torch.device) -> Encoder:
    """Return a pretrained encoder.

    Args:
        encoder: "torchvision/resnet152" or another of its ResNets, "timm/NAME", or owner/name of an
            image encoder on the hub that transformers can load.
        model_root: a folder laid out like hub snapshots, searched before any server.
        device: where it runs.

    Raises:
        MissingData: it was not found.
        ConfigError: it cannot be used.
    """
    owner, _, architecture = encoder.partition("/")
    of_owner = _timm if owner == "timm" else _hub
    if _is_resnet(owner, architecture):
        of_owner = _resnet
    loaded = of_owner(encoder, owner, architecture, model_root, device)
    if device.type == "cpu":
        # Twice as fast or more, the same numbers to rounding (EfficientNet-Lite0 at 224 pixels, AMD
        # EPYC with AVX-512, one thread: 2.5 times).
        loaded.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return loaded


def named(also: Any) -> list[str]:
    """Return the names under features.also; a name alone is one of them.

    Raises:
        ConfigError: for what is no name, or no list of names.
    """
    names = [also] if isinstance(also, str) else also
    if not isinstance(names, Sequence) or not all(isinstance(each, str) for each in names):
        raise ConfigError(
            "Expected features.also to be a list of names of the encoder's modules, such as "
            f"[blocks.5], [] for none; got {also}."
        )
    return list(names)


def beside(
    loaded: Encoder, encoder: str, also: Sequence[str]
) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """Return what maps normalised images to features and modules' outputs, each [n, d].

    Raises:
        ConfigError: the encoder has no module of such a name; or, when called, its output is not of
            images, positions or vectors.
    """
    modules, outputs = dict(loaded.network.named_modules()), {}
    for name in also:
        if name not in modules or not name:
            names = [each for each in modules if each]
            near = get_close_matches(str(name), names, 3, cutoff=0.3) or names[:3]
            raise ConfigError(
                f"Expected features.also to name modules of {encoder}; it has no {name!r}. Set, "
                f"e.g., {' or '.join(near)}."
            )

    def keep(name: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            outputs[name] = output

        return hook

    for name in also:
        modules[name].register_forward_hook(keep(name))

    def called(images: Tensor) -> tuple[Tensor, ...]:
        outputs.clear()
        features = loaded.module(images)
        return features, *(_pooled(outputs.get(name), len(images), name) for name in also)

    return called


def _pooled(output: Any, num: int, name: str) -> Tensor:
    """Return a module's output with positions averaged, [n, d].

    Images are square. So the channels of [n, ., ., .] are the axis that differs from the other two:
    the first, or the last, as in Swin.
    """
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or first.ndim not in (2, 3, 4) or len(first) != num:
        raise ConfigError(
            f"Expected a module that gives [n, d], [n, t, d] or [n, c, h, w] for features.also; "
            f"{name} does not. Set another."
        )
    if first.ndim < 4:
        return first if first.ndim == 2 else first.mean(1)
    _, one, other, last = first.shape
    return first.mean((1, 2) if one == other != last else (2, 3))


def _is_resnet(owner: str, architecture: str) -> bool:
    """Return whether torchvision's ResNets, and the names of its, are meant."""
    return owner == "torchvision" or (owner == "timm" and architecture.startswith("resnet"))


def files_of(encoder: str, model_root: str) -> list[Path]:
    """Return an encoder's files: its weights and, for an encoder of the hub, its settings.

    Raises:
        MissingData: it was not found.
    """
    owner, _, architecture = encoder.partition("/")
    if _is_resnet(owner, architecture):
        return [_weights(encoder, owner, architecture.partition(".")[0], model_root)]
    return sorted(path for path in model_folder(model_root, encoder).iterdir() if path.is_file())


def _resnet(
    encoder: str, owner: str, architecture: str, model_root: str, device: torch.device
) -> Encoder:
    """Load a torchvision ResNet without its last layer."""
    import torchvision

    base = architecture.partition(".")[0]
    names = [n for n in torchvision.models.list_models(torchvision.models) if n.startswith("resn")]
    if base not in names:
        raise ConfigError(
            f"Expected features.encoder to be one of {', '.join(f'{owner}/{n}' for n in names)}, "
            f"or an encoder of another owner on the hub; got {encoder}."
        )
    path = _weights(encoder, owner, base, model_root)
    model = torchvision.models.get_model(base, weights=None)
    try:
        model.load_state_dict(read_weights(path))
    except Exception as error:  # damaged files raise many kinds of errors
        reason = one_line(error)[:200]
        raise ConfigError(
            f"Expected the weights of {base} in {path}; they do not fit ({reason}). "
            "Fetch the file again."
        ) from None
    model.fc = nn.Identity()
    model = model.eval().to(device)
    return Encoder(model, model, (path,))


def _weights(encoder: str, owner: str, base: str, model_root: str) -> Path:
    """Return the path of a ResNet's weights: in model_root, else from the hub or torchvision."""
    folder = (Path(model_root).expanduser() / encoder).absolute()
    if local := _weights_in(folder):
        return local[0]
    if owner == "timm":
        return model_folder(model_root, encoder) / "model.safetensors"
    return torchvision_weights(base, model_root, encoder)


def torchvision_weights(base: str, model_root: str, encoder: str = "") -> Path:
    """Return the path of weights of torchvision: in model_root, else torchvision's own.

    Args:
        base: the architecture's name.
        model_root: the folder that holds torchvision/<base>.
        encoder: its name below model_root, where it has another.

    Raises:
        MissingData: they were not found.
    """
    encoder = encoder or f"torchvision/{base}"
    folder = (Path(model_root).expanduser() / encoder).absolute()
    if local := _weights_in(folder):
        return local[0]
    import torchvision

    url = torchvision.models.get_model_weights(base).DEFAULT.url
    cached = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not cached.is_file():
        reason = why_unreachable(url) or _download(url, cached)
        if reason is not None:
            raise MissingData(
                f"Expected the weights of {encoder} (a .pth or .safetensors file) in {folder}; "
                f"found none, and they could not be fetched: {reason}. Put {cached.name} there, "
                f"set model_root to the folder that holds {encoder}, or run once with a network."
            )
    return cached


def _weights_in(folder: Path) -> list[Path]:
    return [path for pattern in WEIGHTS for path in sorted(folder.glob(pattern))]


def _download(url: str, path: Path) -> str | None:
    """Download a file; return why it failed, e.g. a read-only home directory, or None."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.hub.download_url_to_file(url, str(path), progress=False)
    except OSError as error:
        return one_line(error)
    return None


def read_weights(path: Path) -> dict[str, Tensor]:
    """Read a file of weights, of either format."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(path)
    return torch.load(path, map_location="cpu", weights_only=True)


def _timm(
    encoder: str, owner: str, architecture: str, model_root: str, device: torch.device
) -> Encoder:
    """Load an image encoder of timm: its features before the classifier."""
    folder = model_folder(model_root, encoder)
    try:
        import timm
    except ModuleNotFoundError:
        raise ConfigError(
            f"Expected the library timm for features.encoder={encoder}; it is not installed. Run "
            "pip install 'dpexp[timm]', or set another encoder."
        ) from None
    try:
        model = timm.create_model(architecture.partition(".")[0], num_classes=0)
        loading = model.load_state_dict(read_weights(folder / "model.safetensors"), strict=False)
    except Exception as error:  # damaged files raise many kinds of errors
        reason = one_line(error)[:200]
        raise ConfigError(
            f"Expected a model that timm can load in {folder}; it cannot ({reason})."
        ) from None
    if loading.missing_keys:
        raise ConfigError(
            f"Expected all weights of the encoder in {folder}; it lacks "
            f"{len(loading.missing_keys)}, {loading.missing_keys[0]} among them. Put the files of "
            "the whole model there."
        )
    model = model.eval().to(device)
    return Encoder(model, model, tuple(files_of(encoder, model_root)))


def _hub(
    encoder: str, owner: str, architecture: str, model_root: str, device: torch.device
) -> Encoder:
    """Load an image encoder of transformers: its pooled output if any, else the positions' mean."""
    if not owner or not architecture:
        raise ConfigError(
            f"Expected features.encoder to be owner/name, as on the hub; got {encoder}."
        )
    folder = model_folder(model_root, encoder)
    from transformers import AutoModel

    try:
        model, loading = AutoModel.from_pretrained(
            folder, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # damaged files raise many kinds of errors
        reason = one_line(error)[:200]
        raise ConfigError(
            f"Expected a model that transformers can load in {folder}; it cannot ({reason})."
        ) from None
    model = model.eval().to(device)
    has_pooler = not any(name.startswith("pooler.") for name in loading["missing_keys"])
    lacking = sorted(name for name in loading["missing_keys"] if not name.startswith("pooler."))
    if lacking:
        raise ConfigError(
            f"Expected all weights of the encoder in {folder}; it lacks {len(lacking)}, "
            f"{lacking[0]} among them. Put the files of the whole model there."
        )
    if model.main_input_name != "pixel_values":
        raise ConfigError(
            f"Expected features.encoder to be a model of images; {encoder} takes "
            f"{model.main_input_name}."
        )

    def module(images: Tensor) -> Tensor:
        out = model(pixel_values=images)
        pooled = getattr(out, "pooler_output", None)
        if pooled is not None and has_pooler:  # else the pooler's weights are random
            return pooled.flatten(1)
        last = out.last_hidden_state
        return last.mean(1) if last.dim() == 3 else last.mean((2, 3))

    return Encoder(module, model, tuple(files_of(encoder, model_root)))
