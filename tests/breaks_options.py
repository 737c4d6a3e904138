"""Ways to break the privacy of options that every method takes, given pytest's MonkeyPatch.

Nothing of dpexp is imported before one is applied: modules keep what they import from one another.
"""

from __future__ import annotations

import pytest


def layers_clipped_at_the_whole_norm(patch: pytest.MonkeyPatch) -> None:
    """Clip each layer at C in place of C over the root of their number."""
    from dpexp.privacy import privatize

    def broken(groups, releases):
        return {group: releases[group[0]].clip_norm for group in groups}

    patch.setattr(privatize, "bounds_of", broken)


def views_clipped_one_by_one(patch: pytest.MonkeyPatch) -> None:
    """Take every view of an example for an example."""
    from dpexp.grad_sample import Tape

    whole = Tape.expect

    def broken(self, num_examples, views=1, shape=()):
        whole(self, num_examples, shape=shape)

    patch.setattr(Tape, "expect", broken)


def views_not_divided(patch: pytest.MonkeyPatch) -> None:
    """Add an example's views up in place of their mean; they are clipped once all the same."""
    import torch

    from dpexp.training.batch_sum import BatchSum

    backward = BatchSum._backward

    def broken(self, batch, callback, weights=None):
        loss, times = self._loss, batch.views
        self._loss = lambda outputs, targets: times * loss(outputs, targets)
        try:
            with torch.enable_grad():
                return backward(self, batch, callback, weights)
        finally:
            self._loss = loss

    patch.setattr(BatchSum, "_backward", broken)


def views_by_place_in_the_draw(patch: pytest.MonkeyPatch) -> None:
    """Draw an example's views by its place among those that are drawn, not in the data.

    One example more then gives all those behind it other views.
    """
    from dpexp.training.batch_sum import BatchSum

    draws = BatchSum._draws

    def broken(self, examples, step):
        rows, drawn = draws(self, examples, step), self._mechanism.sample(step)
        if rows is not None:
            rows[drawn] = rows[: len(drawn)].clone()
        return rows

    patch.setattr(BatchSum, "_draws", broken)


def normalised_without_a_bound(patch: pytest.MonkeyPatch) -> None:
    """Divide gradients by their norms' tenth, and take a rule's weights as they come."""
    import torch

    from dpexp.privacy.clipping import Normalize

    class Unbounded(torch.Tensor):
        def minimum(self, other):
            return self.as_subclass(torch.Tensor)

    patch.setattr(
        Normalize,
        "weights",
        lambda self, norms, bound: (10 * bound / norms).as_subclass(Unbounded),
    )


def adapter_out_of_the_norm(patch: pytest.MonkeyPatch) -> None:
    """Measure examples by their gradients of all but the adapters' second matrices."""
    from dpexp.privacy.privatize import ClippedSum

    take = ClippedSum.take

    def broken(self, per_example):
        before = dict(self._sizes)
        take(self, per_example)
        if all("lora_B" in key.parameter for key in per_example):
            self._sizes = before

    patch.setattr(ClippedSum, "take", broken)


def filter_of_what_has_no_noise(patch: pytest.MonkeyPatch) -> None:
    """Let a filter of gradients take in a step's clipped sum before its noise."""
    from dpexp.methods.denoising import Kalman
    from dpexp.training.gradient import PrivateGradient

    release, reconstruct, seen = PrivateGradient._release, Kalman.reconstruct, []

    def with_noise(self, sums, *rest):
        seen[:] = [float(sum(each.double().square().sum() for each in sums.values()))]
        return release(self, sums, *rest)

    def broken(self, state, noisy):
        gradients, after = reconstruct(self, state, noisy)
        return {name: each + 1e-3 * seen[0] for name, each in gradients.items()}, after

    patch.setattr(PrivateGradient, "_release", with_noise)
    patch.setattr(Kalman, "reconstruct", broken)


def average_of_what_has_no_noise(patch: pytest.MonkeyPatch) -> None:
    """Add a step's clipped sum, before its noise, to the average that is kept."""
    import torch

    from dpexp.training.averaging import Averaged
    from dpexp.training.gradient import PrivateGradient

    release, add, seen = PrivateGradient._release, Averaged.add, []

    def with_noise(self, sums, *rest):
        seen[:] = [float(sum(each.double().square().sum() for each in sums.values()))]
        return release(self, sums, *rest)

    def broken(self, model, step):
        add(self, model, step)
        with torch.no_grad():
            next(self.model.parameters()).flatten()[0] += 1e-3 * seen[0]

    patch.setattr(PrivateGradient, "_release", with_noise)
    patch.setattr(Averaged, "add", broken)


def quantile_without_noise(patch: pytest.MonkeyPatch) -> None:
    """Release the count that an adaptive clip norm follows as it is."""
    from dpexp.training import gradient

    add = gradient.add_noise_

    def broken(sums, releases, *rest):
        add({key: total for key, total in sums.items() if key.part != "count"}, releases, *rest)

    patch.setattr(gradient, "add_noise_", broken)


def count_not_charged(patch: pytest.MonkeyPatch) -> None:
    """Give the gradients all of the budget, and account for them alone."""
    from dpexp.privacy import calibration, mechanism
    from dpexp.types import joint_sensitivity

    patch.setattr(
        calibration, "shared_multiplier", lambda sigma, some: sigma * joint_sensitivity(some)
    )
    patch.setattr(
        mechanism, "effective_multiplier", lambda sigma, some: sigma / joint_sensitivity(some)
    )


def every_group_at_every_step(patch: pytest.MonkeyPatch) -> None:
    """Draw from all examples with the probability that holds for a step's own group."""
    from dpexp.privacy import mechanism, sampling

    def broken(seed, step, dataset_size, probability, bands, *, is_secret=False):
        return sampling.poisson(seed, step, dataset_size, probability, is_secret=is_secret)

    patch.setattr(mechanism, "cyclic", broken)


def coefficients_twice_as_long(patch: pytest.MonkeyPatch) -> None:
    """Put twice the sums before the correlated noise, and account as if they were as they are."""
    from dpexp.privacy import correlation

    best = correlation.optimal

    def broken(bands, steps):
        return correlation.Correlation(tuple(2 * c for c in best(bands, steps).coefficients))

    patch.setattr(correlation, "optimal", broken)
