"""RGP with the carriers of a public gradient (ours, after arXiv 2106.09352 and 2102.12677).

Algorithm 1 of rgp with a different line 5:

    Delta_t  <- the gradient of m public examples at W_t, drawn anew at every step

Private gradients are close to the principal subspace of public ones (gep, Section 3). Carriers from
public gradients need neither a warm-up nor an update that is large beside its noise. Everything
else is RGP.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.methods.anchor import draw_public, has_random_labels
from dpexp.methods.rgp import RGP
from dpexp.privacy.stated import Stated
from dpexp.types import ConfigError, PublicGradients, State


class PublicRGP(RGP):
    """Releases the same as RGP, with the carriers of a public gradient."""

    def __init__(
        self,
        rank: int,
        power_iterations: int,
        head_factor: float,
        head: str,
        public_examples: int,
        public_labels: str | bool,
        embeddings: bool = False,
    ) -> None:
        """Set the options.

        Args:
            rank: r >= 1, at most the smaller side of the largest layer.
            power_iterations: K >= 1 of Algorithm 2.
            head_factor: > 0, multiplies the classifier's gradient before clipping; it is not
                divided out later.
            head: the classifier's name in the model.
            public_examples: m >= 1.
            public_labels: "random", drawn at every step, or "true" for the public set's own.
            embeddings: whether tables of embeddings are reparametrized, too; rgp and lsg freeze
                them.

        Raises:
            ConfigError: if a value is outside its range.
        """
        super().__init__(
            rank,
            "both",
            power_iterations,
            warm_up_steps=0,
            decompose="weight",
            residual=True,
            head_factor=head_factor,
            head=head,
            embeddings=embeddings,
        )
        if public_examples < 1:
            raise ConfigError(f"Expected method.public_examples >= 1; got {public_examples}.")
        self.public_size = public_examples
        self._has_random_labels = has_random_labels("method.public_labels", public_labels)

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one release that verification expects, clipped jointly."""
        return [Stated("carriers", float(config["privacy"]["clip_norm"]))]

    @staticmethod
    def stated_public_examples(settings: Mapping[str, Any]) -> int:
        """Return the number of public examples that verification expects."""
        return settings["public_examples"]

    def deltas(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield each layer's public gradient, summed over the examples drawn."""
        assert public is not None, "a method with public_size > 0 gets public examples"
        indices, labels = draw_public(
            public, self.public_size, state["head"], self._has_random_labels, gen
        )
        total = public.total(indices, labels)
        for name in state["shapes"]:
            yield name, total[name]
