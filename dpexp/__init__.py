"""Differentially private deep learning: four papers' tables and figures, regenerated.

Importing this package makes torchvision importable where its compiled operators cannot load. That
is done once torchvision is asked for: by itself this package imports neither it nor torch.
"""

from __future__ import annotations

import importlib.util
import sys
from contextlib import suppress
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import nn

    from dpexp.cli.trained import TrainedModel
    from dpexp.records import Record

__all__ = ["load", "noise_multiplier", "run"]


def run(*words: str) -> Record:
    """Train a model, or look its run up where it is done.

        record = dpexp.run("method=rgp task=digits eps=8 profile=embedded")
        record.result["test_accuracy"], record.privacy["epsilon"]["prv"], record.directory

    A run that shares several GPUs starts processes: call it under `if __name__ == "__main__":`.

    Args:
        words: those of `python run.py`, in one string or several, quoted as in a shell. A sweep is
            a loop of yours.

    Returns:
        The run's record: directory, config, result, privacy certificate and metrics.

    Raises:
        ConfigError: for a mistake in what is asked, on one line.
        Busy: if another process does this run just now.
    """
    from dpexp.cli.from_python import run  # with torch, which `import dpexp` does not wait for

    return run(words)


def load(
    directory: str | Path, model: nn.Module | None = None, *, trust: bool = False
) -> TrainedModel:
    """Load the model that a run has kept, with what makes its inputs.

        model = dpexp.load("results/paper/runs/0123456789ab")
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
