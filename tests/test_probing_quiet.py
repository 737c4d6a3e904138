"""Before the first step: a dependence that is tiny at first, which training may make larger."""

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp.cli.architectures import architectures
from dpexp.cli.trainability import Tokens, quiet
from dpexp.data import cross_entropy
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import Fine, check, middle

LENGTH, VOCABULARY = 12, 40


def task_of_texts(kind=Tokens):
    examples = kind(torch.zeros(4, 3, LENGTH, dtype=torch.int64), torch.zeros(4).long())
    return types.SimpleNamespace(train=examples, num_classes=3, loss=cross_entropy)


def mean(h, mask):
    return (h * mask).sum(1) / mask.sum(1)


def by_convolution(model, h, mask):
    return mean(model.inner(h.transpose(1, 2)).transpose(1, 2), mask)


def by_neighbours(model, h, mask):
    beside = F.pad(h[:, 1:], (0, 0, 0, 1))
    return mean(model.inner(beside), mask)


def by_mean_of_all(model, h, mask):
    return model.inner(h.mean(1))


def by_largest(model, h, mask):
    return model.inner(h).amax(1)


def by_last(model, h, mask):
    return model.inner(h)[0][:, -1]


def by_attention(model, h, mask):
    return mean((h @ h.transpose(1, 2)).softmax(2) @ model.inner(h), mask)


def by_fused_attention(model, h, mask):
    x = model.inner(h)[:, None]
    return mean(F.scaled_dot_product_attention(x, x, x)[:, 0], mask)


def by_length(model, h, mask):
    return model.inner(h[:, 0]) * h.shape[1]


UNMASKED = [by_convolution, by_neighbours, by_mean_of_all, by_largest, by_last, by_attention,
            by_fused_attention, by_length]  # fmt: skip


def masked_attention(model, h, mask):
    scores = (h @ h.transpose(1, 2)).masked_fill(mask.transpose(1, 2) == 0, -torch.inf)
    return mean(scores.softmax(2) @ model.inner(h), mask)


def masked_convolution(model, h, mask):
    return mean(model.inner((h * mask).transpose(1, 2)).transpose(1, 2), mask)


def masked_fused_attention(model, h, mask):
    x = model.inner(h)[:, None]
    allowed = mask.transpose(1, 2)[:, None] > 0
    return mean(F.scaled_dot_product_attention(x, x, x, allowed)[:, 0], mask)


def in_float32(model, h, mask):
    scores = (h @ h.transpose(1, 2)).masked_fill(mask.transpose(1, 2) == 0, -torch.inf)
    return mean(scores.float().softmax(2).to(h) @ model.inner(h), mask)


def last_of_own(model, h, mask):
    last = mask[:, :, 0].sum(1).long() - 1
    return model.inner(h)[0][torch.arange(len(h)), last]


INNER = {
    by_convolution: lambda: nn.Conv1d(8, 8, 3, padding=1),
    masked_convolution: lambda: nn.Conv1d(8, 8, 3, padding=1),
    by_last: lambda: nn.GRU(8, 8, batch_first=True),
    last_of_own: lambda: nn.GRU(8, 8, batch_first=True),
}


class Reader(nn.Module):
    """Reads tokens each by itself, and adds a share of what may read their padding."""

    def __init__(self, reads, share, scale):
        super().__init__()
        self.table = nn.Embedding(VOCABULARY, 8, padding_idx=0)
        self.inner = INNER.get(reads, lambda: nn.Linear(8, 8))()
        self.head, self.reads, self.share = nn.Linear(8, 3), reads, share
        nn.init.normal_(self.table.weight[1:].detach(), std=scale)

    def forward(self, x):
        h, mask = self.table(x[:, 0]), x[:, 1, :, None].to(self.head.weight)
        return self.head(mean(h, mask) + self.share * self.reads(self, h, mask))


SHARES = [(reads, share, scale) for reads in UNMASKED for share, scale in ((1, 1e-4), (1e-6, 1))]
SHARES.remove((by_largest, 1e-6, 1))  # padding is the largest at few weights: a branch


@pytest.mark.parametrize(("reads", "share", "scale"), few(SHARES, SHARES[::2]))
def test_what_reads_padding_is_refused_however_small_its_share(reads, share, scale):
    torch.manual_seed(0)
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(Reader(reads, share, scale), task_of_texts())


@pytest.mark.parametrize(
    "reads",
    [masked_attention, masked_convolution, masked_fused_attention, in_float32, last_of_own],
    ids=lambda reads: reads.__name__,
)
def test_what_reads_tokens_alone_passes(reads):
    torch.manual_seed(0)
    assert check(Reader(reads, 1.0, 1.0), task_of_texts()) is None


def rank(h):
    return h.detach().sum(1).argsort().argsort()[:, None].to(h)


OF_BATCHES = {
    "their size": lambda h: float(len(h)),
    "whether it is odd": lambda h: float(len(h) % 2),
    "a mean": lambda h: h.mean(0),
    "a variance": lambda h: h.var(0, correction=0),
    "the largest": lambda h: h.amax(0),
    "their order": rank,
    "the neighbour": lambda h: h.roll(1, 0),
    "a mean's gradient": lambda h: h.mean(0) - h.mean(0).detach(),
}


@pytest.mark.parametrize("name", few(OF_BATCHES, [*OF_BATCHES][::2]))
def test_what_batches_have_in_common_is_refused_however_small_its_share(name):
    torch.manual_seed(0)
    odd = middle(forward=lambda self, h: self.layer(h) + 1e-6 * h * OF_BATCHES[name](h))
    with pytest.raises(ConfigError, match="keep examples apart .* by 'middle'"):
        check(Fine(odd))


def opens_with_weights(self, h):
    """As long as weights are small nothing is mixed."""
    return self.layer(h) + (self.layer.weight.detach().norm() - 2).relu() * h.mean(0)


def test_a_gate_is_refused_that_larger_weights_open():
    odd = middle(forward=opens_with_weights)
    nn.init.normal_(odd.layer.weight, std=1e-3)
    with pytest.raises(ConfigError, match="keep examples apart .* by 'middle'"):
        check(Fine(odd))


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
def test_mobilebert_is_refused_for_texts_of_several_lengths():
    (mobile,) = (each for each in architectures() if each.name == "MobileBert")
    with quiet():
        model = mobile.make().float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(0.01)
    with pytest.raises(ConfigError, match="keep examples apart"):
        check(model, task_of_texts())
