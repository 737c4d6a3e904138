"""Before the first step: models of one's own that calculate in half precision on the way."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dpexp.privacy.certificate import UNTRIED
from dpexp.training.probing import check_model
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import one_thread  # noqa: F401 (a fixture)
from tests.test_probing import CPU
from tests.test_probing_order import ROW, WIDTH, task_for

DEPTH, WITHIN = 8, 16


class Net(nn.Module):
    """Residual layers in half precision, and logits in float32."""

    def __init__(self, kind, *, first=False, more=lambda model, h: h):
        super().__init__()
        self.into, self.out = nn.Linear(WIDTH, WITHIN), nn.Linear(WITHIN, 3)
        self.layers = nn.ModuleList(nn.Linear(WITHIN, WITHIN) for _ in range(DEPTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WITHIN) for _ in range(DEPTH))
        self.kind, self.first, self.more = kind, first, more

    def forward(self, x):
        with torch.autocast("cpu", dtype=self.kind):
            h = self.into(x.float() if self.first else x)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                h = h + F.gelu(layer(norm(h)))
            return self.out(self.more(self, h)).float()


def rounded(model, h):
    return h.bfloat16().to(h.dtype)


def uses_again(model, h):
    return h + F.linear(h, model.layers[3].weight)


def mixes(model, h):
    return h - h.mean(0)


KINDS = [torch.bfloat16, torch.float16]


def checked(model):
    torch.manual_seed(0)
    model.apply(lambda each: each.reset_parameters() if hasattr(each, "reset_parameters") else None)
    names = [name for name, _ in model.named_parameters()]
    return check_model(model, names, task_for(ROW), CPU)


@pytest.mark.parametrize("kind", few(KINDS, [torch.bfloat16]), ids=str)
@pytest.mark.parametrize("first", [False, True], ids=["", "float32 from the first line on"])
def test_autocast_within_a_model_is_not_taken_for_a_second_use(kind, first):
    """Its rounding was compared as float32's, once a model had ended in `.float()`."""
    if not first:
        assert checked(Net(kind)) is None
        return
    with pytest.warns(UserWarning, match="allow no float64"):  # and the certificate says so
        assert checked(Net(kind, first=True)) == UNTRIED


def test_numbers_rounded_on_the_way_are_no_second_use_either():
    assert checked(Net(torch.bfloat16, more=rounded)) is None


@pytest.mark.parametrize(
    "first", few([False, True], [False]), ids=["", "float32 from the first line on"]
)
@pytest.mark.parametrize(
    ("more", "words"),
    [(uses_again, "'layers.3' to be used by nothing but"), (mixes, "keep examples apart")],
)
def test_what_is_wrong_is_found_beneath_the_rounding(more, words, first):
    with pytest.raises(ConfigError, match=words):
        checked(Net(torch.bfloat16, first=first, more=more))
