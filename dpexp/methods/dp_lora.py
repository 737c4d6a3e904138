"""DP-LoRA: DP-SGD on low-rank adapters and the classifier.

Yu et al. 2022 (arXiv 2110.06500), Section 3: the pretrained weights W stay frozen, and every
adapted layer computes

    h       W x + s L R x                             L = 0 at first, R drawn
    g_i     per-example gradient of all L, R and the classifier
    g_i     <- g_i / max(1, |g_i| / C)                clipped jointly
    g~      <- (sum_i g_i + N(0, sigma^2 C^2 I)) / B  B the expected batch size

Differences from the paper:
 1. Each matrix has adapters of its own, where fairseq's query, key and value are one fused matrix.
 2. A matrix that is no linear layer's or convolution's, as a recurrent layer's, has its adapter
    within the parameter (`dpexp.models.low_rank`).
 3. s = alpha / rank, as Hu et al. 2022 have it; alpha = rank gives the authors' s = 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.selection import head_parameters
from dpexp.models import adapters
from dpexp.models.matrices import require_embeddings, why_no_matrix
from dpexp.privacy.stated import Stated
from dpexp.types import ConfigError


class DPLoRA(DPSGD):
    """Releases one vector a step: the clipped sum of adapters' and classifier's gradients."""

    def __init__(
        self, rank: int, alpha: float, targets: str, head: str, embeddings: bool = False
    ) -> None:
        """Choose the adapters.

        Args:
            rank: of the adapters, >= 1; called bottleneck dimension k in their code.
            alpha: adapters are multiplied by alpha / rank, > 0.
            targets: a pattern that the adapted layers' names match; "*" for all matrices.
            head: the classifier's name in the model.
            embeddings: whether tables of embeddings get adapters, too.

        Raises:
            ConfigError: for a value outside its range.
        """
        super().__init__(train="head", head=head)
        if not alpha > 0:
            raise ConfigError(f"Expected method.alpha above 0; got {alpha}. Set method.alpha.")
        self._rank, self._alpha, self._targets = rank, alpha, targets
        self._embeddings = require_embeddings(embeddings)

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the adapters' and classifier's gradient, clipped jointly."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]), dimension=size)]

    def adapt(self, model: nn.Module) -> nn.Module:
        """Put the adapters into a model."""
        return adapters.adapt(
            model,
            self._rank,
            self._alpha,
            self._targets,
            self._head,
            embeddings=self._embeddings,
        )

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Name the adapters' parameters and the classifier's."""
        return adapters.adapter_parameters(model) + head_parameters(model, self._head)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why a parameter has no adapter, or that it has one."""
        why = why_no_matrix(model, parameter, embeddings=self._embeddings)
        return why or adapters.why_bare(model, parameter, self._targets)

    def merged(self, model: nn.Module) -> nn.Module:
        """Return the model with the adapters in its weights."""
        return adapters.merged(model)
