"""LSG: low-rank and sparse gradients (Ito et al. 2022, "Scaling Private Deep Learning ...").

Algorithm 1, for each weight matrix W_{t-1} [p, d] (a kernel of c input channels flattened to
[p, c k k], Section 3.4):

    I_i, O_j <- sum of |W| over row i, over input (channel) j       lines 3-8, Eqs. (4)-(7)
    keep     <- the top (1 - p) of I and of O; the rest is frozen   lines 9-10
    L, R     <- one power iteration on W_{t-1}, orthonormal         line 11, Algorithm 2
    dL_i     = dW_i R^T, rows kept;  dR_i = L^T dW_i, columns kept  lines 14-25, Eq. (8)
    clip (dL_i, dR_i) of all layers jointly, sum, add noise         lines 26-27, Algorithm 3
    dW       <- dL R + L dR - L L^T dL R, zeros where frozen        line 28, Eq. (3)

Differences from the paper:
 1. Frozen parts are left out, not set to zero: they are not clipped, get no noise and use no
    memory. (A linear layer's thin product is faster in full, so its frozen part is dropped after.)
 2. Lines 26-27 could mean that each dL and dR is clipped by itself. Here one example's carrier
    gradients of all layers are clipped jointly, so that the sensitivity is the clip norm.
 3. Lines 9-10 call the top (1 - p) unimportant, but the text keeps them, as done here.
 4. The number kept is rounded up, so that a single input channel is kept.
 5. The classifier is handled as in RGP (`dpexp.methods.rgp`): in full, times `head_factor`.
 6. Line 11 decomposes the weight at every step; RGP decomposes the update after its warm-up. With
    p = 0 this is RGP that stays in its warm-up, the paper's baseline.
 7. QR (`dpexp.linalg`), and min(rank, p, d) in small layers, as in RGP.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.linalg import power_iterations, reparametrized_update
from dpexp.methods.head import head_blocks, head_gradients, head_grads
from dpexp.methods.selection import (
    OUTSIDE,
    head_parameters,
    matrices_and_head,
    matrix_of,
    one_release,
    require_rank,
    shapes_of,
)
from dpexp.methods.sparsity import (
    is_most_important,
    most_important,
    num_kept,
    require_fraction,
    scattered,
)
from dpexp.models.matrices import matrix_parameters, require_embeddings, why_no_matrix
from dpexp.privacy.stated import Stated
from dpexp.types import (
    ConfigError,
    Key,
    LayerGrads,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
    require_word,
)

CARRIERS = "carriers"
MASKS = ("importance", "random", "carriers", "direct")


class LSG(Method):
    """Releases one vector a step: all layers' kept carrier gradients and the scaled head's."""

    def __init__(
        self,
        rank: int,
        p: float,
        mask: str,
        start_epoch: float,
        power_iterations: int,
        head_factor: float,
        head: str,
        dataset_size: int,
        batch_size: int,
        embeddings: bool = False,
    ) -> None:
        """Set the options.

        Args:
            rank: r >= 1, at most the smaller side of the largest layer.
            p: fraction of dL's rows and of dR's columns that is frozen, in [0, 1).
            mask: how the frozen part is chosen: "importance" (the paper), or from Section 4.4
                "random" (rows and columns drawn anew at every step), "carriers" (l1 norms of L's
                rows and R's columns) or "direct" (nothing is frozen, but only the entries of the
                reconstructed dW with the largest |W| are used).
            start_epoch: epochs before anything is frozen, >= 0.
            power_iterations: K >= 1 of Algorithm 2.
            head_factor: > 0, multiplies the classifier's gradient before clipping; it is not
                divided out later.
            head: the classifier's name in the model.
            dataset_size: training examples; an epoch is dataset_size / batch_size steps.
            batch_size: expected number of examples a step.
            embeddings: whether tables of embeddings are reparametrized, too; rgp and lsg freeze
                them.

        Raises:
            ConfigError: if a value is outside its range.
        """
        require_word("method.mask", mask, MASKS)
        require_fraction(p)
        if power_iterations < 1 or not start_epoch >= 0 or not head_factor > 0:
            raise ConfigError(
                "Expected method.power_iterations >= 1, method.start_epoch >= 0 and "
                f"method.head_factor > 0; got {power_iterations}, {start_epoch} and {head_factor}. "
                "Set them."
            )
        self._rank, self._p, self._mask = rank, p, mask
        self._power_iterations = power_iterations
        self._head_factor, self._head = head_factor, head
        self._embeddings = require_embeddings(embeddings)
        self._dense_examples, self._batch_size = start_epoch * dataset_size, batch_size

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        # A random mask is drawn even where it freezes nothing, which moves later draws.
        names = ["mask"] if settings["mask"] != "random" else []
        if settings["p"] == 0:
            return dict.fromkeys(["start_epoch", *names], "method.p=0")
        if last < (start := settings["start_epoch"]):
            return dict.fromkeys(
                ["p", *names], f"method.start_epoch={start:g}, when the run is over"
            )
        return {}

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the one release that verification expects, clipped jointly."""
        return [Stated("carriers", float(config["privacy"]["clip_norm"]))]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the weight matrices and the classifier; the rest is frozen."""
        return matrices_and_head(model, self._head, embeddings=self._embeddings)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why a parameter is neither a matrix nor the classifier's."""
        return why_no_matrix(model, parameter, embeddings=self._embeddings) or OUTSIDE

    def start(self, model: nn.Module) -> State:
        """Return the shapes; every step computes new masks and carriers.

        Raises:
            ConfigError: if no layer is as large as the rank.
        """
        matrices = matrix_parameters(model, self._head, embeddings=self._embeddings)
        require_rank(self._rank, model, matrices)
        return {
            "step": 0,
            "p": self._p_at(0),
            "shapes": shapes_of(model, matrices),
            "head": shapes_of(model, head_parameters(model, self._head)),
            **{part: {} for part in ("left", "right", "rows", "columns", "entries")},
        }

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with masks, L and R, computed from weights already released."""
        p = self._p_at(state["step"])
        left, right, entries = {}, {}, {}
        rows: dict[str, Tensor | None] = {}
        columns: dict[str, Tensor | None] = {}
        weights = {name: model.get_parameter(name).detach().flatten(1) for name in state["shapes"]}
        found = power_iterations(weights.items(), self._rank, self._power_iterations, gen)
        for name, *bases in found:
            left[name], right[name] = bases
            matrix, shape = weights[name], state["shapes"][name]
            if self._mask == "direct":
                entries[name] = is_most_important(matrix.abs().flatten(), p)
                rows[name] = columns[name] = None
                continue
            of_rows, of_columns = self._importance(matrix, left[name], right[name], shape[1], gen)
            rows[name], columns[name] = most_important(of_rows, p), most_important(of_columns, p)
        masks = {"rows": rows, "columns": columns, "entries": entries}
        return {**state, "left": left, "right": right, **masks, "step": state["step"] + 1, "p": p}

    def _p_at(self, step: int) -> float:
        return self._p if step * self._batch_size >= self._dense_examples else 0.0

    def _importance(
        self, matrix: Tensor, left: Tensor, right: Tensor, channels: int, gen: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the importance of outputs, [p], and of inputs or input channels, [channels]."""
        if self._mask == "random":
            rate = torch.rand(len(matrix) + channels, generator=gen, device=matrix.device)
            return rate[: len(matrix)], rate[len(matrix) :]
        by_row, by_column = left.abs(), right.abs()
        if self._mask == "importance":
            by_row = by_column = matrix.abs()
        return by_row.sum(1), by_column.sum(0).view(channels, -1).sum(1)

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return the kept rows of dL_i and columns of dR_i, or the classifier's scaled gradient."""
        weight = matrix_of(layer, layer_grads, state["shapes"])
        if weight is not None:
            rows, columns = state["rows"][weight], state["columns"][weight]
            return {
                Key(CARRIERS, weight, "left"): layer_grads.left(state["right"][weight], rows),
                Key(CARRIERS, weight, "right"): layer_grads.right(state["left"][weight], columns),
            }
        return head_grads(CARRIERS, layer, layer_grads, self._head_factor)

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [p', r] and [r, c' k k] for the kept parts, and the classifier's shapes."""
        frozen = 0.0 if self._mask == "direct" else state["p"]
        shapes: dict[Key, tuple[int, ...]] = {}
        for name, (p, channels, *kernel) in state["shapes"].items():
            rank, taps = min(self._rank, p, channels * prod(kernel)), prod(kernel)
            shapes[Key(CARRIERS, name, "left")] = (num_kept(p, frozen), rank)
            shapes[Key(CARRIERS, name, "right")] = (rank, num_kept(channels, frozen) * taps)
        return shapes | head_blocks(CARRIERS, state["head"])

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the one release, clipped jointly, with the first step's dimension, the largest.

        Nothing is frozen before `start_epoch`. The sensitivity is the same before and after.
        """
        return one_release(CARRIERS, self.release_shapes({**state, "p": self._p_at(0)}), clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return full matrices (Eq. 3), with zeros in frozen rows and columns."""
        gradients = head_gradients(CARRIERS, noisy, state["head"])
        for name, shape in state["shapes"].items():
            left, right = state["left"][name], state["right"][name]
            d_left, d_right = (noisy[Key(CARRIERS, name, side)] for side in ("left", "right"))
            d_left = scattered(d_left, state["rows"][name], shape[0])
            d_right = d_right.view(len(right), -1, prod(shape[2:]))
            d_right = scattered(d_right, state["columns"][name], shape[1], dim=1).flatten(1)
            update = reparametrized_update(left, right, d_left, d_right).flatten()
            if state["entries"].get(name) is not None:
                update = update.masked_fill(~state["entries"][name], 0)
            gradients[name] = update.view(shape)
        return gradients, state
