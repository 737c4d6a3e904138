"""Frozen features: a task's images, encoded once by a pretrained model (gep, Appendix A)."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.data.cache import content_hashes, decoded
from dpexp.data.hub import model_folder, why_unreachable
from dpexp.data.preprocessing import Images
from dpexp.data.task import Examples, Task, fingerprint
from dpexp.types import ConfigError, MissingData, one_line

log = logging.getLogger("dpexp")

WEIGHTS = ("*.safetensors", "*.pth", "*.pt", "*.bin")

ENCODE_BATCH = 64  # ours; changes no result

PIECE = 5_000
"""Images encoded and kept at once: what a run that is stopped loses at most."""


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


def encode(
    task: Task,
    device: torch.device,
    *,
    name: str,
    encoder: str,
    image_size: int,
    mean: Sequence[float],
    std: Sequence[float],
    also: Sequence[str],
    model_root: str,
) -> Task:
    """Replace a task's images by their features, computed once and cached by content.

    They are cached in pieces as they are computed: what was stopped goes on where it was. The
    task's fingerprint is of the images, the encoder's files and the settings, not of the features,
    whose last digits differ between machines.

    Each example's features are centred and scaled to norm one on their own. The customary mean and
    variance of the training set would consume privacy budget. Of several modules' outputs each is
    centred and scaled, then all of them together.

    Args:
        task: of images with 1 or 3 channels; its public examples are encoded too.
        device: where the encoder runs.
        name: as in conf/features.
        encoder: "torchvision/resnet152" or another of its ResNets, "timm/resnet152.tv_in1k" or
            another model of timm, or owner/name of an image encoder on the hub that transformers
            can load.
        image_size: side that images are resized to, in pixels.
        mean: of the encoder's inputs in [0, 1], per channel.
        std: likewise, > 0.
        also: names of the encoder's modules whose outputs, averaged over positions, stand beside
            its features. What an early layer sees is often missing from the last.
        model_root: a folder laid out like hub snapshots, searched before any server.

    Raises:
        MissingData: the encoder was not found.
        ConfigError: the task is not of images, or the encoder cannot be used.
    """
    if len(task.input_shape) != 3 or task.input_shape[0] not in (1, 3):
        raise ConfigError(
            f"Expected a task of images with 1 or 3 channels for features={name}; {task.name} has "
            f"inputs of shape {tuple(task.input_shape)}. Leave features out, or set another task."
        )
    loaded = _load(encoder, model_root, device)
    module = _beside(loaded, encoder, also)
    settings = json.dumps([encoder, image_size, list(mean), list(std), *also])

    def piece(part: Examples, begin: int, total: int) -> Tensor:
        recipe = f"features 2 {settings} {fingerprint(part.inputs)}"

        def compute() -> tuple[Tensor]:
            end = begin + len(part)
            which = f"{total:,}" if len(part) == total else f"{begin + 1:,} to {end:,} of {total:,}"
            log.info("%s: features of %s images", encoder, which)
            return (_encoded(module, part, image_size, mean, std, device),)

        return decoded(loaded.files, recipe, compute)[0]

    def features(examples: Examples) -> Examples:
        plain = replace(examples, mean=None, std=None)
        total = len(plain)
        pieces = [
            piece(plain.take(torch.arange(begin, min(begin + PIECE, total))), begin, total)
            for begin in range(0, total, PIECE)
        ]
        return Examples(torch.cat(pieces), plain.targets)

    parts = [part for part in (task.train, task.test, task.public) if part is not None]
    hashes = [fingerprint(*part.tensors()) for part in parts] + content_hashes(loaded.files)
    train, test = features(task.train), features(task.test)
    public = None if task.public is None else features(task.public)
    return replace(
        task,
        train=train,
        test=test,
        public=public,
        input_shape=tuple(train.inputs.shape[1:]),
        fingerprint=hashlib.sha256(" ".join([settings, *hashes]).encode()).hexdigest(),
        preprocessing=_after(
            task.preprocessing,
            encoder,
            image_size,
            tuple(mean),
            tuple(std),
            model_root,
            tuple(also),
        ),
    )


@dataclass(frozen=True)
class Features:
    """Images of one size, encoded by a pretrained model, whose files are looked for when used.

    Attributes:
        images: what makes the encoder's images.
        encoder: see `encode`.
        image_size: see `encode`.
        mean: see `encode`.
        std: see `encode`.
        model_root: see `encode`.
        also: see `encode`; models that were kept before it was an option lack it.
    """

    kind: ClassVar[str] = "features"
    images: Images
    encoder: str
    image_size: int
    mean: Sequence[float]
    std: Sequence[float]
    model_root: str
    also: Sequence[str] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes by index; empty where they have none."""
        return self.images.classes

    def examples(self, raw: Sequence[Any]) -> Examples:
        """Return the features of images, as `Images.examples` takes them.

        Raises:
            MissingData: the encoder was not found.
            ConfigError: naming the first that is no image of this shape.
        """
        plain, cpu = replace(self.images, mean=None, std=None).examples(raw), torch.device("cpu")
        module = _beside(_load(self.encoder, self.model_root, cpu), self.encoder, self.also)
        inputs = _encoded(module, plain, self.image_size, self.mean, self.std, cpu)
        return Examples(inputs, plain.targets)

    def settings(self) -> dict[str, Any]:
        """Return what is needed to make it again, in JSON's types."""
        said = {key: value for key, value in vars(self).items() if key != "images"}
        return {"images": self.images.settings(), "encoder": said}

    def save_files(self, folder: Path) -> None:
        """The encoder's files stay where they are."""


