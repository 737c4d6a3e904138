"""Types that all rooms share: batches, layer gradients, per-example gradients, releases, methods.

Index legend, used throughout the suite: n examples, p outputs, d inputs, r rank, t positions
(tokens or pixels).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:  # a mistake in the config is answered before torch's second of import
    import torch
    from torch import Tensor, nn


class ConfigError(ValueError):
    """A user's mistake; printed on one line without a traceback, exit code 2."""


def require_word(setting: str, word: str, words: Collection[str]) -> None:
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
    """Return the setting at a dotted path such as "privacy.clip_norm"; None if it is missing."""
    value: Any = config
    for key in place.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def counted(number: float, noun: str, form: str = "") -> str:
    """Return a number with its noun: "1 step", "80 steps".

    Args:
        number: how many.
        noun: of one, with a plural in -s.
        form: of the number, as in an f-string: "," or "g".
    """
    return f"{number:{form}} {noun}{'' if number == 1 else 's'}"


def one_line(error: BaseException) -> str:
    """Return an error's message on one line."""
    return " ".join(str(error).split())


class MissingData(ConfigError):
    """Data or a pretrained model is missing; the message says what to do."""


@dataclass(frozen=True)
class Batch:
    """Examples, ready for the model.

    Attributes:
        inputs: [n, ...], normalised and on the model's device.
        targets: [n], class indices; numbers for regression.
        views: how many of them, one after another, are views of one example, whose gradient is
            their mean.
    """

    inputs: Tensor
    targets: Tensor
    views: int = 1

    def __len__(self) -> int:
        return len(self.targets)

    def to(self, device: torch.device) -> Batch:
        """Return the same examples on a device."""
        return Batch(self.inputs.to(device), self.targets.to(device), self.views)


GROUP = "group"
"""The part of a block that is of a group of parameters."""


class Key(NamedTuple):
    """Names one block of the released vector.

    Attributes:
        release: the release it belongs to; blocks of one release are clipped jointly.
        parameter: a parameter's name, as in `named_parameters`, or a group's.
        part: which of the parameter's blocks; `GROUP` where the name is a group's.
    """

    release: str
    parameter: str
    part: str = "full"


def first_weight(model: nn.Module) -> Tensor:
    """Return a model's first parameter of real numbers; whole numbers may stand before it."""
    return next(each for each in model.parameters() if each.is_floating_point())


def full_name(layer: str, parameter: str) -> str:
    """Return a parameter's name in the model; the model itself is the layer named ""."""
    return f"{layer}.{parameter}" if layer else parameter


class Size(NamedTuple):
    """Upper bounds on the size of every example's block; all in float64, [n].

    Attributes:
        squares: bound on the squared l2 norm of the block, rounding included.
        energy: bound on the squared norm of the sum of the absolute values of its terms; `squares`
            where the block itself is added.
        floor: what underflow may add to the block's weighted sum, in l2.
    """

    squares: Tensor
    energy: Tensor
    floor: Tensor

    def plus(self, other: Size) -> Size:
        """Return the size of two blocks taken together."""
        return Size(*(first + second for first, second in zip(self, other, strict=True)))

    def select(self, mask: Tensor) -> Size:
        """Drop the examples where mask [n] is False."""
        return Size(*(bound[mask] for bound in self))


class PerExampleGrads(Protocol):
    """A block of per-example gradients, formed or not."""

    def norms_squared(self) -> Tensor:
        """Bound the squared l2 norm of every example's block from above, [n] in float64."""

    def measured(self) -> tuple[Size, PerExampleGrads]:
        """Return sizes, and the smaller form to keep until the clip weights are known."""

    def add_to(self, total: Tensor, weights: Tensor | None) -> None:
        """Add the examples' blocks, times their weights [n] (None: all ones), to `total`."""

    def materialize(self) -> Tensor:
        """Return every example's block, [n, ...]; needs n times the layer's memory."""

    def select(self, mask: Tensor) -> PerExampleGrads:
        """Drop the examples where mask [n] is False."""

    def double(self) -> PerExampleGrads:
        """Return the same blocks in float64."""


class LayerGrads(Protocol):
    """One layer's input and output gradient for one micro-batch.

    `dpexp.grad_sample` has one implementation per layer type, each a dataclass; methods use this
    interface alone. W is the layer's weight flattened to [p, d]: for a convolution d counts input
    channels times kernel positions (rgp, Section 2.1).
    """

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the layer's parameters that a rule covers, e.g. ("weight",)."""

    def gradient(self, name: str) -> PerExampleGrads:
        """Return the full gradient of one parameter."""

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
        """Return the gradients times a constant, before clipping."""


@dataclass(frozen=True)
class Release:
    """One vector that is released at every step.

    Attributes:
        name: as in `Key.release`.
        dimension: number of entries.
        clip_norm: the bound C on one example's contribution; each coordinate gets noise of
            standard deviation (Laplace: of scale) noise_multiplier * clip_norm.
        sensitivity: largest change when one example is added or removed, in units of clip_norm;
            in l2 under Gaussian noise, in l1 under Laplace noise.
        noise: "gaussian" or "laplace", the same for all releases of a method.
        clip: "norm" bounds the l2 norm of an example's vector, "coordinates" the absolute value of
            each of its coordinates. "count" is one number of which an example adds 1/2 if its
            vectors lie within the clip norms, else -1/2; the clipped sum makes it by itself.
        noise_multiplier: its own, in place of the one that all others share; None: it shares that.
    """

    name: str
    dimension: int
    clip_norm: float
    sensitivity: float = 1.0
    noise: str = "gaussian"
    clip: str = "norm"
    noise_multiplier: float | None = None

    def multiplier(self, shared: float) -> float:
        """Return its noise multiplier, where that of all releases without their own is `shared`."""
        return shared if self.noise_multiplier is None else self.noise_multiplier


