"""Methods held to what they declare, ours by folder; and that what is unsound is found out."""

import re
from dataclasses import replace

import pytest

from dpexp import cli
from dpexp.attacks.soundness import TOLERANCE, check
from dpexp.cli import check_method
from tests.steps import CPU, METHODS, composed
from tests.unsound import UNSOUND, HalfDeclared

SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3"]
LOW_RANK = dict.fromkeys(
    ["dp_powersgd", "lsg", "powersgd", "rgp", "rgp_core", "rgp_public", "rgp_random"],
    ["method.rank=2"],
)
OTHERS = [  # other ways through the same methods
    ("rgp", "method.warm_up_steps=1"),
    ("rgp", "method.residual=false"),
    ("lsg", "method.mask=carriers"),
    ("dp_powersgd", "method.error_feedback=true"),
    ("compressive", "method.psi=none"),
    ("compressive", "method.psi=none", "method.kappa=null", "method.bound=example"),
    ("bgep", "method.basis=random"),
    ("dpsgd", "task=regression", "model=linear"),
    ("dpsgd", "task=sentiment", "model.dropout=0.3"),
]


@pytest.mark.parametrize("words", [*((m,) for m in METHODS), *OTHERS], ids=" ".join)
def test_one_example_moves_a_release_by_no_more_than_is_declared_and_nothing_else_is_known(words):
    method, *more = words
    small = [] if method == "compressive" or len(more) > 1 else SMALL + LOW_RANK.get(method, [])
    config = composed(method, *small, *more)
    found = check(cli.build_parts(config, CPU), config["privacy"]["clip_norm"], tries=2, climbs=5)
    assert found.findings == ()
    assert found.worst.ratio <= 1 + TOLERANCE
    # The search goes as far as can be gone, but in a box, whose corners it does not know.
    assert found.worst.ratio > (0.1 if method == "compressive" else 0.999)


@pytest.mark.parametrize("unsound", UNSOUND, ids=lambda method: method.__name__)
def test_a_false_declaration_is_found_out(unsound):
    parts = replace(cli.build_parts(composed("linear", *SMALL), CPU), method=unsound())
    found = check(parts, 1.0, tries=2, climbs=5)
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
        (["method=dpsgd", f"{TARGET}TopEntries"], 1, r"dpsgd: differs: one example moves release"),
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
