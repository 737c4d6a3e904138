"""What a config's node names is called with its settings."""

from collections.abc import Sequence

import pytest
from torch import nn

from dpexp.cli.instantiate import make
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.wrapped import Wrapped
from dpexp.privacy.clipping import Flat
from dpexp.types import ConfigError


class Given:
    """Keeps what it is given."""

    def __init__(self, settings=None, parts=()):
        self.settings, self.parts = settings, parts


def test_settings_arrive_as_they_are_and_what_they_name_is_made():
    """Hydra takes milliseconds for each entry: a table may have thousands of columns."""
    target = f"{__name__}.{Given.__name__}"
    settings = {"age": [0, 120], "deep": {"words": ["a", "b"]}}
    node = {"_target_": target, "settings": settings, "parts": [{"_target_": target}]}
    made = make("own", node)
    assert type(made.settings["age"]) is list and made.settings == settings
    assert [type(part) for part in made.parts] == [Given]
    made.settings["age"].append(1)
    assert settings["age"] == [0, 120]
    assert make("own", node, settings=3).settings == 3


def test_what_is_to_be_called_later_keeps_its_settings():
    node = {"_target_": f"{__name__}.{Given.__name__}", "settings": 3, "_partial_": True}
    made = make("own", node)
    assert not isinstance(made, Given) and made().settings == 3


class Annotated:
    """Says of what kinds its settings are."""

    def __init__(
        self,
        rate: float = 1.0,
        size: int | None = None,
        parts: Sequence[int] = (),
        spare: Sequence[int] | None = None,
        inner=None,
    ):
        pass


ANNOTATED = {"_target_": f"{__name__}.{Annotated.__name__}"}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"size": "many"}, "size of Annotated to be int or null; got size=many. Set own.size"),
        ({"size": True}, "size of Annotated to be int or null; got size=True. Set own.size"),
        ({"parts": None}, "parts of Annotated to be a list of int; got parts=None. Set own.parts"),
        ({"inner": {**ANNOTATED, "rate": True}}, "rate .* to be float; .* Set own.inner.rate"),
        ({"inner": {**ANNOTATED, "_partial_": True, "size": "x"}}, "Set own.inner.size"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_its_name_however_deep(settings, said):
    with pytest.raises(ConfigError, match=said):
        make("own", {**ANNOTATED, **settings})


def test_a_value_of_any_kind_that_is_named_is_taken():
    make("own", {**ANNOTATED, "rate": 2, "size": None, "spare": None, "parts": [1]})
    make("own", {**ANNOTATED, "size": 3, "inner": {**ANNOTATED, "spare": [2]}})


@pytest.mark.parametrize("decay", [True, "little", [1]])
def test_torchs_numbers_that_may_be_tensors_are_numbers_in_a_config(decay):
    node = {"_target_": "torch.optim.SGD", "lr": 0.1, "weight_decay": decay}
    with pytest.raises(ConfigError, match=r"to be float; got .* Set optimizer.weight_decay"):
        make("optimizer", node, kind="optimizer", given=[[]])


class Rule(Flat):
    """A clipping rule that forgets the bound."""

    def weights(self, norms):
        return norms


class Filter(Wrapped):
    """A filter that forgets the state."""

    def reconstruct(self, noisy):
        return noisy, {}


class Unwrapped(Wrapped):
    """A filter that forgets what it is around."""

    def __init__(self, method):
        self.inner = method


class Kept:
    """An average whose call takes no number of steps."""

    def keeps(self, step):
        return 0.5


class Loose(Flat):
    """A rule whose calls take anything, one of them more than it gets."""

    def group(self, *given):
        return super().group(*given)

    def weights(self, norms, bound, power=2):
        return super().weights(norms, bound)


@pytest.mark.parametrize(
    ("place", "target", "said"),
    [
        ("clipping", Rule, r"Rule.weights to take norms, bound, as .*Clipping .* it takes norms\."),
        ("denoise", Filter, r"Filter.reconstruct to take state, noisy, .* it takes noisy\."),
        ("averaging", Kept, r"Kept.keeps to take step, num_steps, .* it takes step\."),
    ],
)
def test_a_call_that_does_not_take_what_it_gets_is_one_line(place, target, said):
    """It ended in a trace, after the data were read and the noise was found."""
    given = (DPSGD("all", "head"),) if place == "denoise" else ()
    with pytest.raises(ConfigError, match=said) as refused:
        make(place, {"_target_": f"{__name__}.{target.__name__}"}, given=given)
    assert "\n" not in str(refused.value)


def test_a_call_may_take_more_or_anything():
    assert isinstance(make("clipping", {"_target_": f"{__name__}.Loose"}), Loose)


def test_a_filter_that_is_around_no_method_says_what_to_call():
    with pytest.raises(ConfigError, match=r"Unwrapped .* super\(\).__init__\(method\)"):
        Unwrapped(DPSGD("all", "head")).start(nn.Linear(2, 2))
