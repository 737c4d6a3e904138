"""What a run is made of: data, model, method, and what looks at them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from dpexp.data.augmentation import Augmentation
from dpexp.privacy import Mechanism
from dpexp.privacy.clipping import Clipping
from dpexp.privacy.correlation import Banded
from dpexp.privacy.privatize import FLAT
from dpexp.training.averaging import Averaging
from dpexp.training.observation import Analysis
from dpexp.types import Method, State


class Attack(Protocol):
    """An attack or audit that measures what a run leaks (`dpexp.attacks`).

    Attributes:
        deviation: entry for the certificate's deviations.
    """

    deviation: str

    def stage(self, parts: Parts, seed: int) -> Parts:
        """Return the parts to train instead: e.g. fewer examples, canaries, a recorded method.

        Args:
            parts: as configured.
            seed: the run's.

        Raises:
            ConfigError: if this run cannot be attacked this way.
        """

    def report(
        self, parts: Parts, state: State, mechanism: Mechanism, device: torch.device
    ) -> Findings:
        """Return the attack's findings, after the last step.

        Args:
            parts: from `stage`, with the trained model.
            state: the method's last.
            mechanism: of the run.
            device: the model's.
        """


class Findings(NamedTuple):
    """The findings of an attack.

    Attributes:
        numbers: for result.json, by name.
        arrays: for scores.npz in the run's directory, by name; without any there is no file.
    """

    numbers: dict[str, Any]
    arrays: dict[str, np.ndarray]


@dataclass
class Parts:
    """The parts of a run, built from its config.

    Attributes:
        task: data, loss and metric (`dpexp.data`).
        model: on the run's device.
        method: the training method.
        make_optimizer: maps the trainable parameters to an optimizer.
        schedule: maps a step, from 0, and the number of steps to a multiplier of the learning rate.
        attack: an attack or audit of the run; None: none.
        analyses: analyses of its gradients, by name.
        pretrained: SHA-256 of its files of weights and tokenizers, by model and file.
        notes: what was done to the model before it trains (`dpexp.models.notes`).
        averaging: of the weights over steps; what is evaluated and kept is the average; None: none.
        augmentation: makes views of the private examples; None: none.
        clipping: how an example's norm is brought down to the clip norm.
        correlation: of the noise across steps; None: it is fresh at every step.
        takes_model: called with the trained model once it is; None: nothing is.
        callbacks: called on the first rank after each evaluation, with its line of metrics.jsonl.
    """

    task: Any
    model: nn.Module
    method: Method
    make_optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer]
    schedule: Callable[[int, int], float]
    attack: Attack | None = None
    analyses: Mapping[str, Analysis] = field(default_factory=dict)
    pretrained: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Mapping[str, Any] = field(default_factory=dict)
    averaging: Averaging | None = None
    augmentation: Augmentation | None = None
    clipping: Clipping = FLAT
    correlation: Banded | None = None
    callbacks: Sequence[Callable[[dict[str, Any]], Any]] = ()
    takes_model: Callable[[nn.Module], Any] | None = None
