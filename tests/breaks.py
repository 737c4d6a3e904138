"""Ways to break dpexp's privacy, each a change to it, given pytest's MonkeyPatch.

Nothing of dpexp is imported before one is applied: modules keep what they import from one another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

# Noise


def no_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw none, but count a draw."""
    import dpexp.gradient

    patch.setattr(dpexp.gradient, "add_noise_", lambda *_: None)


def half_noise(patch: pytest.MonkeyPatch) -> None:
    """Add half of what the certificate states."""
    import dpexp.gradient

    whole = dpexp.gradient.add_noise_

    def half(sums, releases, noise_multiplier, gen, dtype=None):
        whole(sums, releases, noise_multiplier / 2, gen, dtype)

    patch.setattr(dpexp.gradient, "add_noise_", half)


def noise_on_the_first_rank(patch: pytest.MonkeyPatch) -> None:
    """Give every rank the sums first, and add noise on one of them then."""
    from dpexp.gradient import PrivateGradient
    from dpexp.privatize import add_noise_

    release = PrivateGradient._release

    def broken(self, sums, step):
        mechanism, ranks = self._mechanism, self._ranks
        self._mechanism = replace(mechanism, noise=False)
        released, _ = release(self, sums, step)
        self._mechanism = mechanism
        ranks.as_first(released.values())
        if ranks.is_first:
            multiplier = mechanism.noise_multiplier / mechanism.batch_size
            add_noise_(released, mechanism.releases, multiplier, mechanism.noise_generator(step))
        share = ranks.as_first
        vars(ranks)["as_first"] = lambda tensors: share([*tensors][-1:])  # the counts alone
        return released, 1

    patch.setattr(PrivateGradient, "_release", broken)


def same_noise_every_step(patch: pytest.MonkeyPatch) -> None:
    """Forget to move the generator on between steps."""
    from dpexp.mechanism import Mechanism

    generator = Mechanism.noise_generator
    patch.setattr(
        Mechanism, "noise_generator", lambda self, step, device="cpu": generator(self, 0, device)
    )


def same_noise_every_block(patch: pytest.MonkeyPatch) -> None:
    """Draw every block's noise from the same state of the generator."""
    import dpexp.privatize

    whole = dpexp.privatize.add_noise_

    def broken(sums, releases, noise_multiplier, gen):
        releases, state = tuple(releases), gen.get_state()
        for key, total in sums.items():
            gen.set_state(state)
            whole({key: total}, releases, noise_multiplier, gen)

    patch.setattr(dpexp.privatize, "add_noise_", broken)


def same_noise_every_piece(patch: pytest.MonkeyPatch) -> None:
    """Spawn the generators of a large block's pieces from a seed and not from draws."""
    import dpexp.privatize
    from dpexp.seeds import generator

    patch.setattr(
        dpexp.privatize,
        "spawned",
        lambda gen, count: [generator(gen.initial_seed(), "spawned", 0) for _ in range(count)],
    )


def half_precision_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw a large block's noise in half precision, as is faster on some processors."""
    import torch

    from dpexp.privatize import _DRAWS, GRAIN

    whole = _DRAWS["gaussian"]

    def coarse(like, gen, dtype):
        if like.numel() < GRAIN:
            return whole(like, gen, dtype)
        return torch.randn(like.shape, generator=gen, dtype=torch.float16).to(dtype)

    patch.setitem(_DRAWS, "gaussian", coarse)


