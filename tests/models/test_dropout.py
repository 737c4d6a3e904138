"""A library's model drops nothing, unless it is told to, and says what was set."""

import pytest
import torch
import torchvision
from torch import nn

from dpexp.models.adapting import set_dropouts
from dpexp.models.notes import notes_of
from tests.doors import TEXT, parts, save


class Odd(nn.Module):
    """Keeps probabilities in attributes of several names."""

    def __init__(self):
        super().__init__()
        self.drop, self.layerdrop, self.attention_dropout = nn.Dropout(0.3), 0.2, 0.1
        self.is_dropped, self.dropped, self.drop_after = True, 3, 2.5
        self.path = torchvision.ops.StochasticDepth(0.4, "row")
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.5)


def test_every_kind_is_set_to_zero_and_nothing_else_is_touched():
    model = Odd()
    set_dropouts(model, 0)
    assert (model.drop.p, model.layerdrop, model.attention_dropout, model.path.p) == (0, 0, 0, 0)
    assert model.attention.dropout == 0
    assert (model.is_dropped, model.dropped, model.drop_after) == (True, 3, 2.5)
    assert len(notes_of(model)["dropout"]) == 5


def test_a_number_is_for_dropout_layers_and_null_leaves_all():
    model = Odd()
    set_dropouts(model, None)
    assert model.drop.p == 0.3 and notes_of(model) == {}
    set_dropouts(model, 0.1)
    assert (model.drop.p, model.layerdrop, model.path.p) == (0.1, 0.2, 0.4)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["Bert", "ModernBert", "Deberta", "T5", "GPT2", "Bart"])
def test_models_of_transformers_give_the_same_in_training_as_in_eval_mode(tmp_path, name):
    drop = {"dropout": 0.5, "attention_dropout": 0.5} if name == "Bart" else {}
    repo = save(tmp_path, name, drop=0.5, **drop)
    built = parts(tmp_path, *TEXT, f"repo={repo}", "model.pretrained=false")
    x = built.task.train.batch(torch.arange(3)).inputs
    assert torch.equal(built.model.train()(x), built.model.eval()(x))
