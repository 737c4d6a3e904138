"""Ways to break dpexp's privacy but for its noise, each a change to it, given pytest's MonkeyPatch.

Nothing of dpexp is imported before one is applied: modules keep what they import from one another.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

# Clipping


def clip_micro_batches(patch: pytest.MonkeyPatch) -> None:
    """Clip each micro-batch's sum in place of each example's vector."""
    import torch

    from dpexp.privacy.privatize import FLAT, ClippedSum

    def broken(self, num_examples):
        self.counts.examples += num_examples
        sums = {key: self._like.new_zeros(self._shapes[key]) for key in self._held}
        for key, grads in self._held.items():
            grads.add_to(sums[key], None)
        for name, release in self._releases.items():
            own = {key: total for key, total in sums.items() if key.release == name}
            norm = torch.cat([total.flatten() for total in own.values()]).norm()
            for key, total in own.items():
                self._sum(key).add_(total * FLAT.weights(norm, release.clip_norm))
        self._held, self._sizes = {}, {}

    patch.setattr(ClippedSum, "close_micro_batch", broken)


def clip_layers(patch: pytest.MonkeyPatch) -> None:
    """Clip each block at C in place of all of a release's jointly."""
    from dpexp.privacy.privatize import FLAT, ClippedSum

    def broken(self, num_examples):
        self.counts.examples += num_examples
        for key, grads in self._held.items():
            bound = self._releases[key.release].clip_norm
            weights = FLAT.weights(grads.norms_squared().sqrt(), bound)
            grads.add_to(self._sum(key), weights)
        self._held, self._sizes = {}, {}

    patch.setattr(ClippedSum, "close_micro_batch", broken)


def whole_micro_batch_dropped(patch: pytest.MonkeyPatch) -> None:
    """Leave a micro-batch out where one of its examples has a NaN, as training loops often do."""
    from dpexp.privacy.privatize import ClippedSum

    whole = ClippedSum.close_micro_batch

    def broken(self, num_examples):
        seen = [size.squares for size in self._sizes.values()] + [*self._largest.values()]
        if any(each.isnan().any() for each in seen):
            self._held, self._sizes, self._largest = {}, {}, {}
            self._is_wide = True  # as after any micro-batch
        whole(self, num_examples)

    patch.setattr(ClippedSum, "close_micro_batch", broken)


def head_scaled_back_before_noise(patch: pytest.MonkeyPatch) -> None:
    """Undo RGP's factor on the head between clipping and noise, and put it on after."""
    from dpexp.methods.rgp import RGP

    compress, reconstruct = RGP.compress, RGP.reconstruct

    def scaled(self, state, blocks, factor):
        is_head = {key: key.parameter in state["head"] for key in blocks}
        return {key: block * factor if is_head[key] else block for key, block in blocks.items()}

    patch.setattr(
        RGP,
        "compress",
        lambda self, state, sums: scaled(
            self, state, compress(self, state, sums), 1 / self._head_factor
        ),
    )
    patch.setattr(
        RGP,
        "reconstruct",
        lambda self, state, noisy: reconstruct(
            self, state, scaled(self, state, noisy, self._head_factor)
        ),
    )


def projection_scaled_after_the_clip(patch: pytest.MonkeyPatch) -> None:
    """Clip what DP-GRAPE gets by P of entries N(0, 1/d), which keep norms, and rescale the sums."""
    from math import prod, sqrt

    from dpexp.methods.dp_grape import DPGRAPE
    from dpexp.types import Key, full_name

    per_example_grads = DPGRAPE.per_example_grads

    def shrinks(state):
        inputs = {name: prod(shape[1:]) for name, shape in state["matrices"].items()}
        rank = {name: len(each) for name, each in state["projections"].items()}
        return {name: sqrt(rank[name] / inputs[name]) for name in inputs}

    def broken(self, state, layer, layer_grads):
        per_example = dict(per_example_grads(self, state, layer, layer_grads))
        weight = full_name(layer, "weight")
        if weight in state["matrices"]:
            scaled = layer_grads.scaled(shrinks(state)[weight])
            key = Key("projected", weight, "projected")
            per_example[key] = scaled.left(state["projections"][weight])
        return per_example

    def compress(self, state, sums):
        factors = {name: 1 / each for name, each in shrinks(state).items()}
        return {key: factors.get(key.parameter, 1.0) * total for key, total in sums.items()}

    patch.setattr(DPGRAPE, "per_example_grads", broken)
    patch.setattr(DPGRAPE, "compress", compress, raising=False)


