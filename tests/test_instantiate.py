"""What a config's node names is called with its settings."""

from collections.abc import Sequence

import pytest

from dpexp.cli.instantiate import make
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
