from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpexp.data import Examples
from dpexp.data.task import as_declared, assemble, fingerprint
from dpexp.training.judging import evaluate
from dpexp.types import ConfigError

PINNED = "6d7af2b1aa59c32b3daf94bdd7bcfe8db8862fb5769eaa9a9593905524a31759"


def pixels(n, c=3, h=5, w=4, seed=0):
    gen = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (n, c, h, w), generator=gen, dtype=torch.uint8)


@given(
    n=st.integers(1, 20),
    picked=st.lists(st.integers(0, 19), max_size=30),
    c=st.sampled_from([1, 3]),
)
def test_a_batch_is_its_examples_normalised(n, picked, c):
    mean, std = (0.1, 0.2, 0.3)[:c], (0.5, 0.6, 0.7)[:c]
    examples = Examples(pixels(n, c), torch.arange(n) % 7, mean, std)
    indices = torch.tensor([i % n for i in picked], dtype=torch.long)
    batch = examples.batch(indices)
    assert batch.inputs.dtype == torch.float32 and batch.inputs.shape == (len(picked), c, 5, 4)
    assert torch.equal(batch.targets, indices % 7)
    exact = examples.inputs[indices].double() / 255
    for channel in range(c):
        exact[:, channel] = (exact[:, channel] - mean[channel]) / std[channel]
    torch.testing.assert_close(batch.inputs.double(), exact, atol=1e-6, rtol=1e-6)


def test_without_a_mean_pixels_become_fractions_and_floats_stay():
    whole = Examples(torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8), torch.tensor([1]))
    torch.testing.assert_close(
        whole.batch(torch.tensor([0])).inputs.flatten(), torch.tensor([0.0, 0.2, 1.0])
    )
    floats = Examples(torch.randn(3, 2), torch.tensor([0, 1, 2]))
    assert torch.equal(floats.batch(torch.tensor([2, 0])).inputs, floats.inputs[[2, 0]])


def test_a_batch_leaves_the_examples_as_they_are():
    examples = Examples(torch.rand(4, 1, 2, 2), torch.zeros(4, dtype=torch.long), (0.5,), (0.5,))
    before = examples.inputs.clone()
    examples.batch(torch.arange(4)).inputs.zero_()
    assert torch.equal(examples.inputs, before)


def test_size_is_counted_in_examples_and_bytes():
    examples = Examples(pixels(6), torch.zeros(6, dtype=torch.long)).to("cpu")
    assert len(examples) == 6 and examples.nbytes == 6 * 60 + 6 * 8


def test_fingerprint_knows_values_shape_and_type():
    x = torch.zeros(2, 6, dtype=torch.uint8)
    prints = [fingerprint(y) for y in (x, x + 1, x.view(3, 4), x.char(), x[:0], x[:, :0])]
    assert len(set(prints)) == len(prints)
    assert fingerprint(x.t().contiguous().t()) == fingerprint(x)
    wide = torch.arange(12.0)
    assert fingerprint(wide[::5][:1]) == fingerprint(wide[:1]) != fingerprint(wide[:1].bfloat16())
    assert fingerprint(wide.bfloat16()) != fingerprint((wide + 1).bfloat16())
    assert fingerprint(torch.tensor([1, 2])) == PINNED  # records hold such


@pytest.mark.parametrize("targets", [[0, 3], [-1, 0]])
def test_targets_outside_the_classes_are_refused(targets):
    examples = Examples(pixels(2), torch.tensor(targets))
    with pytest.raises(ConfigError, match=r"in \[0, 3\)") as raised:
        assemble("x", examples, examples, num_classes=3, delta=1e-5, dataset_size=2)
    assert ("Set task.num_classes" in str(raised.value)) == (-1 not in targets)


def test_a_task_of_ones_own_that_was_changed_since_it_was_assembled_is_refused():
    """Of more examples than N some were never drawn; of fewer a step ended in a trace."""
    some = Examples(torch.zeros(8, 2), torch.arange(8) % 2)
    numbered = Examples(torch.ones(8, 2), torch.arange(8) % 2)
    task = assemble("mine", some, some, num_classes=2, delta=1e-3, dataset_size=8)
    same = (as_declared(task, 8, 1e-3), as_declared(task, None, None))
    assert {each.fingerprint for each in same} == {task.fingerprint}
    for train in (some.take(torch.arange(5)), Examples(torch.zeros(9, 2), torch.arange(9) % 2)):
        with pytest.raises(ConfigError, match=f"dataset_size=8 .*says 8 and has {len(train)}"):
            as_declared(replace(task, train=train), 8, 1e-3)
    with pytest.raises(ConfigError, match="dataset_size=7 .*says 8 and has 8"):
        as_declared(task, 7, 1e-3)
    with pytest.raises(ConfigError, match="0.002, .*says 0.001. Set task.delta"):
        as_declared(task, 8, 2e-3)
    other = assemble("mine", numbered, some, num_classes=2, delta=1e-3, dataset_size=8)
    assert as_declared(replace(task, train=numbered), 8, 1e-3).fingerprint == other.fingerprint
    numbers = replace(task, train=replace(some, targets=torch.zeros(8)))
    with pytest.raises(ConfigError, match="class indices .*float32"):
        as_declared(numbers, 8, 1e-3)
    as_declared(replace(numbers, loss=lambda outputs, targets: outputs.sum()), 8, 1e-3)


def test_a_score_of_the_whole_batch_is_refused():
    """A mean over the batch was divided by the number of examples once more."""
    some, model = Examples(torch.zeros(8, 2), torch.arange(8) % 2), torch.nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"each of 8 examples; .* shape \[\]"):
        evaluate(model, some, torch.device("cpu"), lambda outputs, targets: outputs.mean())
