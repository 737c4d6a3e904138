"""Ways to break the privacy of later methods and of recipes, given pytest's MonkeyPatch.

Nothing of dpexp is imported before one is applied: modules keep what they import from one another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

# DP-ZO


def laplace_ignores_directions(patch: pytest.MonkeyPatch) -> None:
    """Declare that an example moves k clipped numbers by C together, as the norm of one does."""
    from dpexp.methods.dp_zo import DPZO

    releases = DPZO.releases

    def broken(self, state, clip_norm):
        return tuple(replace(each, sensitivity=1.0) for each in releases(self, state, clip_norm))

    patch.setattr(DPZO, "releases", broken)


def differences_not_clipped(patch: pytest.MonkeyPatch) -> None:
    """Add differences of losses up as they are: there is no gradient that could explode."""
    from dpexp.methods.dp_zo import DIFFERENCES
    from dpexp.privacy.privatize import ClippedSum

    take = ClippedSum.take

    def broken(self, per_example):
        plain = {key: each for key, each in per_example.items() if key.release == DIFFERENCES}
        for key, grads in plain.items():
            grads.add_to(self._sum(key), None)
        take(self, {key: each for key, each in per_example.items() if key not in plain})

    patch.setattr(ClippedSum, "take", broken)


# DP-GRAPE


def moments_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Let Adam's moments follow the sums before their noise: they are never released, it seems."""
    from dpexp.methods.dp_grape import DPGRAPE

    adam = DPGRAPE._adam

    def watching(self, state, sums):
        self.seen = {key.parameter: total.clone() for key, total in sums.items()}
        return sums

    def broken(self, releases, state):
        return adam(
            self, {name: self.seen[name].to(each) for name, each in releases.items()}, state
        )

    patch.setattr(DPGRAPE, "compress", watching, raising=False)
    patch.setattr(DPGRAPE, "_adam", broken)


def projection_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Project onto the principal directions of the last step's sums before their noise (GaLore)."""
    import math

    import torch

    from dpexp.methods.dp_grape import DPGRAPE, PROJECTED

    prepare = DPGRAPE.prepare

    def watching(self, state, sums):
        self.seen = {
            key.parameter: total.to(state["projections"][key.parameter])
            @ state["projections"][key.parameter]
            for key, total in sums.items()
            if key.part == PROJECTED
        }
        return sums

    def broken(self, model, state, public, gen):
        state = prepare(self, model, state, public, gen)
        found = dict(state["projections"])
        for name, seen in getattr(self, "seen", {}).items():
            rank, inputs = found[name].shape
            principal = torch.linalg.svd(seen, full_matrices=False).Vh[:rank]
            found[name] = found[name].clone()
            found[name][: len(principal)] = principal * math.sqrt(inputs / rank)
        return {**state, "projections": found}

    patch.setattr(DPGRAPE, "compress", watching, raising=False)
    patch.setattr(DPGRAPE, "prepare", broken)


# DP-LoRA


def _out_of_the_norm(patch: pytest.MonkeyPatch, is_out) -> None:
    """Measure examples by all gradients but those of some parameters."""
    from dpexp.privacy.privatize import ClippedSum

    take = ClippedSum.take

    def broken(self, per_example):
        before = dict(self._sizes)
        take(self, per_example)
        if all(is_out(key.parameter) for key in per_example):
            self._sizes = before

    patch.setattr(ClippedSum, "take", broken)


def head_out_of_the_norm(patch: pytest.MonkeyPatch) -> None:
    """Train the classifier beside the adapters, and measure examples by the adapters alone."""
    _out_of_the_norm(patch, lambda parameter: parameter.startswith("head."))


def biases_out_of_the_norm(patch: pytest.MonkeyPatch) -> None:
    """Train the adapted layers' biases too (lora_only), without their part in the norm."""
    from dpexp.methods.dp_lora import DPLoRA

    trainable = DPLoRA.trainable

    def broken(self, model):
        names = trainable(self, model)
        return names + tuple(
            name
            for name, _ in model.named_parameters()
            if name.endswith(".bias") and name not in names
        )

    patch.setattr(DPLoRA, "trainable", broken)
    _out_of_the_norm(patch, lambda name: name.endswith(".bias") and not name.startswith("head."))