def noise_repeated_within_a_block(patch: pytest.MonkeyPatch) -> None:
    """Draw half of a large block's noise, and use it twice, the second time turned round."""
    import torch

    from dpexp.privatize import _DRAWS, GRAIN

    whole = _DRAWS["gaussian"]

    def repeated(like, gen, dtype):
        if like.numel() < GRAIN:
            return whole(like, gen, dtype)
        half = whole(like[: len(like) // 2], gen, dtype)
        return torch.cat([half, -half.flip(0), whole(like[: len(like) % 2], gen, dtype)])

    patch.setitem(_DRAWS, "gaussian", repeated)


def sampler_draws_noise(patch: pytest.MonkeyPatch) -> None:
    """Toss the coins with the generator of the step's noise."""
    from dpexp.mechanism import sampling

    own = sampling.generator
    patch.setattr(sampling, "generator", lambda seed, axis, index: own(seed, "noise", index))


def masks_draw_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw dropout's masks with the generator of the step's noise."""
    import dpexp.gradient

    own = dpexp.gradient.seed_default

    def broken(seed, axis, index):
        own(seed, "noise" if axis.startswith("forward/") else axis, index)

    patch.setattr(dpexp.gradient, "seed_default", broken)


# Clipping


def clip_micro_batches(patch: pytest.MonkeyPatch) -> None:
    """Clip each micro-batch's sum in place of each example's vector."""
    import torch

    from dpexp.privatize import ClippedSum, clip_weights

    def broken(self, num_examples):
        self.counts.examples += num_examples
        sums = {key: self._like.new_zeros(self._shapes[key]) for key in self._held}
        for key, carrier in self._held.items():
            carrier.add_to(sums[key], None)
        for name, release in self._releases.items():
            own = {key: total for key, total in sums.items() if key.release == name}
            norm = torch.cat([total.flatten() for total in own.values()]).norm()
            for key, total in own.items():
                self._sum(key).add_(total * clip_weights(norm, release.clip_norm))
        self._held, self._sizes = {}, {}

    patch.setattr(ClippedSum, "close_micro_batch", broken)


def clip_layers(patch: pytest.MonkeyPatch) -> None:
    """Clip each block at C in place of all of a release's jointly."""
    from dpexp.privatize import ClippedSum, clip_weights

    def broken(self, num_examples):
        self.counts.examples += num_examples
        for key, carrier in self._held.items():
            bound = self._releases[key.release].clip_norm
            weights = clip_weights(carrier.squared_norms().sqrt(), bound)
            carrier.add_to(self._sum(key), weights)
        self._held, self._sizes = {}, {}

    patch.setattr(ClippedSum, "close_micro_batch", broken)


def head_scaled_back_before_noise(patch: pytest.MonkeyPatch) -> None:
    """Undo RGP's scaling of the head between clipping and noise."""
    from dpexp.methods.rgp import RGP

    compress, reconstruct = RGP.compress, RGP.reconstruct

    def scaled(self, state, blocks, factor):
        is_head = {key: key.parameter in state["head"] for key in blocks}
        return {key: block * factor if is_head[key] else block for key, block in blocks.items()}

    patch.setattr(
        RGP,
        "compress",
        lambda self, state, sums: scaled(
            self, state, compress(self, state, sums), 1 / self._head_scale
        ),
    )
    patch.setattr(
        RGP,
        "reconstruct",
        lambda self, state, noisy: reconstruct(
            self, state, scaled(self, state, noisy, self._head_scale)
        ),
    )


def top_entries_of_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """Keep the top tenth of a sum's entries, chosen before the noise; declare what DP-SGD does."""
    from dpexp.methods.dpsgd import DPSGD
    from tests.unsound import TopEntries

    patch.setattr(DPSGD, "compress", TopEntries.compress, raising=False)


# What is made of the release

BELOW = 2.0
"""Mean loss at which a run might be called done; where nothing is learnt of ten classes, 2.3."""


def rate_by_private_loss(patch: pytest.MonkeyPatch) -> None:
    """Halve the learning rate whenever a step's training loss is larger than the last one's."""
    import dpexp.train
    from dpexp.logbook import Logbook

    seen, after, rates = [], Logbook.after_step, dpexp.train.set_rates

    def watching(self, outcome):
        seen.append(outcome.loss / max(1, outcome.examples))
        after(self, outcome)

    def steered(optimizer, initial, multiplier):
        rises = sum(later > earlier for earlier, later in zip(seen, seen[1:], strict=False))
        rates(optimizer, initial, multiplier * 0.5**rises)

    patch.setattr(Logbook, "after_step", watching)
    patch.setattr(dpexp.train, "set_rates", steered)


def stopped_by_private_loss(patch: pytest.MonkeyPatch) -> None:
    """End the run at the first step whose training loss is small, and account for all steps."""
    from dpexp.logbook import Logbook

    after = Logbook.after_step

    def broken(self, outcome):
        after(self, outcome)
        if outcome.loss < BELOW * outcome.examples:
            self._at.step = self._at.noise_draws = self._mechanism.num_steps

    patch.setattr(Logbook, "after_step", broken)


def step_by_exact_norm(patch: pytest.MonkeyPatch) -> None:
    """Divide the step by the norm of the sums before their noise."""
    import torch

    from dpexp.gradient import PrivateGradient

    release = PrivateGradient._release

    def broken(self, sums, step):
        norm = float(torch.cat([total.flatten() for total in sums.values()]).norm())
        released, draws = release(self, sums, step)
        return {key: block / max(norm, 1.0) for key, block in released.items()}, draws

    patch.setattr(PrivateGradient, "_release", broken)


def fitted_at_evaluations(patch: pytest.MonkeyPatch) -> None:
    """Fit the classifier's offset to training examples before every evaluation."""
    import torch

    import dpexp.train

    judge = dpexp.train.judge

    def broken(model, task, device):
        with torch.no_grad():
            some = task.train.batch(torch.arange(100))
            model.head.bias.sub_(model(some.inputs).mean(0))
        return judge(model, task, device)

    patch.setattr(dpexp.train, "judge", broken)


def warm_start_on_private(patch: pytest.MonkeyPatch) -> None:
    """Learn from the private examples first, without noise, in place of the public ones."""
    import dpexp.models.warm_start

    fit = dpexp.models.warm_start.fit

    def broken(model, task, **settings):
        fit(model, replace(task, public=task.train), **settings)

    patch.setattr(dpexp.models.warm_start, "fit", broken)


# Sampling and averaging


def realised_batch_size(patch: pytest.MonkeyPatch) -> None:
    """Divide by how many examples were drawn."""
    from dpexp.gradient import PrivateGradient

    release = PrivateGradient._release

    def broken(self, sums, step):
        mechanism = self._mechanism
        drawn = max(1, len(mechanism.sample(step)))
        self._mechanism = replace(mechanism, batch_size=drawn)
        try:
            return release(self, sums, step)
        finally:
            self._mechanism = mechanism

    patch.setattr(PrivateGradient, "_release", broken)


def shuffle_for_poisson(patch: pytest.MonkeyPatch) -> None:
    """Take slices of a permutation, and account for coins."""
    from dpexp.mechanism import Mechanism
    from dpexp.mechanism.sampling import shuffled

    def broken(self, step):
        return shuffled(self.root, step, self.dataset_size, self.batch_size)

    patch.setattr(Mechanism, "sample", broken)


# Bases


def private_bases_of_rgp(patch: pytest.MonkeyPatch) -> None:
    """Take RGP's left bases from the last step's sums, before their noise."""
    from dpexp.linalg import orthonormal_columns
    from dpexp.methods.rgp import CARRIERS, RGP
    from dpexp.types import Key

    compress, prepare = RGP.compress, RGP.prepare

    def watching(self, state, sums):
        self.seen = {name: sums[Key(CARRIERS, name, "left")].clone() for name in state["left"]}
        return compress(self, state, sums)

    def broken(self, model, state, public, gen):
        state = prepare(self, model, state, public, gen)
        seen = getattr(self, "seen", {})
        left = {name: orthonormal_columns(matrix) for name, matrix in seen.items()}
        return {**state, "left": {**state["left"], **left}}

    patch.setattr(RGP, "compress", watching)
    patch.setattr(RGP, "prepare", broken)


def private_anchors_of_gep(patch: pytest.MonkeyPatch) -> None:
    """Take GEP's anchor gradients from private examples."""
    import torch

    from dpexp.gradient import PrivateGradient

    call = PrivateGradient.__call__

    def broken(self, state, examples, *rest):
        as_many = torch.arange(len(self._public)) % len(examples)
        self._public = replace(self._public, examples=examples.take(as_many))
        return call(self, state, examples, *rest)

    patch.setattr(PrivateGradient, "__call__", broken)


# Accounting


def one_release_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Account for the first release of a step alone."""
    from dpexp.mechanism import calibration, mechanism

    for module in (calibration, mechanism):
        patch.setattr(module, "joint_sensitivity", lambda releases: releases[0].sensitivity)


# Taking up again


def nothing_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Go on from the checkpoint, whatever was released since and wherever."""
    from dpexp.records import Mark

    patch.setattr(Mark, "taken_up", lambda self, step, surroundings: self)