def difference_clipped_after_the_sum(patch: pytest.MonkeyPatch) -> None:
    """Give every example of a micro-batch their mean loss difference, as one computes it publicly.

    It is clipped then, but it is of all of them.
    """
    from dpexp.grad_sample.per_example import MaterializedGrads
    from dpexp.methods.dp_zo import DPZO

    per_example_scalars = DPZO.per_example_scalars

    def broken(self, state, losses):
        return {
            key: MaterializedGrads(grads.values.mean(0).expand_as(grads.values))
            for key, grads in per_example_scalars(self, state, losses).items()
        }

    patch.setattr(DPZO, "per_example_scalars", broken)


def top_entries_of_exact_sums(patch: pytest.MonkeyPatch) -> None:
    """Keep the top tenth of a sum's entries, chosen before the noise; declare what DP-SGD does."""
    from dpexp.methods.dpsgd import DPSGD
    from tests.unsound import TopEntries

    patch.setattr(DPSGD, "compress", TopEntries.compress, raising=False)


def kept_beside_the_state(patch: pytest.MonkeyPatch) -> None:
    """Return only where the last step's exact sums were positive."""
    from dpexp.grad_sample.per_example import MaterializedGrads
    from dpexp.methods.dpsgd import DPSGD

    per_example_grads = DPSGD.per_example_grads

    def watching(self, state, sums):
        self.seen = {key: total > 0 for key, total in sums.items()}
        return sums

    def broken(self, state, layer, layer_grads):
        per_example = per_example_grads(self, state, layer, layer_grads)
        seen = getattr(self, "seen", None)
        if seen is None:
            return per_example
        return {
            key: MaterializedGrads(each.materialize() * seen[key])
            for key, each in per_example.items()
        }

    patch.setattr(DPSGD, "compress", watching, raising=False)
    patch.setattr(DPSGD, "per_example_grads", broken)


# What goes in


def images_by_their_own_mean(patch: pytest.MonkeyPatch) -> None:
    """Move images by the private set's mean in place of the config's constant."""
    from dpexp.data import images

    assemble = images.assemble

    def broken(name, train, test, **settings):
        mean = (train.inputs.double() / 255).mean((0, 2, 3)).tolist()
        return assemble(name, replace(train, mean=mean), replace(test, mean=mean), **settings)

    patch.setattr(images, "assemble", broken)


# What is made of the release

BELOW = 2.0
"""Mean loss at which a run might be called done; where nothing is learnt of ten classes, 2.3."""


def rate_by_private_loss(patch: pytest.MonkeyPatch) -> None:
    """Halve the learning rate whenever a step's training loss is larger than the last one's."""
    import dpexp.training.train
    from dpexp.training.lifecycle import Lifecycle

    seen, after, rates = [], Lifecycle.after_step, dpexp.training.train.set_rates

    def watching(self, outcome):
        seen.append(outcome.loss / max(1, outcome.examples))
        after(self, outcome)

    def steered(optimizer, initial, multiplier):
        rises = sum(later > earlier for earlier, later in zip(seen, seen[1:], strict=False))
        rates(optimizer, initial, multiplier * 0.5**rises)

    patch.setattr(Lifecycle, "after_step", watching)
    patch.setattr(dpexp.training.train, "set_rates", steered)


