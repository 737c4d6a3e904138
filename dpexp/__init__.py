"""Differentially private deep learning: four papers' tables and figures, regenerated.

Importing this package makes torchvision importable where its compiled operators cannot load. That
is done once torchvision is asked for: by itself this package imports neither it nor torch. What is
in the user's files as they are imported is remembered from then on, so that a record is of the code
that ran.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.imported import remember_imports

if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
    # OpenMP reads it as torch is imported. Its threads wait for each other at every operation, and
    # by themselves keep a core for milliseconds while they do: one that another program needs too.
    os.environ["GOMP_SPINCOUNT"] = "1000"

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dpexp.cli.trained import TrainedModel, TrainedRun

__all__ = ["load", "noise_multiplier", "run", "train"]


def run(*words: str) -> TrainedRun:
    """Train a model, or look its run up where it is done.

        run = dpexp.run("method=rgp task=digits eps=8 profile=embedded")
        run.accuracy, run.epsilon, run.certificate, run.model, run.directory

    A run that shares several GPUs starts processes: call it under `if __name__ == "__main__":`.

    Args:
        words: those of `python run.py`, in one string or several, quoted as in a shell. A sweep is
            a loop of yours.

    Returns:
        The run: its record (directory, config, result, privacy certificate, metrics) and model.

    Raises:
        ConfigError: for a mistake in what is asked, on one line.
        Busy: if another process does this run just now.
    """
    from dpexp.cli.from_python import run  # with torch, which `import dpexp` does not wait for

    return run(words)


def train(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    method: str = "dpsgd",
    eps: float | None,
    epochs: float,
    batch_size: int,
    lr: float,
    delta: float | None = None,
    optimizer: str | None = None,
    clip_norm: float = 1.0,
    seed: int = 0,
    dataset_size: int | None = None,
    results: str | Path = "results",
    device: str = "auto",
    settings: Mapping[str, Any] | None = None,
    callbacks: Sequence[Callable[[dict[str, Any]], Any]] = (),
) -> TrainedRun:
    """Train any model privately on examples in memory, with the certificate of every run.

        run = dpexp.train(model, train, test, method="rgp", eps=8, epochs=5, batch_size=500, lr=0.5)
        run.accuracy, run.epsilon, run.certificate, run.model

    The model that is passed stays as it is; `run.model` is a trained copy. Called again with the
    same arguments, a finished run is looked up, and an interrupted one goes on where it stopped.

    Args:
        model: maps inputs [n, ...] to logits [n, classes], or to [n, 1] in a regression. Every
            parameter is trained privately or stays as it is; what mixes examples is refused.
        train: the private examples: (inputs, targets) as tensors or arrays, or a torch data set of
            such pairs. uint8 inputs become [0, 1]; floats, and other integers such as tokens' ids,
            are used as they are. Integer targets are class indices; floats make it a regression.
        test: likewise; accuracy is computed on them. Where most are training examples, the
            certificate says so.
        method: as in `python run.py method=...`, e.g. "dpsgd", "rgp", "lsg", "nonprivate".
        eps: of the guarantee, > 0; None trains without noise and clip. Refused beside a method or
            setting that is without either: there is no guarantee.
        epochs: > 0, passes over the private examples in expectation.
        batch_size: expected examples a step, drawn by Poisson sampling.
        lr: learning rate, constant.
        delta: of the guarantee; None: the largest power of ten up to 1 / (2 N), or 0 under Laplace
            noise.
        optimizer: "sgd" (momentum 0.9), "sgd_plain", "adam" or "adamw"; None: sgd, or what the
            method itself asks for: dp_grape and dp_zo take sgd_plain.
        clip_norm: bound on one example's gradient, l2.
        seed: of everything random.
        dataset_size: the declared N; None: the number of private examples, which the certificate
            then names as read off the data.
        results: folder of the records.
        device: "auto", "cpu", "cuda" or "cuda:N".
        settings: any other setting of run.py, e.g. {"method.rank": 8, "micro_batch": 32}.
        callbacks: each is called after every evaluation with its step, epoch, epsilon and metrics.

    Returns:
        The run: its record, and the trained model in eval mode.

    Raises:
        ConfigError: for a mistake in the arguments, on one line.
        Busy: if another process does this run just now.
    """
    from dpexp.cli import from_python

    return from_python.train(
        model,
        train,
        test,
        method=method,
        eps=eps,
        delta=delta,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        optimizer=optimizer,
        clip_norm=clip_norm,
        seed=seed,
        dataset_size=dataset_size,
        results=results,
        device=device,
        settings=settings or {},
        callbacks=callbacks,
    )


def load(
    directory: str | Path, model: nn.Module | None = None, *, trust: bool = False
) -> TrainedModel:
    """Load the model that a run has kept, with what makes its inputs.

        model = dpexp.load("results/own/runs/0123456789ab")
        model.predict(["photo.png", "another.png"])
        model.module  # a torch.nn.Module in eval mode

    Neither the run's data nor the pretrained model that it began with is needed.

    Args:
        directory: the run's.
        model: of the same architecture, whose weights are replaced; None: the one that config.yaml
            names is built.
        trust: whether config.yaml may name a model that is not dpexp's: building it calls code.

    Raises:
        ConfigError: if the folder holds no such model, or a damaged one.
    """
    from dpexp.cli.trained import load

    return load(directory, model, trust=trust)


def noise_multiplier(*, eps: float, delta: float, sampling_prob: float, num_steps: int) -> float:
    """Return the least noise, in clip norms, for a budget of the Poisson-sampled Gaussian.

        dpexp.noise_multiplier(eps=8, delta=1e-5, sampling_prob=0.02, num_steps=10_000)

    Args:
        eps: > 0.
        delta: in (0, 1).
        sampling_prob: in (0, 1], the expected batch size over the number of examples.
        num_steps: >= 1.

    Raises:
        ConfigError: for a number out of range, or if no noise is enough.
    """
    from dpexp.cli import budget

    return budget.noise_multiplier(eps, delta, sampling_prob, num_steps)


TORCHVISION_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
"""The operators torchvision registers shape rules for at import, whether or not they loaded."""


def _declare_torchvision_ops() -> torch.library.Library | None:
    """Declare torchvision's operators where its own library does not.

    A torchvision built for CUDA cannot load its library beside a torch built without, and its
    import then fails for want of two operator schemas, transformers' models with it. Declaring
    a schema twice is an error too, so torchvision's library goes first: where it loads (a
    matching build), nothing is left to declare.

    Returns:
        The declarations, to be kept alive; None where nothing had to be declared.
    """
    import torch

    if torch.backends.cuda.is_built() or "torchvision" in sys.modules:
        return None
    found = importlib.util.find_spec("torchvision")
    if found is None or found.origin is None:
        return None
    for library in sorted(Path(found.origin).parent.glob("_C*")):
        with suppress(OSError):
            torch.ops.load_library(library)
    missing = [
        schema
        for schema in TORCHVISION_SCHEMAS
        if not hasattr(torch.ops.torchvision, schema.partition("(")[0])
    ]
    if not missing:
        return None
    declared = torch.library.Library("torchvision", "FRAGMENT")
    for schema in missing:
        declared.define(schema)
    return declared


class _BeforeTorchvision(MetaPathFinder):
    """Finds nothing; declares torchvision's operators when it is first looked for."""

    declared: torch.library.Library | None = None

    def find_spec(self, name: str, *_: object) -> None:
        """Leave it to the next finder to find what is imported."""
        if name == "torchvision":
            sys.meta_path.remove(self)
            self.declared = _declare_torchvision_ops()


_BEFORE_TORCHVISION = _BeforeTorchvision()
sys.meta_path.insert(0, _BEFORE_TORCHVISION)
remember_imports()
