"""A method that is unsound is found out; tests/contract holds ours to what they declare."""

import re
from dataclasses import replace

import pytest
import torch

from dpexp import cli
from dpexp.attacks.soundness import check
from dpexp.cli import check_method
from tests.marks import long, some_long
from tests.steps import CPU, composed
from tests.unsound import SENSITIVITY, UNSOUND, HalfDeclared, OnHead

SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3"]
LINEAR = ["model=linear"]


LONG = {"Doubled", "Normalised", "Rounded", "NonZero", "Undeclared", "Averaging", "Steering"}
LONG |= {"Masking", "Echoing", "Scaling", "LateSteering", "CrowdedStep", "HeavyStep", "Light"}
LONG |= {"TopPositions", "Thresholded", "LateAside"}
"""Others are found in the same way."""
OF_NETWORKS = {"Largest", "Sorted", "NonZero", "Heavy", "Light", "HeavyStep"}
"""These show with several blocks or gradients of zero, or as weights grow, which begin at zero in a
linear model."""


@pytest.mark.parametrize(
    "unsound",
    some_long(UNSOUND, [method for method in UNSOUND if method.__name__ not in LONG]),
    ids=lambda method: method.__name__,
)
def test_a_false_declaration_is_found_out(unsound):
    small = SMALL if unsound.__name__ in OF_NETWORKS else LINEAR
    parts = replace(cli.build_parts(composed("linear", *small), CPU), method=unsound())
    steps = 7 if unsound.__name__.startswith("Late") else 3  # the latest errs at the sixth
    found = check(parts, 1.0, tries=1, climbs=2, steps=steps)
    assert re.search(UNSOUND[unsound], "\n".join(found.findings)), found


def test_half_of_what_a_choice_of_entries_needs_is_too_little():
    config = composed("compressive", "method.psi=none")
    config["method"]["_target_"] = f"{HalfDeclared.__module__}.{HalfDeclared.__name__}"
    found = check(cli.build_parts(config, CPU), 1.0, tries=2, climbs=5)
    assert found.worst.ratio > 1.3 and "measurements" in found.findings[0]


TARGET = "method._target_=tests.unsound."


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["method=linear"], 0, r"^linear: pass: .* more than 1 of its declared sensitivity"),
        long(
            ["method=dpsgd", f"{TARGET}TopEntries"], 1, r"dpsgd: differs: one example moves release"
        ),
        (["method=pate"], 2, r"error: Expected a method that releases sums of gradients; PATE"),
        (["method=linear", "tries=many"], 2, r"error: Expected tries to be a whole number"),
    ],
    ids=["sound", "unsound", "no sums", "a mistake"],
)
def test_a_user_points_the_check_at_a_method(words, code, said, capsys):
    small = ["model=linear"] if code < 2 else []
    assert check_method.main([*words, *small, "device=cpu", "climbs=2"]) == code
    streams = capsys.readouterr()
    assert re.search(said, streams.out + streams.err)


@pytest.mark.parametrize(("steps", "is_found"), [([], True), long(["steps=15"], False)])
def test_the_steps_of_an_epoch_are_looked_at_unless_fewer_are_named(steps, is_found, capsys):
    words = ["method=dpsgd", f"{TARGET}AfterAnEpoch", "model=linear", "batch_size=100"]
    assert check_method.main([*words, *steps, "device=cpu", "tries=0", "climbs=0"]) == 1
    assert bool(re.search(rf"{SENSITIVITY}.*; step 16\)", capsys.readouterr().out)) is is_found


def test_what_is_beside_the_method_is_said_not_to_be_looked_at(capsys):
    """A break of the views, each clipped by itself, passed with augmentation named."""
    quick = ["tries=0", "climbs=0", "trials=0", "steps=2", "device=cpu", "model=linear"]
    apart = ["augmentation=crop_flip", "averaging=ema", "holdout=train", "audit=one_run"]
    apart += ["analysis=stable_rank,noise_norm", "tracking=csv", "schedule=constant"]
    apart += ["weights=keep", "checkpoint.steps=3"]
    words = ["analysis=[stable_rank,noise_norm]" if "analysis" in word else word for word in apart]
    assert (
        check_method.main(["method=dpsgd", *words, "public=shapes", "holdout.size=20", *quick]) == 0
    )
    printed = capsys.readouterr()
    assert f"not looked at, as no part of the method: {', '.join(apart)}\n" in printed.out
    assert "warning: public=shapes has no effect with method=dpsgd" in printed.err


@pytest.mark.parametrize(
    "without", some_long(["noise=false", "clip=false", "eps=null"], ["clip=false"])
)
def test_a_game_that_is_not_played_is_said_not_to_be(capsys, without):
    quick = ["tries=0", "climbs=0", "steps=2", "device=cpu", "model=linear"]
    words = ["method=dpsgd", *quick, without, *(["noise=false"] if without == "clip=false" else [])]
    assert check_method.main(words) == 0
    printed = capsys.readouterr().out
    assert "no game is played: it needs noise=true, clip=true and a budget, eps" in printed
    assert "two worlds show" not in printed


class Shrinking(OnHead):
    """Releases a share of the sums, which it draws and keeps for one step."""

    def prepare(self, model, state, public, gen):
        self.share = 0.5 + 0.5 * float(torch.rand((), generator=gen))
        return super().prepare(model, state, public, gen)

    def compress(self, state, sums):
        return {key: self.share * total for key, total in sums.items()}


def test_what_a_sound_method_keeps_within_a_step_is_there_for_the_made_up_sums():
    parts = replace(cli.build_parts(composed("linear", *LINEAR), CPU), method=Shrinking())
    assert check(parts, 1.0, tries=2, climbs=5).findings == ()
