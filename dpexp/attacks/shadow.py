"""Shadow models, trained on random halves of one training set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dpexp.attacks.lira import confidences
from dpexp.attacks.membership import logits_of, require_classes
from dpexp.privacy import Mechanism
from dpexp.privacy.seeds import generator
from dpexp.training.parts import Findings, Parts
from dpexp.types import ConfigError, State


def half(size: int, seed: int) -> torch.Tensor:
    """Return which size // 2 examples a run of this seed trains on, as a mask [size]."""
    order = torch.randperm(size, generator=generator(seed, "shadow", 0))
    is_member = torch.zeros(size, dtype=torch.bool)
    is_member[order[: size // 2]] = True
    return is_member


class Shadow:
    """Trains on half of the training set and reports the confidence in every example of it.

    Carlini et al. (2022, arXiv 2112.03570), Section IV. Any such run can also be a target, because
    its members are known. The accounting is for the half, whose size depends on no example.
    """

    deviation = (
        "a shadow: trained on a random half of the training set; scores.npz is of its examples, "
        "without noise: it is not covered"
    )

    def stage(self, parts: Parts, seed: int) -> Parts:
        """Return the parts with a random half of the training set.

        Raises:
            ConfigError: it is a regression, or has fewer than two examples.
        """
        task = parts.task
        require_classes(task, "attack=shadow")
        if len(task.train) < 2:
            raise ConfigError("Expected two or more training examples for attack=shadow. Set task.")
        self._pool: Any = task.train
        self._is_member = half(len(task.train), seed)
        kept = task.train.take(self._is_member.nonzero().flatten())
        return replace(parts, task=replace(task, train=kept, dataset_size=len(kept)))

    def report(
        self, parts: Parts, state: State, mechanism: Mechanism, device: torch.device
    ) -> Findings:
        """Return the mask of members [n] and the confidence in each example [n].

        Raises:
            ConfigError: training diverged.
        """
        logits = logits_of(parts.model, self._pool, device)
        values = confidences(logits, self._pool.targets.cpu())
        arrays = {"is_member": self._is_member.numpy(), "confidences": values.numpy()}
        return Findings({"pool": len(self._pool)}, arrays)