def is_laplace(releases: tuple[Release, ...]) -> bool:
    """Return whether a step's noise is Laplace noise."""
    return any(release.noise == "laplace" for release in releases)


def joint_sensitivity(releases: tuple[Release, ...]) -> float:
    """Return the joint sensitivity of a step's releases that share their noise, in clip norms.

    Under Gaussian noise it is in l2, the root of the sum of squares; under Laplace noise it is in
    l1, the sum.
    """
    shared = [each.sensitivity for each in releases if each.noise_multiplier is None]
    return sum(shared) if is_laplace(releases) else math.sqrt(sum(each**2 for each in shared))


State = dict[str, Any]
"""A method's state between steps: plain tensors and numbers, so that it can be saved."""


LayerCallback = Callable[[str, LayerGrads], None]
"""Called with a layer's name and its gradients."""


class PublicGradients(Protocol):
    """Per-example gradients of public examples, at the model's current weights."""

    def __len__(self) -> int:
        """Return the number of public examples."""

    def micro_batches(
        self, indices: Tensor, targets: Tensor | None
    ) -> Iterator[Mapping[str, Tensor]]:
        """Yield every trainable parameter's gradients, [m, ...], m examples at a time.

        Args:
            indices: of public examples, [n].
            targets: their class indices, [n]; None: the set's own.

        Raises:
            ConfigError: if `targets` is None and the set has none of its own.
        """

    def total(self, indices: Tensor, targets: Tensor | None) -> Mapping[str, Tensor]:
        """Return every trainable parameter's gradient, summed over the examples.

        Args:
            indices: of public examples, [n].
            targets: their class indices, [n]; None: the set's own.

        Raises:
            ConfigError: if `targets` is None and the set has none of its own.
        """

    def visit_layers(
        self, indices: Tensor, targets: Tensor | None, callback: LayerCallback
    ) -> None:
        """Call `callback` for every hooked layer, m examples at a time.

        Args:
            indices: of public examples, [n].
            targets: their class indices, [n]; None: the set's own.
            callback: called with layer gradients whose first axis is m.

        Raises:
            ConfigError: if `targets` is None and the set has none of its own.
        """


class Losses(Protocol):
    """The examples' losses of one micro-batch, by forward passes alone."""

    def __call__(self, direction: Mapping[str, Tensor], step: float) -> Tensor:
        """Return each example's loss, [n] in float64, at the weights plus step times a direction.

        Args:
            direction: of trained parameters, each in its parameter's shape.
            step: how far.
        """


class Method(Protocol):
    """A training method: everything between the layer gradients and the optimizer.

    Methods subclass it. A body here is a default.

    Attributes:
        public_size: how many public examples `prepare` needs; none are loaded if 0.
        is_forward_only: whether it takes examples' losses in place of layer gradients: then
            `per_example_scalars` is called, without hooks or a backward pass, and
            `per_example_grads` is not.
        is_in_fixed_coordinates: whether an entry of a release means the same at every step, so that
            later noise can take earlier noise back (`dpexp.privacy.correlation`).
    """

    public_size: int = 0
    is_forward_only: bool = False
    is_in_fixed_coordinates: bool = False

    def adapt(self, model: nn.Module) -> nn.Module:
        """Return the model to train: usually as it is, or with adapters put into it."""
        return model

    def merged(self, model: nn.Module) -> nn.Module:
        """Return the model to keep: usually as it is, or with its adapters in the weights."""
        return model

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the parameters that this method updates; all others are frozen."""

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why this method leaves a parameter of a name frozen, in a few words."""
        return "not trained by this method"

    def start(self, model: nn.Module) -> State:
        """Return the state before the first step."""

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Return this step's state, e.g. bases or masks, computed from nothing private.

        With several ranks, every new tensor in the returned state is overwritten in place by rank
        0's; Python numbers must already agree.
        """
        return state

    def forward_weights(self, state: State) -> Mapping[str, Tensor]:
        """Return weights that replace the model's own in this step's forward (usually none)."""
        return {}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return one layer's per-example gradients by block; called when backward reaches it.

        It may change the state's dicts and lists (each attempt gets a copy), never its tensors.
        """

    def per_example_scalars(self, state: State, losses: Losses) -> Mapping[Key, PerExampleGrads]:
        """Return all blocks of a micro-batch's examples from their losses, if `is_forward_only`.

        Other methods are not asked, and have none.
        """
        return {}

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return crafted examples that join this step's batch: how many, and all their blocks.

        Usually none. An audit's canaries (`dpexp.attacks`) enter here; they are clipped, summed and
        noised like any example.
        """
        return 0, {}

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return the shape of every block's sum over examples, also needed for an empty batch."""

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Return what is released, before noise, from the clipped sums over the whole batch.

        It must not change `sums`. `releases` states the sensitivity of the result. Noise is added
        to the result in place, so nothing else may refer to it.
        """
        return sums

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the releases of a step; they are the same at every step."""

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return a gradient per trainable parameter from the noisy releases, and the next state."""

    def remarks(
        self, state: State, epsilon_at: Callable[[Sequence[float]], float | None]
    ) -> dict[str, Any]:
        """Return further entries for the certificate (usually none).

        Args:
            state: after the last step.
            epsilon_at: maps factors, one per step, to the epsilon that the run would have if step
                t's Laplace noise were divided by factors[t]; None if the run states no epsilon.
        """
        return {}
