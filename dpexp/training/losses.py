"""Examples' losses at weights near the model's own, for methods without a backward pass."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from dpexp.data import LossFn
from dpexp.models.mode import in_mode
from dpexp.types import Batch


class BatchLosses:
    """The losses of one micro-batch (`dpexp.types.Losses`).

    The model is in eval mode: two passes that differ in their dropout masks would differ by them.
    Weights are changed in place and put back bit for bit, whatever happens meanwhile. Modules that
    hold their weights under other names as well, such as nn.LSTM, see the change too.

    Attributes:
        total: the sum over examples, averaged over the passes so far.
    """

    def __init__(
        self, model: nn.Module, parameters: Mapping[str, Tensor], loss: LossFn, batch: Batch
    ) -> None:
        """Take a model, its trained parameters by name, and the examples.

        Args:
            model: maps inputs to outputs, one row an example or a view of one.
            parameters: that a direction may name.
            loss: summed over examples.
            batch: on the model's device.
        """
        self._model, self._parameters, self._loss, self._batch = model, parameters, loss, batch
        self._sum, self._passes = 0.0, 0

    @property
    def total(self) -> float:
        """Return the sum over examples, averaged over the passes so far."""
        return self._sum / max(1, self._passes)

    @torch.no_grad()
    def __call__(self, direction: Mapping[str, Tensor], step: float) -> Tensor:
        """Return each example's loss at weights plus step times direction, [n] in float64."""
        before = {name: self._parameters[name].detach().clone() for name in direction}
        try:
            for name, change in direction.items():
                self._parameters[name].add_(change, alpha=step)
            with in_mode(self._model, is_training=False):
                outputs = self._model(self._batch.inputs)
        finally:
            for name, values in before.items():
                self._parameters[name].copy_(values)
        rows = zip(outputs.split(1), self._batch.targets.split(1), strict=True)
        each = torch.stack([self._loss(*row).double() for row in rows])
        each = each.view(-1, self._batch.views).mean(1)
        self._sum, self._passes = self._sum + float(each.sum()), self._passes + 1
        return each
