"""One forward and backward pass of a batch, and its results."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from dpexp.grad_sample import Tape
from dpexp.training.probing.draws import Chance, FixedDraws
from dpexp.training.probing.recorder import Recorder
from dpexp.training.probing.sketch import Fingerprint, fingerprint, sketch
from dpexp.training.probing.stage import Attributes, attributes_of, buffers_of, state_kept
from dpexp.types import Batch, LayerGrads, full_name

LossFn = Callable[[Tensor, Tensor], Tensor]


@dataclass
class Trial:
    """The results of one batch.

    Attributes:
        outputs: every example's.
        each: gradients by parameter of the requested examples, by position; sketches of large ones.
        total: the tape's gradient, summed over all examples, or its sketch; empty if not requested.
        recorder: events by module; empty if not requested.
        moved: the name of a parameter that changed; None if none did.
        buffers: after the pass.
        attributes: modules' other attributes after the pass.
        draws: the random draws made.
    """

    outputs: Tensor
    each: dict[int, dict[str, Tensor]]
    total: dict[str, Tensor]
    recorder: Recorder
    moved: str | None
    buffers: dict[str, Tensor]
    attributes: Attributes
    draws: FixedDraws

    def is_finite(self) -> bool:
        """Return whether outputs and gradients are."""
        found = [self.outputs, *(each for one in self.each.values() for each in one.values())]
        return all(bool(torch.isfinite(each).all()) for each in found)


@dataclass
class Subject:
    """A model under test.

    Attributes:
        model: within `staged`.
        parameters: names of those that a method trains.
        loss: of a batch.
        values: fingerprints of all parameters before the trials, by `note_values`.
        silent: those of `parameters` whose gradients were zero in all trials until now.
        unused: those of `parameters` that no trial's loss has depended on until now.
    """

    model: nn.Module
    parameters: Sequence[str]
    loss: LossFn
    values: dict[str, Fingerprint] = field(default_factory=dict, init=False)
    silent: set[str] = field(default_factory=set, init=False)
    unused: set[str] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        """Take fingerprints."""
        self.silent, self.unused = {*self.parameters}, {*self.parameters}
        self.note_values()

    def note_values(self) -> None:
        """Take fingerprints of parameters, which no trial from here on may move."""
        self.values = {n: fingerprint(p.detach()) for n, p in self.model.named_parameters()}

    def trial(
        self,
        batch: Batch,
        chance: Chance,
        rows: Collection[int] = (),
        *,
        is_whole: bool = False,
        is_recorded: bool = True,
    ) -> Trial:
        """Return the results of a batch through model and tape.

        Args:
            batch: of synthetic examples.
            chance: values of random draws.
            rows: examples whose own gradients are kept, or their sketches.
            is_whole: also keep the tape's sum of all gradients.
            is_recorded: record every module, which takes as much memory again as the forward pass.
        """
        total: dict[str, Tensor] = {}
        each: dict[int, dict[str, Tensor]] = {row: {} for row in rows}
        places = torch.arange(len(batch), device=batch.inputs.device)
        shapes = {name: self.model.get_parameter(name) for name in self.parameters}

        def take(layer: str, layer_grads: LayerGrads) -> None:
            for own in layer_grads.parameters:
                name = full_name(layer, own)
                for row, sums in [*each.items(), *([(None, total)] if is_whole else [])]:
                    grads = layer_grads.gradient(own)
                    grads = grads if row is None else grads.select(places == row)
                    whole = torch.zeros_like(
                        shapes[name], requires_grad=False, memory_format=torch.contiguous_format
                    )
                    with torch.no_grad():
                        grads.add_to(whole, None)
                    sums[name] = sketch(whole)

        recorder, draws = Recorder(len(batch)), FixedDraws(chance)
        heard = recorder.on(self.model) if is_recorded else nullcontext()
        with state_kept(self.model):
            with heard, Tape(self.model, self.parameters, take) as tape, draws:
                tape.expect(len(batch), shape=batch.inputs.shape[1:])
                outputs = self.model(batch.inputs)
                tape.backward(self.loss(outputs, batch.targets))
            return Trial(
                outputs.detach().clone(),
                each,
                total,
                recorder,
                self._moved(),
                buffers_of(self.model),
                attributes_of(self.model),
                draws,
            )

    def outputs(self, batch: Batch, chance: Chance) -> Tensor:
        """Return a batch's outputs, with autograd on, as a model's own hooks may need it."""
        with state_kept(self.model), FixedDraws(chance):
            return self.model(batch.inputs).detach().clone()

    def _moved(self) -> str | None:
        now = dict(self.model.named_parameters())
        for name, value in self.values.items():
            held = now.get(name)
            if held is None or fingerprint(held.detach()) != value:
                return name
        return None
