"""The words the rooms share: a batch, layer gradients, per-example gradients, a release, a method.

Index legend, used throughout the suite: n examples, p outputs, d inputs, r rank, t positions
(tokens or pixels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn


class ConfigError(ValueError):
    """A mistake in what the user asked for; printed as one line, exit code 2, no traceback."""


def require_word(setting: str, word: str, words: Sequence[str]) -> None:
    """Check that a setting is one of a few words.

    Raises:
        ConfigError: naming the nearest one.
    """
    if word not in words:
        nearest = get_close_matches(str(word), words, 1, 0.0)[0]
        raise ConfigError(
            f"Expected {setting} to be one of {', '.join(words)}; got {setting}={word}. "
            f"Did you mean {nearest}?"
        )


def setting_at(config: Mapping[str, Any], place: str) -> Any:
    """Return the setting at a place such as "privacy.clip_norm"; None where there is none."""
    value: Any = config
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def one_line(error: BaseException) -> str:
    """Return an error's words on one line."""
    return " ".join(str(error).split())


class MissingData(ConfigError):
    """Data or a pretrained model is not where it was looked for; the line says what to do."""


@dataclass(frozen=True)
class Batch:
    """Some examples, ready for the model.

    Attributes:
        inputs: [n, ...], normalised and on the model's device.
        targets: [n], class indices, or numbers in a regression.
    """

    inputs: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Batch:
        """Return the same examples on a device."""
        return Batch(self.inputs.to(device), self.targets.to(device))


class Key(NamedTuple):
    """Names one block of the released vector.

    Attributes:
        release: the release it belongs to; blocks of one release are clipped jointly.
        parameter: the parameter it speaks of, as in `named_parameters`, or a group of them.
        part: which of the parameter's blocks it is.
    """

    release: str
    parameter: str
    part: str = "full"


def full_name(layer: str, parameter: str) -> str:
    """Return a parameter's name in the model; the model itself is the layer named ""."""
    return f"{layer}.{parameter}" if layer else parameter


class Size(NamedTuple):
    """How large every example's block can be; all in float64, [n].

    Attributes:
        squares: at least the squared l2 norm of the block, whatever rounding took from it.
        energy: at least the squared norm of what its sum adds were every term positive; `squares`
            where the block itself is added.
        floor: what underflow may add to the block's weighted sum, in l2.
    """

    squares: Tensor
    energy: Tensor
    floor: Tensor

    def plus(self, other: Size) -> Size:
        """Return the size of two blocks as one."""
        return Size(*(mine + its for mine, its in zip(self, other, strict=True)))

    def select(self, mask: Tensor) -> Size:
        """Drop the examples where mask [n] is False."""
        return Size(*(each[mask] for each in self))


class PerExampleGrads(Protocol):
    """A block of per-example vectors that need never exist side by side."""

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's block from above, [n] in float64."""

    def measured(self) -> tuple[Size, PerExampleGrads]:
        """Return sizes, and the smaller form to hold until clip weights are known."""

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the examples' blocks to their sum, each times its weight [n] (None: all ones)."""

    def materialize(self) -> Tensor:
        """Form every example's block side by side, [n, ...]; large where the layer is."""

    def select(self, mask: Tensor) -> PerExampleGrads:
        """Drop the examples where mask [n] is False."""

    def double(self) -> PerExampleGrads:
        """Return the same blocks in float64."""


class LayerGrads(Protocol):
    """What one layer saw of one micro-batch: its input and its output's gradient.

    One implementation per layer type, in `dpexp.grad_sample`; a method sees only this. W is the
    layer's weight flattened to [p, d]: for a convolution d counts input channels times kernel
    positions (rgp, Section 2.1).

    Every one is a dataclass.
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """Name the layer's own parameters that a rule exists for, e.g. ("weight", "bias")."""

    def gradient(self, name: str) -> PerExampleGrads:
        """Return the whole gradient of one parameter."""

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> PerExampleGrads:
        """Return dL_i = dW_i R^T, [n, p, r], for R [r, d] (rgp, Theorem 2.1).

        With `rows`, indices [p'] of outputs, only those rows are computed: [n, p', r].
        """

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> PerExampleGrads:
        """Return dR_i = L^T dW_i, [n, r, d], for L [p, r] (rgp, Theorem 2.1).

        With `columns`, indices [d'] of inputs (of input channels, for a convolution, each with
        its whole kernel), only those columns are computed: [n, r, d'] or [n, r, d' k k].
        """

    def scaled(self, factor: float) -> LayerGrads:
        """Multiply every example's gradient by a constant, before anything is clipped."""