# Adaptive clip norms


def _scaled(patch: pytest.MonkeyPatch, before: int, behind: int) -> None:
    """Multiply sums before their noise, and what leaves, by powers of C_t over the first C."""
    import math

    from dpexp.methods.adaptive import COUNT, AdaptiveClipping

    compress, reconstruct = AdaptiveClipping.compress, AdaptiveClipping.reconstruct

    def moved(state, blocks, power):
        share = math.exp(power * state["log_share"])
        return {key: each if key == COUNT else each * share for key, each in blocks.items()}

    patch.setattr(
        AdaptiveClipping,
        "compress",
        lambda self, state, sums: moved(state, compress(self, state, sums), before),
    )
    patch.setattr(
        AdaptiveClipping,
        "reconstruct",
        lambda self, state, noisy: reconstruct(self, state, moved(state, noisy, behind)),
    )


def clip_moves_alone(patch: pytest.MonkeyPatch) -> None:
    """Clip at C_t, and add the noise that the first C asked for."""
    _scaled(patch, 1, -1)


def noise_moves_alone(patch: pytest.MonkeyPatch) -> None:
    """Add noise for C_t to what was clipped at the first C."""
    from dpexp.methods.adaptive import AdaptiveClipping
    from dpexp.methods.wrapped import Wrapped

    _scaled(patch, -1, 0)
    for name in ("per_example_grads", "per_example_scalars"):
        patch.setattr(AdaptiveClipping, name, getattr(Wrapped, name))


# Averages and filters


def last_iterates_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Average the weights that steps along the sums before their noise would have led to."""
    import torch

    from dpexp.training.averaging import Averaged
    from dpexp.training.gradient import PrivateGradient

    release, add, off = PrivateGradient._release, Averaged.add, []

    def with_noise(self, sums, *rest):
        clean = {key: total.clone() for key, total in sums.items()}
        released, *more = release(self, sums, *rest)
        size = self._mechanism.batch_size
        off[:] = [
            {key.parameter: clean[key].to(each) / size - each for key, each in released.items()}
        ]
        return released, *more

    def broken(self, model, step):
        before = {name: each.detach().clone() for name, each in model.named_parameters()}
        with torch.no_grad():
            for name, change in off[0].items():
                if before[name].shape == change.shape:
                    model.get_parameter(name).sub_(change)
            add(self, model, step)
            for name, each in before.items():
                model.get_parameter(name).copy_(each)

    patch.setattr(PrivateGradient, "_release", with_noise)
    patch.setattr(Averaged, "add", broken)


def low_pass_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Feed the low-pass filter the sums before their noise, which is added behind it."""
    from dpexp.methods.denoising import LowPass
    from dpexp.methods.wrapped import Wrapped
    from dpexp.training.gradient import PrivateGradient

    release, filtered, inner, clean = (
        PrivateGradient._release,
        LowPass.reconstruct,
        Wrapped.reconstruct,
        [],
    )

    def with_noise(self, sums, *rest):
        size = self._mechanism.batch_size
        kept = {key: total.clone() / size for key, total in sums.items()}
        released, *more = release(self, sums, *rest)
        clean[:] = [{key: kept[key].to(each) for key, each in released.items()}]
        return released, *more

    def broken(self, state, noisy):
        found, _ = inner(self, state, {key: each.clone() for key, each in noisy.items()})
        plain, _ = inner(self, state, {key: each.clone() for key, each in clean[0].items()})
        smooth, after = filtered(self, state, clean[0])
        return {name: each + found[name] - plain[name] for name, each in smooth.items()}, after

    patch.setattr(PrivateGradient, "_release", with_noise)
    patch.setattr(LowPass, "reconstruct", broken)


# Correlated noise


def one_participation(patch: pytest.MonkeyPatch) -> None:
    """Account for one step in which an example may take part, as if a run were one pass."""
    from dpexp.privacy.correlation import Correlation

    patch.setattr(Correlation, "participations", lambda self, steps: min(1, steps))
