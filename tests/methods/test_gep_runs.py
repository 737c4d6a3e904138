"""GEP and B-GEP in whole runs: what is certified, loaded, refused and learnt."""

import json
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn

from dpexp import cli
from dpexp.cli import idle
from dpexp.distributed.ranks import Ranks
from dpexp.privacy import verify
from dpexp.privacy.rdp import rdp_epsilon, rdp_epsilon_apart
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train import make_mechanism
from dpexp.types import ConfigError
from tests.marks import few, long
from tests.methods.test_gep import Spy
from tests.runs import assert_same_run, execute, killed, one_thread  # noqa: F401 (a fixture)
from tests.runs import of as record_of

CPU = torch.device("cpu")
DIGITS = ["task=digits", "profile=embedded", "model=cnn", "device=cpu"]
FEW = ["method.m=30", "method.k=20"]


def of(directory, name):
    return json.loads((directory / name).read_text())


def test_a_run_certifies_the_joint_release_and_what_accounting_apart_would_have_said(tmp_path):
    words = [*DIGITS, *FEW, "epochs=1", "eval_every=1", f"results={tmp_path}"]
    gep_run, bgep_run = (
        cli.execute(cli.compose([f"method={method}", *words])) for method in ("gep", "bgep")
    )
    pair, alone = of(gep_run, "privacy.json"), of(bgep_run, "privacy.json")
    assert [release["name"] for release in pair["releases"]] == ["embedding", "residual"]
    assert [release["name"] for release in alone["releases"]] == ["embedding"]
    assert pair["noise_multiplier"] == pytest.approx(2**0.5 * alone["noise_multiplier"])
    assert pair["epsilon"] == alone["epsilon"]
    q, sigma, steps = (pair[key] for key in ("q", "noise_multiplier", "steps"))
    apart = rdp_epsilon_apart(q, [sigma, sigma], steps, pair["delta"])
    assert pair["accounted_apart"]["rdp"] == apart < pair["epsilon"]["rdp"]
    assert "understates" in pair["accounted_apart"]["note"]
    assert "accounted_apart" not in alone
    verify(pair)

    assert pair["public"]["name"] == "shapes" and pair["public"]["examples"] == 2000
    assert len(pair["public"]["fingerprint"]) == 64
    result = of(gep_run, "result.json")
    plain = cli.build_parts(cli.compose(["method=dpsgd", *DIGITS]), CPU).task.fingerprint
    assert result["data_fingerprint"] == of(bgep_run, "result.json")["data_fingerprint"] != plain


def test_doubling_one_release_understates_as_the_authors_code_does():
    """At q = 0.02, 10,000 steps, sigma = 1.5: 11.6, where the joint release costs 13.7."""
    assert round(rdp_epsilon_apart(0.02, [1.5, 1.5], 10_000, 1e-5), 1) == 11.6
    assert round(rdp_epsilon(0.02, 1.5 / 2**0.5, 10_000, 1e-5), 1) == 13.7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["public=none"], "Set public=imagenet32"),
        (["public.size=20"], "Expected at least 30 public examples; got 20"),
        (["method.k=31"], r"Expected k in \[1, m = 30\]"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_a_run_without_what_it_needs_stops_before_it_begins(tmp_path, words, said):
    config = cli.compose(["method=gep", *DIGITS, *FEW, f"results={tmp_path}", *words])
    with pytest.raises(ConfigError, match=said) as caught:
        cli.execute(config)
    assert "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["method=dpsgd"], ["method=gep", *FEW, "method.basis=random"]])
def test_a_public_set_is_not_loaded_where_nothing_needs_it(tmp_path, words):
    elsewhere = ["public=imagenet32", f"data_root={tmp_path}"]  # where there is none
    config = cli.compose([*words, *DIGITS, *elsewhere, "epochs=0.1", f"results={tmp_path}"])
    assert cli.build_parts(config, CPU).task.public is None
    with warnings.catch_warnings(record=True) as said:
        idle.warn(config, elsewhere)
        directory = cli.execute(config)
    assert "public" not in of(directory, "privacy.json")
    told = [
        str(one.message) for one in said if "public=imagenet32 has no effect" in str(one.message)
    ]
    assert len(told) == 1


@pytest.mark.parametrize(("method", "at_least"), [long("gep", 87), long("bgep", 35)])
def test_a_model_learns(tmp_path, method, at_least):
    words = [f"method={method}", *DIGITS, "method.m=100", "method.k=60", "eps=8"]
    brief = ["epochs=15", "eval_every=15", f"results={tmp_path}"]
    result = of(cli.execute(cli.compose([*words, *brief])), "result.json")
    assert result["test_accuracy"] > at_least  # chance is 10


@pytest.mark.parametrize(("words", "is_formed"), [(FEW, False), (["method.k=4"], True)])
def test_every_rank_finds_the_same_bases(words, is_formed):
    """Dropout on public images draws from the step's seed, not from the rank's."""
    config = cli.compose(["method=gep", *DIGITS, *words])
    parts = cli.build_parts(config, CPU)
    model = nn.Sequential()
    model.add_module("drop", nn.Dropout(0.5))
    model.add_module("flat", nn.Flatten())
    model.add_module("head", nn.Linear(64, 10))
    bases = []
    for rank in (0, 1):
        method = Spy(parts.method)
        state = method.start(model)
        mechanism = replace(
            make_mechanism(config, parts.task.dataset_size, method, state, Ranks(0, 1, CPU)),
            noise=False,
        )
        torch.manual_seed(rank)
        gradient = PrivateGradient(
            model, method, mechanism, Ranks(0, 1, CPU), 360, parts.task.public
        )
        with gradient, warnings.catch_warnings():
            gradient(state, parts.task.train, 0)
        anchors = method.prepared["anchors"]
        assert is_formed == (not anchors)
        found = {group: each["coefficients"] for group, each in anchors.items()}
        bases.append(method.prepared["bases"] if is_formed else found)
    assert bases[0] and bases[0].keys() == bases[1].keys()
    assert all(torch.equal(basis, bases[1][name]) for name, basis in bases[0].items())


@pytest.mark.parametrize("model", few(["cnn", "linear"], ["linear"]))
def test_a_run_killed_while_a_basis_serves_goes_on_with_that_basis(model, tmp_path):
    words = ["method=gep", *DIGITS, *FEW, f"model={model}", "method.every=4", "batch_size=60"]
    words += ["epochs=0.25", "eval_every=0.1", "eps=3"]  # six steps
    whole = execute(tmp_path / "whole", *words)
    assert killed(tmp_path / "again", *words, at=3, every=2).exists()
    assert_same_run(record_of(execute(tmp_path / "again", *words)), record_of(whole))


@pytest.mark.parametrize("word", ["every=true", "every=1.0", "every=0", "every=-2", "every=x"])
def test_what_is_no_number_of_steps_is_refused(word, tmp_path):
    words = ["method=gep", *DIGITS, *FEW, f"method.{word}", f"results={tmp_path}"]
    with pytest.raises(ConfigError, match="every"):
        cli.execute(cli.compose(words))


def test_one_step_a_basis_is_the_run_of_before():
    said, unsaid = (
        cli.compose(["method=gep", *DIGITS, *more]) for more in (["method.every=1"], [])
    )
    assert said == unsaid and "every" not in said["method"]
