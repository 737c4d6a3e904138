"""Stand-ins for data and pretrained weights: random examples and encoders of the same shapes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dpexp.cli.instantiate import make
from dpexp.cli.parts import build_task
from dpexp.data import Task
from dpexp.data.examples import Examples
from dpexp.data.regression import squared_error
from dpexp.data.task import cross_entropy
from dpexp.training.micro_batch import AUTO
from dpexp.types import Batch, ConfigError

LENGTH = 32
"""Tokens of a text that is measured; the cost goes with their number."""

ENCODERS = {
    "google-bert/bert-base-uncased": ("bert", 12, 768, 12, 3072),
    "FacebookAI/roberta-base": ("roberta", 12, 768, 12, 3072),
    "FacebookAI/roberta-large": ("roberta", 24, 1024, 16, 4096),
    "sentence-transformers/all-MiniLM-L6-v2": ("bert", 6, 384, 12, 1536),
}
"""Architecture, layers, width, heads and feed-forward width (Devlin et al. 2018, Table of Section
3; Liu et al. 2019; the model card)."""

VOCABULARY = 1000
"""Of random encoders: looking a token up costs nothing, and memory is short."""

LEAST = 320
"""Anchor gradients and basis vectors that GEP is taken to have at least, undivided (ours)."""

FEW = 4
"""Examples timed on a CPU."""

HELD = 64
"""Random examples held."""

FEATURES, LOANS = 2048, 100
"""Numbers in an example: ResNet152's features, and about what Lending Club's columns come to."""


def stand_in(given: dict[str, Any], shrink: int) -> dict[str, Any]:
    """Return a config of the same work that asks for neither data, weights nor a budget.

    Args:
        given: a run's plain config.
        shrink: how many times fewer anchor gradients and basis vectors GEP has.

    Raises:
        ConfigError: for an encoder whose shape is not known.
    """
    config = {key: value for key, value in alone(given).items() if key != "features"}
    method, task, model = (dict(config[key]) for key in ("method", "task", "model"))
    if shrink > 1:
        # However few the method's own are, two shrinks leave two sizes to tell the costs from.
        sizes = {key: max(LEAST, method[key]) for key in ("m", "k") if method.get(key)}
        method |= {key: size // shrink for key, size in sizes.items()}
    if "repo" in task or "csv" in task:
        task |= {
            "_target_": "dpexp.cli.stand_in.examples",
            "tokenizer": None,
        }  # which none goes through
        config.pop("holdout", None)  # N is what is left without it
    if "features" in given:
        task["input_shape"] = [FEATURES]
    if model.get("repo"):
        model = _encoder(model)
    if "channels_last" in model:  # operations of kernels in C are not counted
        model["channels_last"] = False
    privacy = {**config["privacy"], "noise": False, "eps": None}  # calibrated for nothing
    micro_batch = FEW if config["micro_batch"] == AUTO else config["micro_batch"]
    changed = {**config, "method": method, "task": task, "model": model}
    changed |= {"privacy": privacy, "micro_batch": micro_batch}
    if "public" in config:
        size = method.get("m", config["public"].get("size", 0)) or 0
        changed["public"] = {"_target_": "dpexp.cli.stand_in.public", "size": size}
    return changed


def alone(given: dict[str, Any]) -> dict[str, Any]:
    """Return a config without what a run does before, between and after its steps."""
    names = ("attack", "audit", "analysis", "prompts", "warm_start")
    return {key: value for key, value in given.items() if key not in names}


def few_features(config: dict[str, Any], device: torch.device) -> Task:
    """Return a run's data on features, of which only a few are encoded and stand for all.

    Args:
        config: of a run with features.
        device: where they are computed.

    Raises:
        MissingData: the images or the encoder are not there.
        ConfigError: as `build_task`.
    """
    images = build_task({key: value for key, value in config.items() if key != "features"}, device)
    sets = {key: getattr(images, key) for key in ("train", "test", "public")}
    sets = {key: examples for key, examples in sets.items() if examples is not None}
    some = {
        key: examples.take(torch.arange(min(FEW, len(examples)))) for key, examples in sets.items()
    }
    encoded = make("features", config["features"], given=(replace(images, **some), device))

    def repeated(few: Examples, like: Examples) -> Examples:
        return Examples(few.inputs[torch.arange(len(like)) % len(few)], like.targets)

    return replace(encoded, **{key: repeated(getattr(encoded, key), sets[key]) for key in sets})


def _encoder(model: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of an encoder of the same shape with random weights."""
    if model["repo"] not in ENCODERS:
        raise ConfigError(f"No shape is known for {model['repo']}; a plan can't tell its cost.")
    architecture, layers, width, heads, feed_forward = ENCODERS[model["repo"]]
    kept = ("name", "pooling", "feature_norm", "head_std", "head_layers", "dropout", "precision",
            "checkpointing", "attention")  # fmt: skip
    return {
        "_target_": "dpexp.models.language.in_place_of_pretrained",
        **{key: model[key] for key in kept},
        "head": model.get("head"),
        "architecture": architecture,
        "layers": layers,
        "width": width,
        "attention_heads": heads,
        "feed_forward": feed_forward,
        "vocabulary": VOCABULARY,
    }


@dataclass(frozen=True, eq=False)
class Endless:
    """A few random examples, met again and again in place of a training set.

    Attributes:
        inputs: [n, ...].
        targets: [n].
        longest: tokens a text may have; None for what is no text.
        size: how many examples they stand for.
    """

    inputs: Tensor
    targets: Tensor
    longest: int | None
    size: int

    def __len__(self) -> int:
        return self.size

    def micro_batches(self, indices: Tensor, size: int) -> Iterable[Tensor]:
        """Cut indices [m] (m may be 0) into pieces of at most `size`."""
        return indices.split(size) if len(indices) else ()

    def batch(self, indices: Tensor) -> Batch:
        """Gather examples, whatever their indices."""
        indices = indices % len(self.targets)
        return Batch(self.inputs[indices], self.targets[indices])


def examples(
    *,
    name: str,
    dataset_size: int,
    delta: float,
    num_classes: int = 1,
    input_shape: Sequence[int] = (LOANS,),
    max_length: int | None = None,
    **_: Any,
) -> Task:
    """Make a task of random examples, of the shape that conf declares of the real ones."""
    gen = torch.Generator().manual_seed(0)
    if max_length is not None:
        inputs = torch.randint(5, VOCABULARY, (HELD, 3, min(LENGTH, max_length)), generator=gen)
        inputs[:, 1], inputs[:, 2] = 1, 0
        input_shape = (3, max_length)
    else:
        inputs = torch.rand((HELD, *input_shape), generator=gen)
    is_regression = num_classes == 1
    targets = torch.randint(num_classes, (HELD,), generator=gen)
    some: Any = Endless(
        inputs, targets.float() if is_regression else targets, max_length, dataset_size
    )
    return Task(
        name=name,
        train=some,
        test=some,
        public=None,
        num_classes=num_classes,
        input_shape=tuple(input_shape),
        delta=delta,
        dataset_size=dataset_size,
        fingerprint="",
        loss=squared_error if is_regression else cross_entropy,
    )


def public(task: Task, *, size: int) -> Task:
    """Return a task public examples like its own; a method may take `size` of them."""
    batch = task.train.batch(torch.arange(size))
    some: Any = Endless(batch.inputs, batch.targets, None, size)
    return replace(task, public=some)
