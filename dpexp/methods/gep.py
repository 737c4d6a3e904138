"""GEP and B-GEP: gradient embedding perturbation (Yu et al. 2021, arXiv 2102.12677).

Algorithm 1, for each group of p parameters with k basis vectors, B [k, p]:

    G_a      gradients [m, p] of m public images with new labels at every update     Section 4
    A = G_a B^T, B = A^T G_a, rows orthonormalised; from a Gaussian B, t times       lines 3-7
    w_i = g_i B^T [k],  r_i = g_i - w_i B [p]                                        lines 10-11
    clip (w_i) of all groups jointly to S_1 and (r_i) to S_2, sum, add noise         lines 10-14
    v <- w B + r                                                                     line 15

B-GEP releases w alone: v <- w B (Section 3.2, Remark 1).

Differences from the paper:
 1. Backward reaches a group's layers one after the other. Their per-example gradients of the
    micro-batch are kept until the last layer, since r_i needs the whole of w_i.
 2. A is orthonormalised as well before A^T G_a, and QR (`dpexp.linalg`) replaces Gram-Schmidt: the
    same span, more stable in floating point.
 3. The pair counts as one vector of sensitivity sqrt 2 on one subsample, as in Section 4. The
    authors' code adds up the subsampled RDP of two releases, which understates epsilon; the
    certificate states both.
 4. `basis=random` draws B uniformly at every step, without any data (Appendix C).
 5. Shares of k are rounded to whole numbers, at least one per group.
 6. A linear model's gradients are never formed, nor is B: `dpexp.methods.anchor_products`.
 7. `every` above 1 keeps bases for some steps, and starts line 3 from the last ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.linalg import as_rows, power_iteration
from dpexp.methods import anchor, anchor_products
from dpexp.methods.selection import all_parameters, classifier, shapes_of
from dpexp.privacy.stated import Stated
from dpexp.types import (
    GROUP,
    ConfigError,
    Key,
    LayerGrads,
    Method,
    PerExampleGrads,
    PublicGradients,
    Release,
    State,
    first_weight,
    full_name,
    require_word,
)

EMBEDDING, RESIDUAL = "embedding", "residual"


class GEP(Method):
    """Releases two vectors a step: gradients in the anchor subspace, and their residuals."""

    def __init__(
        self,
        m: int,
        k: int,
        groups: str,
        power_iterations: int,
        basis: str,
        public_labels: str | bool,
        residual: bool,
        residual_clip: float,
        head: str,
        every: int = 1,
    ) -> None:
        """Set the options.

        Args:
            m: number of anchor gradients, >= k, from the first m images of the public set.
            k: number of basis vectors over all groups.
            groups: "stages", "layers" or "all" (`dpexp.methods.anchor`).
            power_iterations: t >= 1.
            basis: "anchor" (the paper) or "random" (no public data).
            public_labels: "random", drawn at every step, or "true" for the public set's own.
            residual: False releases the embedding alone: B-GEP.
            residual_clip: S_2 > 0, the bound on an example's residual; S_1 is the clip norm.
            head: the classifier's name in the model, which gives the number of classes.
            every: steps that a basis serves, >= 1. From the second on, the power iteration starts
                from the basis before. Above 1 bases are kept in checkpoints.

        Raises:
            ConfigError: if a value is outside its range.
        """
        require_word("method.groups", groups, anchor.GROUPINGS)
        require_word("method.basis", basis, ("anchor", "random"))
        is_random = anchor.has_random_labels("method.public_labels", public_labels)
        if basis == "anchor" and not 1 <= k <= m:
            raise ConfigError(
                f"Expected k in [1, m = {m}]: m anchor gradients span no more than m directions; "
                f"got k={k}. Set method.k or method.m."
            )
        if power_iterations < 1 or not 0 < residual_clip < math.inf:
            raise ConfigError(
                "Expected method.power_iterations >= 1 and method.residual_clip > 0; got "
                f"{power_iterations} and {residual_clip}."
            )
        if every < 1:
            raise ConfigError(f"Expected method.every >= 1; got {every}. Set method.every.")
        self._m, self._k, self._grouping = m, k, groups
        self._power_iterations, self._basis = power_iterations, basis
        self._has_random_labels = is_random
        self._residual, self._residual_clip, self._head = residual, residual_clip, head
        self._every = every
        self.public_size = m if basis == "anchor" else 0

    @staticmethod
    def unread_settings(settings: Mapping[str, Any], steps: float, last: float) -> dict[str, str]:
        """Return the settings that others leave unread, with what does."""
        found = {} if settings["residual"] else {"residual_clip": "method.residual=false"}
        if settings["basis"] == "random":
            found |= dict.fromkeys(
                ("m", "public_labels", "power_iterations"), "method.basis=random"
            )
        return found

    @staticmethod
    def stated_releases(config: Mapping[str, Any], size: int) -> list[Stated]:
        """Return the two releases that verification expects, clipped separately."""
        method = config["method"]
        stated = [Stated("embedding", float(config["privacy"]["clip_norm"]))]
        if method["residual"]:
            stated.append(Stated("residual", float(method["residual_clip"])))
        return stated

    @staticmethod
    def stated_public_examples(settings: Mapping[str, Any]) -> int:
        """Return the number of public examples that verification expects: m, or 0 if random."""
        return settings["m"] if settings["basis"] == "anchor" else 0

    def trainable(self, model: nn.Module) -> tuple[str, ...]:
        """Return the names of all parameters that are not frozen."""
        return all_parameters(model)

    def start(self, model: nn.Module) -> State:
        """Return the shapes, the groups and their shares of k.

        Raises:
            ConfigError: if k is less than the number of groups, or more than that of parameters.
        """
        shapes = shapes_of(model, all_parameters(model))
        groups = anchor.parameter_groups(shapes, self._grouping)
        sizes = {group: sum(_sizes(shapes, names)) for group, names in groups.items()}
        return {"shapes": shapes, "groups": groups, "shares": anchor.shares(sizes, self._k)}

    def prepare(
        self, model: nn.Module, state: State, public: PublicGradients | None, gen: torch.Generator
    ) -> State:
        """Return the state with this step's bases (lines 3-8), from public examples or random."""
        if state.get("served", 0) % self._every:
            return {**state, "held": {}}
        found: dict[str, Any] = {"bases": {}, "anchors": {}}
        if self._basis == "random":
            found["bases"] = self._random_bases(model, state, gen)
        else:
            assert public is not None, "a method with public_size > 0 gets public examples"
            found |= self._anchor_bases(model, state, public, gen)
        return {**state, **found, "served": 0, "held": {}}

    def _random_bases(
        self, model: nn.Module, state: State, gen: torch.Generator
    ) -> dict[str, Tensor]:
        bases: dict[str, Tensor] = {}
        for group, names in state["groups"].items():
            sizes, share = _sizes(state["shapes"], names), state["shares"][group]
            basis = anchor.random_basis(share, sum(sizes), gen, first_weight(model))
            bases |= dict(zip(names, basis.split(sizes, dim=1), strict=True))
        return bases

    def _anchor_bases(
        self, model: nn.Module, state: State, public: PublicGradients, gen: torch.Generator
    ) -> dict[str, Any]:
        """Return bases, or anchors whose combinations they are, where that takes less."""
        groups, shapes, shares = state["groups"], state["shapes"], state["shares"]
        labels = self._draw_labels(model, gen) if self._has_random_labels else None
        iterations = self._power_iterations
        if anchor_products.pays(model, groups, shapes, shares, self._m):
            found = anchor_products.gathered(public, self._m, labels, groups)
            if found is not None:
                before = state.get("anchors", {})
                for group, each in found.items():
                    found[group] = anchor_products.with_basis(
                        each, shares[group], iterations, gen, before.get(group)
                    )
                return {"anchors": found}
        anchors = anchor.anchor_gradients(public, self._m, labels, groups)
        bases: dict[str, Tensor] = {}
        for group, names in groups.items():
            gradients = anchors.pop(group)  # popped, so that its memory is freed
            before = [state["bases"][name] for name in names] if state.get("bases") else []
            start = torch.cat(before, dim=1) if before else None
            if start is not None and not start.isfinite().all():
                start = None
            _, basis = power_iteration(gradients, shares[group], iterations, gen, start)
            bases |= dict(zip(names, basis.split(_sizes(shapes, names), dim=1), strict=True))
        return {"bases": bases}

    def _draw_labels(self, model: nn.Module, gen: torch.Generator) -> Tensor:
        classes = len(model.get_parameter(classifier(model, self._head)[-1]))
        return torch.randint(classes, (self._m,), generator=gen, device=gen.device)

    def per_example_grads(
        self, state: State, layer: str, layer_grads: LayerGrads
    ) -> Mapping[Key, PerExampleGrads]:
        """Keep a layer's gradients; return w_i and r_i when its group is complete."""
        per_example: dict[Key, PerExampleGrads] = {}
        for name in layer_grads.parameters:
            full = full_name(layer, name)
            group = next(g for g, names in state["groups"].items() if full in names)
            held = state["held"].setdefault(group, {})
            is_product = group in state["anchors"]
            pair = anchor_products.factors(layer_grads, name) if is_product else None
            held[full] = pair or as_rows(layer_grads.gradient(name).materialize())
            if len(held) == len(state["groups"][group]):
                per_example |= self._project(state, group, state["held"].pop(group))
        return per_example

    def _project(
        self, state: State, group: str, gradients: dict[str, Any]
    ) -> dict[Key, PerExampleGrads]:
        embedding, residuals = self._projections(state, group, gradients)
        per_example: dict[Key, PerExampleGrads] = {
            Key(EMBEDDING, group, GROUP): MaterializedGrads(embedding)
        }
        if self._residual:
            per_example |= {Key(RESIDUAL, name): each for name, each in residuals.items()}
        return per_example

    def _projections(
        self, state: State, group: str, gradients: dict[str, Any]
    ) -> tuple[Tensor, dict[str, PerExampleGrads]]:
        if group in state["anchors"]:
            return anchor_products.projected(state["anchors"][group], gradients, state["shapes"])
        bases: dict[str, Tensor] = state["bases"]
        residuals: dict[str, PerExampleGrads] = {}
        embedding: Tensor = sum(
            (g @ bases[name].T for name, g in gradients.items()), torch.zeros(())
        )
        for name, g in gradients.items() if self._residual else ():
            residual = torch.addmm(g, embedding, bases[name], alpha=-1)
            residuals[name] = MaterializedGrads(
                residual.view(len(residual), *state["shapes"][name])
            )
        return embedding, residuals

    def release_shapes(self, state: State) -> Mapping[Key, tuple[int, ...]]:
        """Return [k] for every group and, except for B-GEP, every parameter's shape."""
        shapes = {
            Key(EMBEDDING, group, GROUP): (share,) for group, share in state["shares"].items()
        }
        if self._residual:
            shapes |= {Key(RESIDUAL, name): shape for name, shape in state["shapes"].items()}
        return shapes

    def releases(self, state: State, clip_norm: float) -> tuple[Release, ...]:
        """Return two releases: the embedding, clipped at S_1, and the residual, clipped at S_2."""
        embedding = Release(EMBEDDING, sum(state["shares"].values()), clip_norm)
        if not self._residual:
            return (embedding,)
        dimension = sum(_sizes(state["shapes"], state["shapes"]))
        return embedding, Release(RESIDUAL, dimension, self._residual_clip)

    def reconstruct(
        self, state: State, noisy: Mapping[Key, Tensor]
    ) -> tuple[dict[str, Tensor], State]:
        """Return w B + r (line 15), and a state without bases, unless they serve on."""
        gradients = {}
        for group, names in state["groups"].items():
            embedding = noisy[Key(EMBEDDING, group, GROUP)]
            for name in names:
                if group in state["anchors"]:
                    back = anchor_products.lifted(state["anchors"][group], name, embedding)
                else:
                    back = embedding @ state["bases"][name]
                gradients[name] = back.view(state["shapes"][name])
                if self._residual:
                    gradients[name] += noisy[Key(RESIDUAL, name)]
        kept = {key: state[key] for key in ("shapes", "groups", "shares")}
        if self._every > 1:
            kept |= {key: state[key] for key in ("bases", "anchors")}
            kept["served"] = state["served"] + 1
        return gradients, kept


def _sizes(shapes: Mapping[str, tuple[int, ...]], names: Iterable[str]) -> list[int]:
    return [math.prod(shapes[name]) for name in names]
