"""DP-SGD, and with clipping and noise off the non-private rows.

Abadi et al. 2016 (arXiv 1607.00133), Algorithm 1:

    g_i     per-example gradient of every trained parameter
    g_i     <- g_i / max(1, |g_i| / C)                clipped jointly over all parameters
    g~      <- (sum_i g_i + N(0, sigma^2 C^2 I)) / B  B the expected batch size

Differences from the paper:
 1. Per-example gradients are not formed: norms come from each layer's input and output gradient,
    and the clipped sum is one weighted batch gradient
    (`dpexp.grad_sample.per_example.FactoredGrads`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from dpexp.methods.selection import (
    TRAINED,
    one_release,
    shapes_of,
    trained_parameters,
    why_outside,
)
from dpexp.privacy.stated import Stated
from dpexp.types import (
    Key,
    LayerGrads,
    Method,
    PerExampleGrads,
    Release,
    State,
    full_name,
    require_word,
)

GRADIENT = "gradient"


class DPSGD(Method):
    """Releases one vector a step: the clipped sum of whole gradients."""

    is_in_fixed_coordinates = True

    def __init__(self, train: str, head: str) -> None:
        """Choose what trains.

        Args:
            train: "all" parameters; the "head" alone; the "matrices" that RGP trains, weights of
                linear and convolution layers, and the head; or "biases", those and the scales of
                norms, and the head (Bu et al. 2022, arXiv 2210.00036, who leave the scales out).
            head: the classifier's name in the model.

        Raises:
            ConfigError: for another word.
        """
        require_word("method.train", train, TRAINED)
        self._train = train
        self._head = head

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        return {"head": "method.train=all"} if settings["train"] == "all" else {}

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the whole gradient, clipped jointly, that verification expects."""
        return [Stated("gradient", float(config["privacy"]["clip_norm"]), dimension=size)]

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Name the parameters this method updates."""
        return trained_parameters(model, self._train, self._head)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return why a parameter is not of the chosen kind."""
        return why_outside(model, parameter, self._train)

    def start(self, model: nn.Module) -> State:
        """Return the parameters' shapes."""
        return {"shapes": shapes_of(model, self.trainable(model))}

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return each trained parameter's whole gradient."""
        names = {name: full_name(layer, name) for name in layer_grads.parameters}
        return {
            Key(GRADIENT, full): layer_grads.gradient(name)
            for name, full in names.items()
            if full in state["shapes"]
        }

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return each parameter's shape."""
        return {Key(GRADIENT, name): shape for name, shape in state["shapes"].items()}

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Declare the one vector."""
        return one_release(GRADIENT, self.release_shapes(state), clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Use the released gradients as they are."""
        return {key.parameter: gradient for key, gradient in noisy.items()}, state