def _after(images: Any, *settings: Any) -> Features | None:
    """Return what makes features; None where the task does not say how its images are made."""
    return Features(images, *settings) if isinstance(images, Images) else None


def _load(encoder: str, model_root: str, device: torch.device) -> Encoder:
    owner, _, architecture = encoder.partition("/")
    load = _timm if owner == "timm" else _hub
    if _is_resnet(owner, architecture):
        load = _resnet
    loaded = load(encoder, owner, architecture, model_root, device)
    if device.type == "cpu":
        # Twice as fast or more, the same numbers to rounding (EfficientNet-Lite0 at 224 pixels, AMD
        # EPYC with AVX-512, one thread: 2.5 times).
        loaded.network.to(memory_format=torch.channels_last)
    return loaded


def _beside(
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
    """Return a module's output with positions averaged, [n, d]."""
    first = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(first, Tensor) or first.ndim not in (2, 3, 4) or len(first) != num:
        raise ConfigError(
            f"Expected a module that gives [n, d], [n, t, d] or [n, c, h, w] for features.also; "
            f"{name} does not. Set another."
        )
    return first if first.ndim == 2 else first.mean(1 if first.ndim == 3 else (2, 3))


def _is_resnet(owner: str, architecture: str) -> bool:
    """Return whether torchvision's ResNets, and the names of its, are meant."""
    return owner == "torchvision" or (owner == "timm" and architecture.startswith("resnet"))


def _encoded(
    module: Callable[[Tensor], tuple[Tensor, ...]],
    images: Examples,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Return the features of images that are not normalised, [n, d] on the CPU."""
    with torch.no_grad():
        parts = [
            _features(module, images.batch(indices).inputs, size, mean, std, device)
            for indices in torch.arange(len(images)).split(ENCODE_BATCH)
        ]
    return torch.cat(parts)


def files_of(encoder: str, model_root: str) -> list[Path]:
    """Return an encoder's files: its weights and, for an encoder of the hub, its settings.

    Raises:
        MissingData: it was not found.
    """
    owner, _, architecture = encoder.partition("/")
    if _is_resnet(owner, architecture):
        return [_weights(encoder, owner, architecture.partition(".")[0], model_root)]
    return sorted(path for path in model_folder(model_root, encoder).iterdir() if path.is_file())


def _features(
    module: Callable[[Tensor], tuple[Tensor, ...]],
    images: Tensor,
    size: int,
    mean: Sequence[float],
    std: Sequence[float],
    device: torch.device,
) -> Tensor:
    """Return features [n, d] of mean zero and norm one for images [n, c, h, w] in [0, 1]."""
    images = images.to(device).expand(-1, 3, -1, -1)
    images = F.interpolate(images, (size, size), mode="bilinear", antialias=True)
    shift, scale = (torch.tensor(list(of), device=device).view(1, 3, 1, 1) for of in (mean, std))
    parts = module((images - shift) / scale)
    if not all(each.isfinite().all() for each in parts):
        raise ConfigError(
            "Expected finite features for every image; the encoder returns some that are not. "
            "Set features.encoder, or features.mean and features.std."
        )
    scaled = [F.normalize(each - each.mean(1, keepdim=True), dim=1) for each in parts]
    return (scaled[0] if len(scaled) == 1 else F.normalize(torch.cat(scaled, 1), dim=1)).cpu()


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
