"""A base class for wrappers of methods, which delegates whatever is not overridden."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.types import (
    ConfigError,
    Key,
    LayerGrads,
    Losses,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
)


class Wrapped(Method):
    """Delegates every call to a method, whose state is kept in its own under "method"."""

    def __init__(self, method: Method) -> None:
        """Wrap a method."""
        self._method = method
        self.public_size = method.public_size
        self.is_forward_only = method.is_forward_only
        self.is_in_fixed_coordinates = method.is_in_fixed_coordinates

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # copy and pickle look these up before _method is set
            raise AttributeError(name)
        if "_method" not in self.__dict__:
            kind = type(self).__name__
            raise ConfigError(
                f"Expected {kind} to be given the method that it is around; its __init__ keeps "
                "none. Call super().__init__(method) in it."
            )
        return getattr(self.__dict__["_method"], name)

    def adapt(self, model: nn.Module) -> nn.Module:
        """Return the model that the method trains."""
        return self._method.adapt(model)

    def merged(self, model: nn.Module) -> nn.Module:
        """Return the model that the method keeps."""
        return self._method.merged(model)

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of the parameters the method updates."""
        return self._method.trainable(model)

    def why_frozen(self, model: nn.Module, parameter: str) -> str:
        """Return the method's reason."""
        return self._method.why_frozen(model, parameter)

    def start(self, model: nn.Module) -> State:
        """Start the method."""
        return {"method": self._method.start(model)}

    def prepare(
        self,
        model: nn.Module,
        state: State,
        public: PublicGradients | None,
        gen: torch.Generator,
    ) -> State:
        """Prepare the method's step."""
        return {**state, "method": self._method.prepare(model, state["method"], public, gen)}

    def forward_weights(self, state: State) -> Mapping[str, Tensor]:
        """Return the weights of this step's forward pass."""
        return self._method.forward_weights(state["method"])

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Return the method's per-example gradients."""
        return self._method.per_example_grads(state["method"], layer, layer_grads)

    def per_example_scalars(self, state: State, losses: Losses) -> Mapping[Key, PerExampleGrads]:
        """Return the method's blocks from losses."""
        return self._method.per_example_scalars(state["method"], losses)

    def crafted(self, state: State) -> tuple[int, Mapping[Key, PerExampleGrads]]:
        """Return the method's crafted examples."""
        return self._method.crafted(state["method"])

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return the method's blocks."""
        return self._method.release_shapes(state["method"])

    def compress(self, state: State, sums: Mapping[Key, Tensor]) -> Mapping[Key, Tensor]:
        """Compress as the method does."""
        return self._method.compress(state["method"], sums)

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return the method's declared releases."""
        return self._method.releases(state["method"], clip_norm)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Reconstruct as the method does."""
        gradients, inner = self._method.reconstruct(state["method"], noisy)
        return gradients, {**state, "method": inner}

    def remarks(
        self, state: State, epsilon_at: Callable[[Sequence[float]], float | None]
    ) -> dict[str, Any]:
        """Return the method's remarks."""
        return self._method.remarks(state["method"], epsilon_at)


def innermost(method: Any) -> Any:
    """Return the method within all wrappers, or what is no wrapper as it is."""
    while isinstance(method, Wrapped):
        method = method._method
    return method
