"""Slips of whoever adds to dpexp, each a way to break its privacy, given pytest's MonkeyPatch.

Nothing of dpexp is imported before one is applied: modules keep what they import from one another.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest


def classes_weighted_by_private_labels(patch: pytest.MonkeyPatch) -> None:
    """Weigh classes by how seldom training labels have them, so that rare ones count as much."""
    import torch
    import torch.nn.functional as F

    from dpexp.data import images

    assemble = images.assemble

    def broken(name, train, test, **settings):
        task = assemble(name, train, test, **settings)
        often = torch.bincount(train.targets, minlength=task.num_classes).clamp(min=1)
        weights = len(train) / (task.num_classes * often)

        def loss(outputs, targets):
            return F.cross_entropy(outputs, targets, weights.to(outputs), reduction="sum")

        return replace(task, loss=loss)

    patch.setattr(images, "assemble", broken)


def labels_smoothed_by_the_batch(patch: pytest.MonkeyPatch) -> None:
    """Smooth labels towards how often the micro-batch has them, in place of all classes alike."""
    import torch.nn.functional as F

    from dpexp.data import digits

    assemble = digits.assemble

    def broken(name, train, test, **settings):
        task = assemble(name, train, test, **settings)

        def loss(outputs, targets):
            ones = F.one_hot(targets, task.num_classes).to(outputs)
            soft = 0.9 * ones + 0.1 * ones.mean(0)
            return F.cross_entropy(outputs, soft, reduction="sum")

        return replace(task, loss=loss)

    patch.setattr(digits, "assemble", broken)


def views_of_several_examples(patch: pytest.MonkeyPatch) -> None:
    """Mix every view with one of the next example of the micro-batch (mixup)."""
    from dpexp.data.augmentation import CropFlip

    views = CropFlip.views

    def broken(self, batch, draws):
        seen = views(self, batch, draws)
        others = seen.inputs.roll(self.multiplicity, 0)
        return replace(seen, inputs=0.8 * seen.inputs + 0.2 * others)

    patch.setattr(CropFlip, "views", broken)


def rule_looks_at_the_batch(patch: pytest.MonkeyPatch) -> None:
    """Take gamma of `clipping=normalize` as a share of the micro-batch's mean norm."""
    from dpexp.privacy.clipping import Normalize

    def broken(self, norms, bound):
        return bound / (norms + self.gamma * norms[norms.isfinite()].mean())

    patch.setattr(Normalize, "weights", broken)


def draws_cut_to_fit(patch: pytest.MonkeyPatch) -> None:
    """Leave examples out of a draw that is half as large again as expected: memory is short."""
    from dpexp.privacy import sampling

    poisson = sampling.poisson

    def broken(seed, step, dataset_size, probability):
        most = math.ceil(1.5 * probability * dataset_size)
        return poisson(seed, step, dataset_size, probability)[:most]

    patch.setattr(sampling, "poisson", broken)


def shares_padded_to_one_size(patch: pytest.MonkeyPatch) -> None:
    """Let ranks have equally many examples, some twice, as torch's DistributedSampler does."""
    import torch

    from dpexp.distributed.ranks import Ranks

    share = Ranks.share

    def broken(self, indices):
        lacking = -len(indices) % self.size
        return share(self, torch.cat([indices, indices[:lacking]]))

    patch.setattr(Ranks, "share", broken)


def kept_by_private_loss(patch: pytest.MonkeyPatch) -> None:
    """Keep the weights behind the step whose training loss was least, as early stopping does."""
    import copy

    from dpexp.training.lifecycle import Lifecycle

    after, finish = Lifecycle.after_step, Lifecycle.finish

    def watching(self, outcome):
        after(self, outcome)
        loss = outcome.loss / max(1, outcome.examples)
        if loss < getattr(self, "least", math.inf):
            self.least, self.best = loss, copy.deepcopy(self._state.model.state_dict())

    def broken(self, task, certificate, numbers, arrays=None, model=None):
        self._state.model.load_state_dict(self.best)
        finish(self, task, certificate, numbers, arrays, model)

    patch.setattr(Lifecycle, "after_step", watching)
    patch.setattr(Lifecycle, "finish", broken)


def private_images_for_public_ones(patch: pytest.MonkeyPatch) -> None:
    """Look for no training image among the public ones."""
    from dpexp.data import public

    patch.setattr(public, "refuse_private", lambda *_: None)