@dataclass(frozen=True)
class Release:
    """One vector that leaves the private data at every step.

    Attributes:
        name: how keys refer to it.
        dimension: how many numbers it holds.
        clip_norm: the bound C on one example's contribution; each coordinate gets noise of
            standard deviation (Laplace: of scale) noise_multiplier * clip_norm.
        sensitivity: largest change when one example is added or removed, in units of clip_norm;
            in l2 under Gaussian noise, in l1 under Laplace noise.
        noise: "gaussian" or "laplace", the same for all releases of a method.
        clip: what the bound is on: the l2 "norm" of an example's vector, or the absolute value
            of each of its "coordinates".
    """

    name: str
    dimension: int
    clip_norm: float
    sensitivity: float = 1.0
    noise: str = "gaussian"
    clip: str = "norm"


def is_laplace(releases: tuple[Release, ...]) -> bool:
    """Return whether a step's noise is Laplace's."""
    return any(release.noise == "laplace" for release in releases)


def joint_sensitivity(releases: tuple[Release, ...]) -> float:
    """Return the sensitivity of all releases of a step taken as one vector, in clip norms.

    In l2, under Gaussian noise, it is the root of the sum of squares; in l1, under Laplace noise,
    the sum.
    """
    if is_laplace(releases):
        return sum(release.sensitivity for release in releases)
    return math.sqrt(sum(release.sensitivity**2 for release in releases))


State = dict[str, Any]
"""A method's whole memory between steps: plain tensors and numbers, so that it can be saved."""


LayerCallback = Callable[[str, LayerGrads], None]
"""Takes a layer's name and its gradients."""


class PublicGradients(Protocol):
    """Per-example gradients of public examples, at the model's present weights."""

    def __len__(self) -> int:
        """Count the public examples."""

    def micro_batches(
        self, indices: Tensor, targets: Tensor | None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Return every trainable parameter's gradients, [m, ...], some m examples at a time.

        Args:
            indices: of public examples, [n].
            targets: their class indices, [n]; None: the set's own.

        Raises:
            ConfigError: if the set's own targets are wanted where it has none.
        """

    def total(self, indices: Tensor, targets: Tensor | None) -> Mapping[str, Tensor]:
        """Return every trainable parameter's gradient, summed over some examples.

        Args:
            indices: of public examples, [n].
            targets: their class indices, [n]; None: the set's own.

        Raises:
            ConfigError: if the set's own targets are wanted where it has none.
        """

    def visit_layers(
        self, indices: Tensor, targets: Tensor | None, callback: LayerCallback
    ) -> None:
        """Call back for every hooked layer, some m examples at a time.

        Args:
            indices: of public examples, [n].
            targets: their class indices, [n]; None: the set's own.
            callback: takes layer gradients whose first axis is m.

        Raises:
            ConfigError: if the set's own targets are wanted where it has none.
        """


class Method(Protocol):
    """What a method does between the tape and the optimizer; the trainer does everything else.

    Methods subclass it; what has a body here is what most of them do.

    Attributes:
        public_size: how many public examples `prepare` needs; with 0 none are loaded.
    """

    public_size: int = 0

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Name the parameters this method updates; all others are frozen."""

    def start(self, model: nn.Module) -> State:
        """Return the state before the first step."""

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Return this step's state: bases or masks, from nothing private.

        On several ranks every tensor new in the returned state is overwritten in place by the first
        rank's; Python numbers must already agree.
        """
        return state

    def forward_weights(self, state: State) -> Mapping[str, Tensor]:
        """Return the weights to run this step with in place of the model's own (usually none)."""
        return {}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return one layer's per-example gradients by block; called as backward reaches it.

        May mutate the state's dicts and lists (each attempt gets a copy), never its tensors.
        """

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return made-up examples that join this step's draw: how many, and all their blocks.

        Usually none; an audit's canaries (`dpexp.attacks`) come in here, and are clipped, summed
        and noised like any example.
        """
        return 0, {}

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return the shape of every block's sum over examples; empty draws need it."""

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Turn the clipped sums over the whole batch into what is released, before the noise.

        It must not change `sums`; whatever it gives, `releases` states the sensitivity of. Noise is
        added to that in place, so nothing else may hold it.
        """
        return sums

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare what leaves at every step; the same at every step."""

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Turn what was released into a gradient per trainable parameter, and the next state."""

    def remarks(
        self, state: State, epsilon_at: Callable[[Sequence[float]], float | None]
    ) -> dict[str, Any]:
        """Return what the certificate should say besides (usually nothing).

        Args:
            state: after the last step.
            epsilon_at: takes factors, one a step, to the run's epsilon had step t's Laplace noise
                been divided by factors[t]; None where there is none to state.
        """
        return {}
