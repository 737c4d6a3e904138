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

    def half(sums, releases, noise_multiplier, gen):
        whole(sums, releases, noise_multiplier / 2, gen)

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
