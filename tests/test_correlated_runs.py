"""Runs whose noise is correlated across steps: from config to record, stopped, audited, refused."""

import numpy as np
import pytest
import yaml

import dpexp
from dpexp import cli
from dpexp.attacks import distinguishing, trials
from dpexp.cli.verify import verify
from dpexp.privacy import PrivacyError
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.certificate import LOST
from dpexp.privacy.verification.files import verify_files
from dpexp.types import ConfigError
from tests.runs import (
    SHORT,
    assert_same_run,
    execute,
    killed,
    of,
    one_thread,  # noqa: F401 (a fixture)
)

BANDED = [*SHORT, "noise=correlated", "noise.bands=3"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return execute(tmp_path_factory.mktemp("unbroken"), *BANDED)


def test_a_run_says_who_takes_part_and_verifies(unbroken):
    _, result, privacy = of(unbroken)
    assert verify(unbroken)[0] == 0
    assert privacy["sampling"] == "cyclic" and privacy["correlation"]["bands"] == 3
    assert privacy["correlation"]["participations"] == 4 and privacy["steps"] == 12
    assert yaml.safe_load((unbroken / "config.yaml").read_text())["correlation"]["bands"] == 3
    assert result["test_accuracy"] > 20  # of ten classes, after 12 steps


@pytest.mark.parametrize(
    ("changed", "finding"),
    [
        ({"bands": 4, "participation_prob": 1.0, "participations": 3}, "correlation bands"),
        ({"coefficients": [0.5] * 4}, "4 coefficients reach beyond 3 bands"),
        ({"coefficients": [0.0, 1.0]}, "the first coefficient is 0.0"),
        ({"coefficients": [0.9, 0.9, 0.1]}, "coefficients of norm 1.27"),
        ({"coefficients": [0.4, 0.3]}, "coefficients of norm 0.5"),
        ({"participations": 3}, "correlation participations"),
        ({"participation_prob": 0.1}, "correlation participation_prob"),
        ({"participation": "others"}, "correlation participation"),
        ({"more": 1}, "more is nothing that a certificate has"),
        (None, "disagree on whether noise is"),
    ],
)
def test_what_is_said_otherwise_of_correlated_noise_is_found(unbroken, changed, finding):
    _, result, privacy = of(unbroken)
    config = yaml.safe_load((unbroken / "config.yaml").read_text())
    assert verify_files(config, result, privacy).findings == ()
    correlation = {} if changed is None else {"correlation": privacy["correlation"] | changed}
    others = {key: value for key, value in privacy.items() if key != "correlation"}
    found = verify_files(config, result, others | correlation).findings
    assert any(finding in each for each in found), found


def test_steps_lost_beside_correlated_noise_are_found(unbroken):
    """No run goes on after a loss there, so that none ends with such a certificate."""
    _, result, privacy = of(unbroken)
    config = yaml.safe_load((unbroken / "config.yaml").read_text())
    forged = privacy | {"lost_steps": 3, "deviations": [LOST]}
    found = verify_files(config, result, forged).findings
    assert found == ("lost_steps: 3; with correlated noise no run goes on after a loss",)


def test_one_band_is_the_run_with_fresh_noise_to_the_last_bit(tmp_path):
    correlated = execute(tmp_path, *SHORT, "noise=correlated", "noise.bands=1")
    fresh = execute(tmp_path, *SHORT)
    assert correlated != fresh  # two runs
    ours, theirs = of(correlated), of(fresh)
    assert ours[1]["weights_sha256"] == theirs[1]["weights_sha256"]
    assert ours[0] == theirs[0] and ours[2]["epsilon"] == theirs[2]["epsilon"]


def test_a_killed_run_goes_on_with_the_noise_it_had(unbroken, tmp_path):
    there = killed(tmp_path, *BANDED, at=7)
    assert execute(tmp_path, *BANDED) == there
    assert_same_run(of(there), of(unbroken))


def test_a_run_that_lost_steps_is_not_gone_on_with(tmp_path, monkeypatch):
    there = killed(tmp_path, *BANDED, at=7)
    monkeypatch.setattr("dpexp.training.ledger.code_sha256", lambda: "of other code")
    with pytest.raises(PrivacyError, match="3 steps after step 4 .* later noise needs theirs"):
        execute(tmp_path, *BANDED)
    assert not (there / "result.json").exists()


@pytest.mark.parametrize(
    "method", ["rgp", "lsg", "sparse_dpsgd", "dp_powersgd", "dp_grape", "dp_zo"]
)
def test_a_method_whose_releases_move_is_refused_in_one_line(method, tmp_path):
    words = [word for word in BANDED if not word.startswith("method=")]
    with pytest.raises(ConfigError, match=f"beside noise=correlated.*method={method}"):
        execute(tmp_path, f"method={method}", *words, "model=cnn")


def test_a_method_without_noise_of_its_own_gets_it_by_the_word(tmp_path):
    words = "task=digits profile=embedded method=linear noise=correlated noise.bands=2 clip=true"
    run = dpexp.run(f"{words} eps=8 epochs=1 results={tmp_path}")
    assert run.epsilon <= 8 and verify(run.directory)[0] == 0


RECIPES = "denoise=doppler averaging=ema augmentation=crop_flip augmentation.multiplicity=2 "
RECIPES += "augmentation.padding=1 clipping=per_layer"


@pytest.mark.parametrize("method", ["dpsgd", "dp_lora method.rank=2"])
def test_it_goes_with_adapters_and_with_every_recipe(method, tmp_path):
    words = [word for word in BANDED if not word.startswith(("method=", "epochs=", "model="))]
    run = dpexp.run(
        f"method={method} {' '.join(words)} epochs=0.75 model=cnn {RECIPES} results={tmp_path}"
    )
    assert run.epsilon <= 8 and verify(run.directory)[0] == 0


@pytest.mark.parametrize("word", ["clipping=adaptive", "sampling=shuffle", "noise=secret"])
def test_what_it_does_not_go_with_is_refused_in_one_line(word, tmp_path):
    words = [*BANDED[:-2], "correlation=banded", word]
    with pytest.raises(ConfigError, match="beside noise=correlated|noise=correlated alone"):
        execute(tmp_path, *words)


def test_bands_without_correlated_noise_are_refused(tmp_path):
    with pytest.raises(Exception, match="correlation"):
        execute(tmp_path, *SHORT, "noise.bands=3")


@pytest.mark.long
def test_a_sweep_over_bands_has_fresh_noise_among_them(tmp_path, programs):
    swept = ["run.py", "-m", *SHORT, "noise=correlated", "noise.bands=1,3", f"results={tmp_path}"]
    done = programs.run(swept)
    assert done.returncode == 0, done.stderr
    found = {of(each.parent)[2]["correlation"]["bands"] for each in tmp_path.rglob("result.json")}
    assert found == {1, 3}


# Audits


@pytest.mark.long
def test_canaries_bound_epsilon_from_below(tmp_path):
    run = dpexp.run(" ".join([*BANDED, "audit=one_run", "audit.m=200", f"results={tmp_path}"]))
    assert verify(run.directory)[0] == 0
    assert 0 < run.result["audit_epsilon_lower_curve"] <= run.epsilon <= 8


def played(num_trials, steps, *words):
    config = trials.small(cli.compose([*BANDED[:-1], "eps=2", *words]))
    parts = cli.build_parts(config, "cpu")
    return trials.of_steps(config, parts, num_trials, steps)


@pytest.mark.long
@pytest.mark.parametrize("bands, steps", [(2, 4), pytest.param(3, 6, marks=pytest.mark.long)])
def test_in_the_distinguishing_game_a_canary_moves_its_score_as_far_as_is_accounted(bands, steps):
    """In noise of one standard deviation: by the root of its participations over sigma."""
    found = played(150, steps, f"noise.bands={bands}")
    verdict = distinguishing.judge(
        found.without, found.within, delta=found.delta, confidence=0.95, is_gaussian=True
    )
    assert max(verdict.epsilon_lower, verdict.epsilon_lower_gaussian) <= found.epsilon <= 2
    spread = np.sqrt((found.within.var() + found.without.var()) / 2)
    moved = (found.within.mean() - found.without.mean()) / spread
    sigma, _ = calibrate(1.0, steps // bands, found.delta, 2.0)
    assert moved == pytest.approx(np.sqrt(steps // bands) / sigma, abs=4 * np.sqrt(2 / 150))
