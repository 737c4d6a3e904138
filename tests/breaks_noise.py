"""Ways to break the noise, each a change to dpexp, given pytest's MonkeyPatch.

Nothing of dpexp is imported before one is applied: modules keep what they import from one another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest


def no_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw none, but count a draw."""
    import dpexp.training.gradient

    patch.setattr(dpexp.training.gradient, "add_noise_", lambda *_: None)


def half_noise(patch: pytest.MonkeyPatch) -> None:
    """Add half of what the certificate states."""
    import dpexp.training.gradient

    whole = dpexp.training.gradient.add_noise_

    def half(sums, releases, noise_multiplier, gen, dtype=None):
        whole(sums, releases, noise_multiplier / 2, gen, dtype)

    patch.setattr(dpexp.training.gradient, "add_noise_", half)


def noise_on_the_first_rank(patch: pytest.MonkeyPatch) -> None:
    """Return every rank the sums first, and add noise on one of them then."""
    from dpexp.privacy.noise import add_noise_
    from dpexp.training.gradient import PrivateGradient

    release = PrivateGradient._release

    def broken(self, sums, step, past):
        mechanism, ranks = self._mechanism, self._ranks
        self._mechanism = replace(mechanism, noise=False)
        released, _, past = release(self, sums, step, past)
        self._mechanism = mechanism
        ranks.broadcast(released.values())
        if ranks.is_first:
            multiplier = mechanism.noise_multiplier / mechanism.batch_size
            add_noise_(released, mechanism.releases, multiplier, mechanism.noise_generator(step))
        share = ranks.broadcast
        vars(ranks)["broadcast"] = lambda tensors: share([*tensors][-1:])  # the counts alone
        return released, 1, past

    patch.setattr(PrivateGradient, "_release", broken)


def same_noise_every_step(patch: pytest.MonkeyPatch) -> None:
    """Forget to move the generator on between steps."""
    from dpexp.privacy import Mechanism

    generator = Mechanism.noise_generator
    patch.setattr(
        Mechanism, "noise_generator", lambda self, step, device="cpu": generator(self, 0, device)
    )


def same_noise_every_block(patch: pytest.MonkeyPatch) -> None:
    """Draw every block's noise from the same state of the generator."""
    import dpexp.privacy.noise

    whole = dpexp.privacy.noise.add_noise_

    def broken(sums, releases, noise_multiplier, gen):
        releases, state = tuple(releases), gen.get_state()
        for key, total in sums.items():
            gen.set_state(state)
            whole({key: total}, releases, noise_multiplier, gen)

    patch.setattr(dpexp.privacy.noise, "add_noise_", broken)


def same_noise_every_piece(patch: pytest.MonkeyPatch) -> None:
    """Spawn the generators of a large block's pieces from a seed and not from draws."""
    import dpexp.privacy.noise
    from dpexp.privacy.seeds import generator

    patch.setattr(
        dpexp.privacy.noise,
        "spawned",
        lambda gen, count: [generator(gen.initial_seed(), "spawned", 0) for _ in range(count)],
    )


def half_precision_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw a large block's noise in half precision, as is faster on some processors."""
    import torch

    from dpexp.privacy.noise import _DRAWS, GRAIN

    whole = _DRAWS["gaussian"]

    def coarse(like, gen, dtype):
        if like.numel() < GRAIN:
            return whole(like, gen, dtype)
        return torch.randn(like.shape, generator=gen, dtype=torch.float16).to(dtype)

    patch.setitem(_DRAWS, "gaussian", coarse)


def noise_repeated_within_a_block(patch: pytest.MonkeyPatch) -> None:
    """Draw half of a large block's noise, and use it twice, the second time turned round."""
    import torch

    from dpexp.privacy.noise import _DRAWS, GRAIN

    whole = _DRAWS["gaussian"]

    def repeated(like, gen, dtype):
        if like.numel() < GRAIN:
            return whole(like, gen, dtype)
        half = whole(like[: len(like) // 2], gen, dtype)
        return torch.cat([half, -half.flip(0), whole(like[: len(like) % 2], gen, dtype)])

    patch.setitem(_DRAWS, "gaussian", repeated)


def sampler_draws_noise(patch: pytest.MonkeyPatch) -> None:
    """Toss the coins with the generator of the step's noise."""
    from dpexp.privacy import sampling

    own = sampling.generator
    patch.setattr(sampling, "generator", lambda seed, axis, index: own(seed, "noise", index))


def masks_draw_noise(patch: pytest.MonkeyPatch) -> None:
    """Draw dropout's masks with the generator of the step's noise."""
    import dpexp.training.batch_sum

    own = dpexp.training.batch_sum.seed_default

    def broken(seed, axis, index):
        own(seed, "noise" if axis.startswith("forward/") else axis, index)

    patch.setattr(dpexp.training.batch_sum, "seed_default", broken)


def noise_again_after_steps(patch: pytest.MonkeyPatch) -> None:
    """Count steps in twelve bits where their noise is seeded."""
    from dpexp.privacy import Mechanism

    generator = Mechanism.noise_generator
    patch.setattr(
        Mechanism,
        "noise_generator",
        lambda self, step, device="cpu": generator(self, step % 2**12, device),
    )


def noise_again_after_pieces(patch: pytest.MonkeyPatch) -> None:
    """Spawn no more than 1,024 generators, and begin again with the first."""
    from dpexp.privacy import seeds

    whole = seeds.spawned

    def broken(gen, count):
        some = whole(gen, min(count, 2**10))
        return [some[k % 2**10].clone_state() for k in range(count)]

    patch.setattr(seeds, "spawned", broken)


def short_secret(patch: pytest.MonkeyPatch) -> None:
    """Draw a secret of 16 bits."""
    import secrets

    from dpexp.privacy import seeds

    patch.setattr(seeds, "new_secret", lambda: secrets.randbits(16))


def secret_by_twister(patch: pytest.MonkeyPatch) -> None:
    """Draw secret noise from torch's generator, seeded with the secret."""
    from dpexp.privacy import Mechanism, seeds

    patch.setattr(
        Mechanism,
        "noise_generator",
        lambda self, step, device="cpu": seeds.generator(self.root, "noise", step, device),
    )


def noise_in_the_sums_precision(patch: pytest.MonkeyPatch) -> None:
    """Add the same noise in whichever precision the sums happen to be held."""
    import torch

    import dpexp.privacy.noise

    whole = dpexp.privacy.noise.add_noise_

    def broken(sums, releases, noise_multiplier, gen, dtype=None):
        dtype = dtype or next(iter(sums.values())).dtype
        noise = {key: torch.zeros_like(total, dtype=torch.float64) for key, total in sums.items()}
        whole(noise, releases, noise_multiplier, gen, dtype)
        for key, total in sums.items():
            total.add_(noise[key].to(total.dtype))

    patch.setattr(dpexp.privacy.noise, "add_noise_", broken)
