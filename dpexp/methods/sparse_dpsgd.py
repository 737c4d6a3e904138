"""Sparse DP-SGD: unimportant weights are frozen (lsg's baseline; Ito et al. 2022, Section 3.2).

At each step, for each weight matrix W_{t-1} except the classifier:

    keep    <- the entries with the top (1 - p) of |W_{t-1}|, matrix by matrix
    g_i     <- the kept entries of dW_i, and all other parameters' gradients
    clip the g_i jointly, sum, add noise                                        Algorithm 3
    dW      <- the sum where kept, zero where frozen

Differences from the paper, which has no algorithm box for it:
 1. Entries are chosen anew from W_{t-1} at every step, as in LSG's Algorithm 1. Luo et al. 2021,
    which the paper extends, choose once, from pretrained weights.
 2. The paper sparsifies the same layers as LSG. Here classifier, biases, norms and embeddings are
    trained in full, as in DP-SGD; with `train=matrices`, only matrices and classifier train.
 3. The number kept is rounded up.
 4. "Frozen" means a gradient of zero: momentum and weight decay still move such a weight, as with
    any off-the-shelf optimizer.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpexp.grad_sample.per_example import FactoredGrads, MaskedGrads, MaterializedGrads
from dpexp.linalg import as_rows, places
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.sparsity import is_most_important, num_kept, require_fraction, spread
from dpexp.models.matrices import matrix_parameters
from dpexp.privacy.stated import Stated
from dpexp.types import (
    ConfigError,
    Key,
    LayerGrads,
    PerExampleGrads,
    PublicGradients,
    State,
    require_word,
)


class SparseDPSGD(DPSGD):
    """Releases one vector a step: the clipped sum of the kept entries of full gradients."""

    is_in_fixed_coordinates = False

    def __init__(self, p: float, mask: str, train: str, head: str) -> None:
        """Set the options.

        Args:
            p: fraction of each weight matrix's entries that is frozen, in [0, 1).
            mask: "importance" (the paper) or "random" (drawn anew at every step, Section 4.4).
            train: "all" parameters, of which matrices are sparsified; or "matrices": only these
                and the classifier, as in LSG.
            head: the classifier's name in the model.

        Raises:
            ConfigError: if a value is outside its range.
        """
        require_word("method.mask", mask, ("importance", "random"))
        require_word("method.train", train, ("all", "matrices"))
        require_fraction(p)
        super().__init__(train, head)
        self._p, self._mask = p, mask

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        return {"mask": "method.p=0"} if settings["p"] == 0 else {}

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one release that verification expects, clipped jointly."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]))]

    def start(self, model: nn.Module) -> State:
        """Return the shapes, and which matrices are sparsified; every step chooses the entries.

        Raises:
            ConfigError: if there is no matrix: it would be DP-SGD under another name.
        """
        state, matrices = super().start(model), matrix_parameters(model, self._head)
        if not matrices:
            raise ConfigError(
                "Expected a model with weight matrices besides the classifier: their entries are "
                "frozen. Set model, or method=dpsgd."
            )
        return {**state, "entries": dict.fromkeys(matrices)}

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with the entries to keep, as masks, from weights already released."""
        entries = {}
        for name in state["entries"]:
            importance = model.get_parameter(name).detach().abs().flatten()
            if self._mask == "random":
                importance = torch.rand(len(importance), generator=gen, device=importance.device)
            entries[name] = is_most_important(importance, self._p)
        return {**state, "entries": entries}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return the kept entries of each matrix's gradient, and other gradients in full."""
        per_example = dict(super().per_example_grads(state, layer, layer_grads))
        for key, grads in per_example.items():
            kept = state["entries"].get(key.parameter)
            if kept is None:
                continue
            if isinstance(grads, MaterializedGrads):
                values = as_rows(grads.values).index_select(1, places(kept))
                per_example[key] = MaterializedGrads(values)
            else:
                per_example[key] = MaskedGrads(
                    cast(FactoredGrads, grads), kept, state["shapes"][key.parameter]
                )
        return per_example

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [kept] for each sparsified matrix, and the other parameters' shapes."""
        shapes = dict(super().release_shapes(state))
        for key, shape in shapes.items():
            size = prod(shape)
            if key.parameter in state["entries"] and num_kept(size, self._p) < size:
                shapes[key] = (num_kept(size, self._p),)
        return shapes

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return the released gradients, with zeros for frozen entries."""
        gradients, state = super().reconstruct(state, noisy)
        for name, kept in state["entries"].items():
            shape = state["shapes"][name]
            gradients[name] = spread(gradients[name].flatten(), kept).view(shape)
        return gradients, state
