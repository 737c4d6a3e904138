"""The mode of each part of a model: it stays as handed over, and is part of a run's name."""

import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import dpexp
from dpexp.models.mode import in_mode, parts_in_eval
from tests.runs import one_thread  # noqa: F401 (a fixture)

TREES = st.recursive(
    st.builds(nn.Identity),
    lambda parts: st.lists(parts, max_size=3).map(lambda p: nn.Sequential(*p)),
)


def modes(model):
    return [part.training for part in model.modules()]


@st.composite
def models(draw, tree=None):
    model = draw(TREES) if tree is None else tree
    for part in model.modules():
        part.training = draw(st.booleans())
    return model


@given(models(), st.booleans())
def test_every_part_has_its_mode_back_and_evaluation_is_of_all(model, is_training):
    before = modes(model)
    with pytest.raises(ZeroDivisionError), in_mode(model, is_training=is_training):
        kept = is_training and before[0]
        assert modes(model) == (before if kept else [is_training] * len(before))
        model.train(not is_training)
        raise ZeroDivisionError
    assert modes(model) == before


@given(TREES, st.data())
def test_two_ways_to_set_the_modes_are_described_alike_only_if_they_are(model, data):
    first, second = (
        (modes(each), parts_in_eval(each))
        for each in (data.draw(models(tree=model)) for _ in range(2))
    )
    assert (first[0] == second[0]) == (first[1] == second[1])
    model.train()
    assert parts_in_eval(model) == []
    assert parts_in_eval(model.eval()) is True


def test_parts_in_eval_are_named_by_the_largest():
    model = nn.Sequential(nn.Sequential(nn.Dropout(), nn.Linear(2, 2)), nn.Dropout())
    model[0].eval()
    assert parts_in_eval(model) == ["0"]
    model[0][1].train()
    assert parts_in_eval(model) == ["0 (alone)", "0.0"]
    model.training = False
    assert parts_in_eval(model) == ["(alone)", "0 (alone)", "0.0"]


class Net(nn.Module):
    def __init__(self, first=0.8, second=0.8):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(first))
        self.late = nn.Dropout(second)
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(self.late(self.body(x)))


def trained(folder, model, **rates):
    torch.manual_seed(3)
    inputs = torch.randn(120, 6)
    data = inputs, (inputs.sum(1) > 0).long()
    state = {name: each.clone() for name, each in Net().state_dict().items()}
    model.load_state_dict({name: torch.full_like(each, 0.1) for name, each in state.items()})
    run = dpexp.train(
        model, data, data, method="dpsgd", eps=8, lr=1.0, batch_size=40, epochs=1, results=folder
    )
    return run.directory.name, {n: w.numpy().tobytes() for n, w in run.model.state_dict().items()}


def handed(how):
    model = Net()
    if how == "eval":
        return model.eval()
    if how == "body":
        model.body.eval()
    if how == "both":
        model.body.eval(), model.late.eval()
    return model


@pytest.mark.usefixtures("one_thread")
def test_a_run_trains_each_part_in_the_mode_that_it_was_handed_over_in(tmp_path):
    """It has the weights of a model that has no dropout where dropout is off, to the bit."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        runs = {how: trained(tmp_path, handed(how)) for how in ("train", "body", "both", "eval")}
        none = trained(tmp_path / "none", Net(0.0, 0.0))[1]
        late = trained(tmp_path / "late", Net(0.0, 0.8))[1]
    assert len({name for name, _ in runs.values()}) == 4  # none is taken for another
    assert runs["both"][1] == runs["eval"][1] == none
    assert runs["body"][1] == late
    assert len({str(sorted(w.items())) for _, w in runs.values()}) == 3


def test_a_model_in_eval_mode_is_told_that_it_trains_without_dropout(tmp_path):
    with pytest.warns(UserWarning, match="trains without dropout, such as body.2's. Call model.tr"):
        trained(tmp_path, handed("eval"))
    for model in (handed("body"), handed("train"), Net(0.0, 0.0).eval()):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            trained(tmp_path, model)
        assert not [each for each in said if "dropout" in str(each.message)]
