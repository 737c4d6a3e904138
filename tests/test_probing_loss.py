"""A loss of one's own adds up over examples, or is refused before the first step."""

import types
from functools import wraps

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp.data import cross_entropy
from dpexp.methods.dpsgd import DPSGD
from dpexp.privacy.privatize import FLAT
from dpexp.training.judging import scores
from dpexp.training.train import first_look
from dpexp.types import ConfigError
from tests.steps import Examples

CPU = torch.device("cpu")


def look_at(loss, classes=100, targets=None):
    """Look at a run of a linear model, as before its first step."""
    torch.manual_seed(0)
    targets = torch.zeros(5, dtype=torch.int64) if targets is None else targets
    train = Examples(torch.full((5, 6), torch.nan), targets)
    task = types.SimpleNamespace(train=train, num_classes=classes, loss=loss)
    model = nn.Sequential(nn.Linear(6, classes))
    method = DPSGD("all", "0")
    return first_look(
        types.SimpleNamespace(
            model=model, method=method, task=task, clipping=FLAT, augmentation=None
        ),
        CPU,
    )


def each(outputs, targets, **options):
    return F.cross_entropy(outputs, targets, reduction="none", **options)


def by_class_size(outputs, targets):
    return (each(outputs, targets) / torch.bincount(targets)[targets]).sum()


def contrastive(outputs, targets):
    same = (targets[:, None] == targets).float().fill_diagonal_(0)
    alike = F.normalize(outputs, dim=1) @ F.normalize(outputs, dim=1).T
    return each(outputs, targets).sum() - (same * alike).sum()


def worst_eight(outputs, targets):
    return each(outputs, targets).topk(min(8, len(targets))).values.sum()


def without_outliers(outputs, targets):
    losses = each(outputs, targets)
    return losses[losses <= 3 * losses.detach().mean()].sum()


def mean_of_many(outputs, targets):
    losses = each(outputs, targets)
    return losses.mean() if len(losses) > 32 else losses.sum()


def of_one_class(outputs, targets):
    is_one = len(targets) > 1 and bool((targets == targets[0]).all())
    return each(outputs, targets).sum() * (0.5 if is_one else 1.0)


def mean_of_known(outputs, targets):
    return F.cross_entropy(outputs, targets, ignore_index=0)


@wraps(cross_entropy)
def decorated(outputs, targets):
    return worst_eight(outputs, targets)


COUPLED = (
    *(by_class_size, contrastive, worst_eight, without_outliers, mean_of_many, of_one_class),
    *(mean_of_known, F.cross_entropy, decorated),
)


@pytest.mark.parametrize("classes", [3, 100])
@pytest.mark.parametrize("loss", COUPLED)
def test_a_loss_that_couples_examples_is_refused(loss, classes):
    with pytest.raises(ConfigError, match=rf"a loss that adds up .* what {loss.__name__} has of"):
        look_at(loss, classes)


def focal(outputs, targets):
    losses = each(outputs, targets)
    return ((1 - (-losses).exp()) ** 2 * losses).sum()


def some_at_random(outputs, targets):
    return F.dropout(each(outputs, targets), 0.1).sum()


@pytest.mark.parametrize(
    "loss",
    [
        focal,
        some_at_random,
        lambda o, t: each(o, t, label_smoothing=0.1).sum(),
        lambda o, t: each(o, t, weight=torch.linspace(0.5, 2, 3)).sum(),
        lambda o, t: 2 * each(o, t, ignore_index=0).sum(),
        lambda o, t: F.multi_margin_loss(o, t, reduction="sum"),
    ],
)
def test_a_loss_that_adds_up_passes(loss):
    assert look_at(loss, 3) is None


def test_a_loss_of_real_targets_adds_up_or_is_refused():
    targets = torch.zeros(5)
    assert look_at(lambda o, t: F.huber_loss(o[:, 0], t, reduction="sum"), 1, targets) is None
    with pytest.raises(ConfigError, match="a loss that adds up"):
        look_at(lambda o, t: ((o[:, 0] - o[:, 0].detach().mean()) - t).square().sum(), 1, targets)


SEVERAL = {
    "a column": (1, torch.zeros(5, 1), lambda o, t: (o - t).square().sum()),
    "two numbers": (2, torch.zeros(5, 2), lambda o, t: F.mse_loss(o, t, reduction="sum")),
    "soft labels": (4, torch.zeros(5, 4), lambda o, t: F.cross_entropy(o, t, reduction="sum")),
    "yes or no": (3, torch.zeros(5, 3, dtype=torch.int64),
                  lambda o, t: F.binary_cross_entropy_with_logits(o, t.to(o), reduction="sum")),
}  # fmt: skip


@pytest.mark.parametrize("kind", SEVERAL)
def test_a_loss_of_several_targets_an_example_adds_up_or_is_refused(kind):
    classes, targets, loss = SEVERAL[kind]
    assert look_at(loss, classes, targets) is None
    with pytest.raises(ConfigError, match="a loss that adds up over examples; what <lambda> has"):
        look_at(lambda o, t: loss(o, t) * (1 + t[:, 0].double().mean()), classes, targets)


def test_a_loss_of_many_numbers_is_refused():
    with pytest.raises(ConfigError, match=r"a loss of one number.* shape \[160\]. Sum them"):
        look_at(each)


@pytest.mark.parametrize(
    "kind", [float, lambda total: (total,), lambda total: total.detach().numpy()]
)
def test_a_loss_that_is_no_tensor_is_refused(kind):
    with pytest.raises(ConfigError, match="number as a tensor.* <lambda> gives one of type"):
        look_at(lambda o, t: kind(each(o, t).sum()))


class Remembering:
    """Divides by a mean over all examples that it has seen."""

    def __init__(self):
        self.mean = 1.0

    def __call__(self, outputs, targets):
        losses = each(outputs, targets)
        self.mean = 0.9 * self.mean + 0.1 * float(losses.detach().mean())
        return losses.sum() / self.mean


def test_a_loss_that_remembers_is_refused():
    with pytest.raises(ConfigError, match="what Remembering has of"):
        look_at(Remembering())


@pytest.mark.parametrize("kind", [lambda right: right.tolist(), lambda right: right.numpy()])
def test_a_score_that_is_no_tensor_is_refused(kind):
    some = Examples(torch.randn(5, 6), torch.zeros(5, dtype=torch.int64))
    with pytest.raises(
        ConfigError, match="of 5 examples as a tensor; the task's gives one of type"
    ):
        scores(nn.Linear(6, 3), some, CPU, lambda o, t: kind(o.argmax(1) == t))