def stopped_by_private_loss(patch: pytest.MonkeyPatch) -> None:
    """End the run at the first step whose training loss is small, and account for all steps."""
    from dpexp.training.lifecycle import Lifecycle

    after = Lifecycle.after_step

    def broken(self, outcome):
        after(self, outcome)
        if outcome.loss < BELOW * outcome.examples:
            self._state.step = self._state.noise_draws = self._mechanism.num_steps

    patch.setattr(Lifecycle, "after_step", broken)


def step_by_exact_norm(patch: pytest.MonkeyPatch) -> None:
    """Divide the step by the norm of the sums before their noise."""
    import torch

    from dpexp.training.gradient import PrivateGradient

    release = PrivateGradient._release

    def broken(self, sums, step, past):
        norm = float(torch.cat([total.flatten() for total in sums.values()]).norm())
        released, draws, past = release(self, sums, step, past)
        return {key: block / max(norm, 1.0) for key, block in released.items()}, draws, past

    patch.setattr(PrivateGradient, "_release", broken)


def fitted_at_evaluations(patch: pytest.MonkeyPatch) -> None:
    """Fit the classifier's offset to training examples before every evaluation."""
    import torch

    import dpexp.training.train

    judge = dpexp.training.train.judge

    def broken(model, task, device, **settings):
        with torch.no_grad():
            some = task.train.batch(torch.arange(100))
            model.head.bias.sub_(model(some.inputs).mean(0))
        return judge(model, task, device, **settings)

    patch.setattr(dpexp.training.train, "judge", broken)


def warm_start_on_private(patch: pytest.MonkeyPatch) -> None:
    """Learn from the private examples first, without noise, in place of the public ones."""
    import dpexp.training.warm_start

    fit = dpexp.training.warm_start.fit

    def broken(model, task, **settings):
        fit(model, replace(task, public=task.train), **settings)

    patch.setattr(dpexp.training.warm_start, "fit", broken)


# Sampling and averaging


def realised_batch_size(patch: pytest.MonkeyPatch) -> None:
    """Divide by how many examples were drawn."""
    from dpexp.training.gradient import PrivateGradient

    release = PrivateGradient._release

    def broken(self, sums, step, past):
        mechanism = self._mechanism
        drawn = max(1, len(mechanism.sample(step)))
        self._mechanism = replace(mechanism, batch_size=drawn)
        try:
            return release(self, sums, step, past)
        finally:
            self._mechanism = mechanism

    patch.setattr(PrivateGradient, "_release", broken)


def shuffle_for_poisson(patch: pytest.MonkeyPatch) -> None:
    """Take slices of a permutation, and account for coins."""
    from dpexp.privacy import Mechanism
    from dpexp.privacy.sampling import shuffled

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

    from dpexp.training.gradient import PrivateGradient

    call = PrivateGradient.__call__

    def broken(self, state, examples, *rest):
        as_many = torch.arange(len(self._public)) % len(examples)
        self._public = replace(self._public, examples=examples.take(as_many))
        return call(self, state, examples, *rest)

    patch.setattr(PrivateGradient, "__call__", broken)


# Accounting


def one_release_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Account for the first release of a step alone."""
    from dpexp.privacy import calibration, mechanism

    patch.setattr(
        calibration, "shared_multiplier", lambda sigma, releases: sigma * releases[0].sensitivity
    )
    patch.setattr(
        mechanism, "effective_multiplier", lambda sigma, releases: sigma / releases[0].sensitivity
    )


# Taking up again


def nothing_is_lost(patch: pytest.MonkeyPatch) -> None:
    """Go on from the checkpoint, whatever was released since and wherever."""
    from dpexp.records import Mark

    patch.setattr(Mark, "resumed", lambda self, step, surroundings: self)


def repeats_are_not_compared(patch: pytest.MonkeyPatch) -> None:
    """Release a step again after a kill, however it comes out."""
    from dpexp.records import Ledger

    patch.setattr(Ledger, "note_release", lambda self, steps, fingerprint: None)
