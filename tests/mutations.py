"""A pytest plugin that breaks dpexp's privacy on purpose, one way at a time.

    python -m pytest -p tests.mutations --break no-noise TEST

Nothing of dpexp may be imported before: modules keep what they import from one another. Each break
names the test that must fail under it (tests/test_mutations.py); docs/privacy.md shows what each
does to epsilon.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import Phase, settings


@dataclass(frozen=True)
class Break:
    """One way to break the mechanism.

    Attributes:
        apply: changes dpexp, given pytest's MonkeyPatch.
        test: the one that must fail.
        says: what its failing assertion shows, as a regular expression.
        excess: how many times larger, beside the noise, a step's sensitivity can be than what is
            accounted for; infinite where something leaves without noise; None where what leaves is
            no Gaussian mechanism that an accountant knows.
    """

    apply: Callable[[pytest.MonkeyPatch], None]
    test: str
    says: str
    excess: float | None


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


GRADIENT, PRIVATIZE = "tests/test_gradient.py", "tests/test_privatize.py"
INFLUENCE = "tests/test_influence.py"
MECHANISM, GEP = "tests/mechanism/test_mechanism.py", "tests/methods/test_gep.py"

NOISE_ON_ALL = (
    f"{GRADIENT}::test_every_released_coordinate_gets_the_declared_noise_once_and_nothing_else_does"
    "[rgp]"
)
RANKS = f"{GRADIENT}::test_ranks_share_one_draw_of_noise_and_take_the_same_step"

BREAKS = {
    "no-noise": Break(no_noise, NOISE_ON_ALL, r"assert 0 == \d+", math.inf),
    "half-noise": Break(half_noise, NOISE_ON_ALL, r"assert .*0\.0.* > 0\.001", 2),
    "noise-on-first-rank": Break(
        noise_on_the_first_rank, RANKS, r"assert 0\.\d+ < 1e-12", math.inf
    ),
    "same-noise-every-step": Break(
        same_noise_every_step,
        f"{GRADIENT}::test_different_steps_and_seeds_draw_different_noise",
        r"assert (1\.0\d*|0\.99\d+) < 0\.15",
        math.inf,
    ),
    "same-noise-every-block": Break(
        same_noise_every_block,
        f"{PRIVATIZE}::test_every_coordinate_gets_noise_of_the_declared_scale",
        r"assert .*(1\.0|0\.99\d+).* < 0\.06",
        math.inf,
    ),
    "same-noise-every-piece": Break(
        same_noise_every_piece,
        f"{PRIVATIZE}::test_blocks_drawn_in_pieces_have_fresh_noise_in_each_and_none_without[cpu]",
        r"assert .*(1\.0|0\.99\d+).* < 0\.1\b",
        math.inf,
    ),
    "clip-micro-batches": Break(
        clip_micro_batches,
        f"{PRIVATIZE}::test_adding_one_example_moves_the_sum_by_at_most_the_clip_norm",
        r"Expected [\d.]+ but got",
        2,
    ),
    "clip-layers": Break(
        clip_layers,
        f"{PRIVATIZE}::test_clipping_is_joint_over_the_blocks_of_a_release",
        r"Expected 1\.2 but got 2\.0",
        math.sqrt(26),
    ),
    "head-scaled-back-before-noise": Break(
        head_scaled_back_before_noise,
        f"{INFLUENCE}::test_an_example_that_moves_the_head_alone_moves_it_by_at_most_the_clip_norm",
        r"assert (100\.0\d*|99\.99\d+) <= ",
        10,
    ),
    "realised-batch-size": Break(
        realised_batch_size,
        f"{GRADIENT}::test_a_draw_larger_than_expected_is_used_whole_and_divided_by_the_expected"
        "_size[none clipped]",
        r"assert 0\.\d+ < 1e-12",
        None,
    ),
    "shuffle-for-poisson": Break(
        shuffle_for_poisson,
        f"{MECHANISM}::test_what_is_accounted_as_poisson_is_drawn_by_coins",
        r"assert 0\.75 < \(0\.0 / 19\.0\)",
        None,
    ),
    "private-bases-of-rgp": Break(
        private_bases_of_rgp,
        f"{GRADIENT}::test_bases_do_not_depend_on_private_data[rgp]",
        r"assert False[^$]*torch\.equal",
        math.inf,
    ),
    "private-anchors-of-gep": Break(
        private_anchors_of_gep,
        f"{GEP}::test_labels_are_drawn_afresh_at_every_step_and_nothing_else_changes_the_bases",
        r"assert False\n.*where False = all",
        math.inf,
    ),
    "one-release-forgotten": Break(
        one_release_forgotten,
        f"{MECHANISM}::test_two_releases_of_a_step_cost_root_two_and_one_draw",
        r"assert (0\.\d+) == 0\.\d+",
        math.sqrt(2),
    ),
    "nothing-is-lost": Break(
        nothing_is_lost,
        "tests/test_ledger.py::test_a_run_goes_on_where_nothing_is_released_twice[elsewhere]",
        r"assert 8 == 10",
        math.inf,
    ),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the break's name."""
    parser.addoption("--break", dest="broken", choices=sorted(BREAKS), help="break dpexp so")


def pytest_configure(config: pytest.Config) -> None:
    """Break dpexp before any test module imports from it."""
    if config.option.broken is None:
        return
    # The first counterexample will do: no search for a smaller one.
    settings.register_profile(
        "broken",
        parent=settings(),
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    settings.load_profile("broken")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    BREAKS[config.option.broken].apply(patch)


def run_broken(name: str, said: Path) -> None:
    """Run a break's test as this process's whole work, its words going to a file."""
    with said.open("w") as file:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(file.fileno(), stream.fileno())
        os.chdir(Path(__file__).resolve().parents[1])
        plugins = ("-p", "tests.mutations", "-p", "no:xdist", "-p", "no:cacheprovider")
        code = pytest.main([*plugins, "-q", "--tb=short", "--break", name, BREAKS[name].test])
        sys.stdout.flush()
    os._exit(code)  # what a test left running may not keep the process
