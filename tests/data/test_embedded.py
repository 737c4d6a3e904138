"""The two tasks that need no download."""

import time

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dpexp.data.digits import digits
from dpexp.data.shapes import OUTLINES, shapes
from dpexp.types import ConfigError

FINGERPRINT = "935d5a90b99d2e7e7feeab819622f9eb8546d5a0ae0ba5111f339c7940de3bf2"


def test_digits_are_real_stratified_and_the_same_every_time(conf):
    task, again = (digits(**conf("digits")) for _ in range(2))
    assert (len(task.train), len(task.test)) == (1437, 360)
    assert task.input_shape == (1, 8, 8) and task.fingerprint == again.fingerprint
    for examples in (task.train, task.test):
        shares = examples.targets.bincount(minlength=10) / len(examples)
        assert (shares - 0.1).abs().max() < 0.005
        assert 0 <= examples.inputs.min() and examples.inputs.max() <= 1
    assert digits(**conf("digits", split_seed=1)).fingerprint != task.fingerprint


def test_no_digit_is_in_both_parts(conf):
    task = digits(**conf("digits"))
    seen = {bytes(x.numpy().data) for x in task.train.inputs}
    assert sum(bytes(x.numpy().data) in seen for x in task.test.inputs) == 0


def test_digits_refuse_another_declared_size(conf):
    with pytest.raises(ConfigError, match="task.dataset_size=1000 .* got 1437"):
        digits(**conf("digits", dataset_size=1000))


def test_shapes_are_generated_soon_balanced_and_the_same_everywhere(conf):
    begun = time.process_time()
    task = shapes(**conf("shapes"))
    assert time.process_time() - begun < 3
    assert (len(task.train), len(task.test)) == (10000, 2000)
    assert task.input_shape == (3, 16, 16) and task.train.inputs.dtype == torch.uint8
    assert task.train.targets.bincount().tolist() == [1000] * 10
    assert task.fingerprint == FINGERPRINT
    assert shapes(**conf("shapes", data_seed=1)).fingerprint != FINGERPRINT


def test_shapes_train_and_test_are_drawn_apart(conf):
    task = shapes(**conf("shapes", dataset_size=500, test_size=500))
    assert not torch.equal(task.train.inputs, task.test.inputs)
    longer = shapes(**conf("shapes", dataset_size=600, test_size=500))
    assert torch.equal(longer.test.inputs, task.test.inputs)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_shapes_do_not_yield_to_a_linear_model(conf):
    task = shapes(**conf("shapes", dataset_size=3000))
    train, test = (e.batch(torch.arange(len(e))) for e in (task.train, task.test))
    linear = LogisticRegression(C=0.01, max_iter=30)
    linear.fit(train.inputs.flatten(1).numpy(), train.targets.numpy())
    score = linear.score(test.inputs.flatten(1).numpy(), test.targets.numpy())
    assert 1 / len(OUTLINES) < score < 0.5
