"""Optimizers without torch.compile's tracer take the steps that they take with it."""

import inspect
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dpexp.training import uncompiled
from dpexp.training.uncompiled import take_step

KINDS = [
    kind
    for name, kind in sorted(vars(torch.optim).items())
    if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)
    and name not in ("Optimizer", "LBFGS", "SparseAdam")
]  # fmt: skip


@pytest.fixture
def without_tracer(monkeypatch):
    """What this process has imported is another test's."""
    monkeypatch.setattr(uncompiled, "TRACER", "no such module")


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_the_optimizers_own(kind, without_tracer):
    settings = {"lr": 0.1} | ({"momentum": 0.9} if kind is torch.optim.SGD else {})
    ends = []
    for step in (lambda optimizer: optimizer.step(), take_step):
        weight = nn.Parameter(torch.linspace(-1, 1, 12).reshape(3, 4))
        optimizer = kind([weight], **settings)
        for time in range(4):
            weight.grad = torch.sin(weight.detach() * (time + 1))
            step(optimizer)
            assert torch.is_grad_enabled() and weight.grad_fn is None
        ends.append(weight.detach())
    assert torch.equal(*ends)


class Counted(torch.optim.SGD):
    """An optimizer of the user's own."""

    steps = 0

    def step(self, closure=None):
        self.steps += 1
        return super().step(closure)


def test_steps_of_the_users_own_hooks_and_schedulers_are_seen(without_tracer, recwarn):
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    own = Counted([weight], lr=0.1)
    take_step(own)
    assert own.steps == 1
    hooked, calls = torch.optim.SGD([weight], lr=0.1), []
    handle = hooked.register_step_pre_hook(lambda *_: calls.append("before"))
    take_step(hooked)
    handle.remove()
    take_step(hooked)
    assert calls == ["before"]
    everywhere = register_optimizer_step_post_hook(lambda *_: calls.append("everywhere"))
    take_step(hooked)
    everywhere.remove()
    assert calls == ["before", "everywhere"]
    scheduled = torch.optim.SGD([weight], lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(scheduled, 1)
    take_step(scheduled)
    schedule.step()
    assert not recwarn, "a scheduler warns that it has seen no step"


ALONE = """
import sys, torch
from torch import nn
from dpexp.training.uncompiled import spare_tracer, take_step
spare_tracer()
weight = nn.Parameter(torch.ones(3))
optimizer = torch.optim.Adam([weight])
weight.grad = torch.ones(3)
take_step(optimizer)
optimizer.load_state_dict(optimizer.state_dict())
optimizer.zero_grad()
assert weight.grad is None and "torch._dynamo" not in sys.modules
import torch._dynamo
for _ in range(2):
    weight.grad = torch.ones(3)
    take_step(optimizer)
    optimizer.zero_grad()
kept = torch.optim.Optimizer.zero_grad.__wrapped__.__dynamo_disable
assert "dpexp" not in kept.__code__.co_filename, kept
twice = torch.compile(lambda x: x * 2, backend="eager")
assert twice(torch.ones(2)).tolist() == [2, 2]
"""


@pytest.mark.long
def test_the_tracer_is_not_imported_and_once_it_is_torch_does_as_always():
    subprocess.run([sys.executable, "-c", ALONE], check=True)
