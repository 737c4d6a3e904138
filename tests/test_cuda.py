"""What only a GPU can show: steps of every method there, beside a CPU's."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dpexp import cli
from dpexp.distributed.ranks import Ranks
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.training.gradient import PrivateGradient
from dpexp.training.micro_batch import try_sizes
from dpexp.training.train import make_mechanism, update
from tests.contract.cases import METHODS, case
from tests.steps import CPU, composed, distance

CUDA = torch.device("cuda")

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU")

DRAWS_NOTHING = ("bitfit", "dpsgd", "linear", "nonprivate", "sparse_dpsgd")
"""Methods whose steps on two devices are the same but for rounding; others draw bases there."""


def taken(method, device, *words, steps=2, **changes):
    """Return the outcomes of some steps, and the model after the last."""
    config = composed(method, *case(method).narrow, *words)
    parts, ranks = cli.build_parts(config, device), Ranks(0, 1, device)
    model, method = parts.model, parts.method
    state = method.start(model)
    mechanism = make_mechanism(config, parts.task.dataset_size, method, state, ranks)
    mechanism = replace(mechanism, **changes)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    outcomes = []
    with PrivateGradient(
        model, method, mechanism, ranks, 16, parts.task.public, parts.task.loss
    ) as gradient:
        for step in range(steps):
            outcome = gradient(state, parts.task.train, step)
            state = outcome.state
            outcomes.append({name: each.cpu() for name, each in outcome.gradients.items()})
            assert all(each.device.type == device.type for each in outcome.gradients.values())
            with gradient.unhooked():
                update(model, optimizer, outcome.gradients)
    return SimpleNamespace(gradients=outcomes, outcome=outcome, parts=parts)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_takes_steps_on_a_gpu(method):
    there = taken(method, CUDA)
    for gradients in there.gradients:
        assert all(each.isfinite().all() for each in gradients.values())
    again = taken(method, CUDA)
    assert distance(again.gradients[0], there.gradients[0]) < 1e-4  # cuDNN may add in another order
    if method in DRAWS_NOTHING:
        here, there = (taken(method, each, noise=False) for each in (CPU, CUDA))
        assert here.outcome.examples == there.outcome.examples > 0
        assert distance(there.gradients[0], here.gradients[0]) < 1e-4


def test_views_and_correlated_noise_take_steps_on_a_gpu():
    for words in (["augmentation=crop_flip"], ["clipping=per_layer"], ["clipping=normalize"]):
        there = taken("dpsgd", CUDA, *words)
        assert all(each.isfinite().all() for each in there.gradients[-1].values())


def test_masks_keep_the_same_entries_on_both():
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 3))
    method, kept = SparseDPSGD(0.3, "importance", "all", "1"), []
    for device in (CPU, CUDA):
        model = model.to(device)
        kept.append(method.prepare(model, method.start(model), None, torch.Generator(device)))
    here, there = (state["entries"]["0.weight"] for state in kept)
    assert torch.equal(here, there.cpu()) and int(here.sum()) == 420


def test_sizes_are_tried_until_a_gpus_room_is_full():
    config = composed("dpsgd")
    parts, ranks = cli.build_parts(config, CUDA), Ranks(0, 1, CUDA)
    state = parts.method.start(parts.model)
    mechanism = make_mechanism(config, parts.task.dataset_size, parts.method, state, ranks)
    with PrivateGradient(parts.model, parts.method, mechanism, ranks, 1) as gradient:
        trials = try_sizes(gradient, state, parts.task.train, 256, float("inf"), CUDA)
        assert [trial.size for trial in trials] == [2**k for k in range(9)]
        room = (trials[5].peak_mb + trials[6].peak_mb) / 2
        fewer = try_sizes(gradient, state, parts.task.train, 256, room, CUDA)
    assert trials[-1].peak_mb > trials[0].peak_mb
    assert fewer[-1].size <= 64
