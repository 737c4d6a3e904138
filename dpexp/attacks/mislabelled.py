"""Black-box canaries: mislabelled training examples, each included at random.

A model learns a wrong label only from the example itself, so its loss on that label shows whether
the example was included (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.attacks.membership import logits_of, require_classes
from dpexp.privacy.seeds import generator
from dpexp.types import Batch, ConfigError


@dataclass(frozen=True, eq=False)
class Thinned:
    """Examples of which some are absent; indices and the size of the set stay the same.

    Attributes:
        examples: of a task.
        present: which of them are present, [n], bool.
    """

    examples: Any
    present: Tensor

    def __len__(self) -> int:
        return len(self.examples)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look these up before examples is set
            raise AttributeError(name)
        return getattr(self.__dict__["examples"], name)

    def to(self, device: torch.device | str) -> Thinned:
        """Return the same examples on a device."""
        return replace(self, examples=self.examples.to(device))

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of the indices."""
        return self.examples.batch(indices)

    def micro_batches(self, indices: Tensor, size: int) -> Iterable[Tensor]:
        """Split a batch into micro-batches of at most `size`, without absent examples."""
        present = indices[self.present[indices]]
        return self.examples.micro_batches(present, size) if len(present) else ()


def mislabel(task: Any, included: Tensor, seed: int) -> Any:
    """Return a task with m canaries: mislabelled if they are included, else absent.

    Args:
        task: N and the test set do not change.
        included: coins, [m], bool.
        seed: decides the canaries and their wrong labels.

    Raises:
        ConfigError: the task is not a classification, or has fewer than m examples.
    """
    size, m = len(task.train), len(included)
    require_classes(task, "audit.canaries=mislabelled")
    if m > size:
        raise ConfigError(
            f"Expected audit.m <= {size}, the number of training examples; got m={m}. Set audit.m."
        )
    places = choose(size, m, seed)
    shift = torch.randint(1, task.num_classes, (m,), generator=generator(seed, "canary/label", 0))
    targets = task.train.targets.clone()
    targets[places] = (targets[places] + shift.to(targets)) % task.num_classes
    present = torch.ones(size, dtype=torch.bool)
    present[places] = included
    return replace(task, train=Thinned(replace(task.train, targets=targets), present))


def choose(size: int, m: int, seed: int) -> Tensor:
    """Return the indices [m] of m random examples of a set."""
    return torch.randperm(size, generator=generator(seed, "canary/example", 0))[:m]


def scores(model: nn.Module, examples: Thinned, m: int, seed: int, device: torch.device) -> Tensor:
    """Return minus the loss of each canary on its wrong label, in eval mode, [m] on the CPU.

    Args:
        model: trained.
        examples: the training set returned by `mislabel`.
        m: number of canaries.
        seed: as in `mislabel`.
        device: the model's.
    """
    canaries = examples.take(choose(len(examples), m, seed))
    logits = logits_of(model, canaries, device)
    return -F.cross_entropy(logits, canaries.targets.cpu(), reduction="none")
