"""Audits from end to end: their record, going on, catching what is broken, refusing."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from dpexp import cli, records
from dpexp.attacks import bounds, distinguishing
from dpexp.attacks.audit import curve_bound, toss
from dpexp.attacks.bounds_curves import gaussian_epsilon
from dpexp.attacks.canaries import Canaried
from dpexp.cli import audit, audit_page, audited
from dpexp.cli.lookup import outcome
from dpexp.distributed.ranks import Ranks
from dpexp.pate.votes import build_votes
from dpexp.privacy import build
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train import train
from dpexp.types import ConfigError
from tests.marks import few
from tests.runs import execute, of, one_thread, with_words  # noqa: F401 (a fixture)
from tests.test_conf import check_settings

ALONE = Ranks(0, 1, torch.device("cpu"))
SMALL = ["task=digits", "profile=embedded", *audited.SMALL, "epochs=2"]
ONE_RUN = ["method=dpsgd", *SMALL, "eps=8", "audit=one_run", "audit.m=300"]
PRIVACY = {"delta": 1e-4, "noise": True, "clip": True, "sampling": "poisson", "budget": "total"}


def scores_of(directory):
    with np.load(directory / records.run.SCORES) as file:
        return dict(file)


# One run


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return execute(tmp_path_factory.mktemp("unbroken"), *ONE_RUN)


@pytest.mark.parametrize("canaries", ["dirac", "mislabelled"])
def test_an_audited_run_states_its_bounds_and_what_they_rest_on(unbroken, tmp_path, canaries):
    directory = unbroken
    if canaries != "dirac":
        directory = execute(tmp_path, *ONE_RUN, f"audit.canaries={canaries}")
    _, result, privacy = of(directory)
    saved = scores_of(directory)
    assert saved["scores"].shape == saved["included"].shape == (300,)
    assert saved["included"].tolist() == toss(0, 300).tolist()
    guesses = bounds.guess(saved["scores"], saved["included"], 60)
    assert (result["audit_canaries"], result["audit_guesses"]) == (300, 60)
    assert result["audit_right"] == guesses.right
    assert result["audit_epsilon_lower"] == guesses.epsilon_lower(1e-4, 0.95)
    assert result["audit_epsilon_accounted"] == privacy["epsilon"]["prv"] <= 8
    lower = (result["audit_epsilon_lower"], result["audit_epsilon_lower_curve"])
    assert all(0 <= bound <= privacy["epsilon"]["prv"] for bound in lower)
    shown = re.search(r"audit: eps at least ([\d.]+) at 95 % confidence", outcome(directory))
    assert 0 <= result["audit_epsilon_lower"] - float(shown[1]) < 0.01
    if canaries == "dirac":  # heard through the noise; a wrong label in eight steps is not
        assert lower[1] > lower[0] > 0.5
    assert any("audited" in words for words in privacy["deviations"])
    assert privacy["dataset_size"] == 1437 and privacy["noise_draws"] == result["steps"]


@pytest.mark.long
def test_an_audited_run_goes_on_from_a_checkpoint_to_the_same_scores(unbroken, tmp_path):
    words = [*ONE_RUN, f"results={tmp_path}", "checkpoint.steps=1"]
    config = cli.compose(words)
    parts = cli.build_parts(config, ALONE.device)
    schedule = parts.schedule

    def stopping(step, num_steps):
        if step == 5:
            raise KeyboardInterrupt
        return schedule(step, num_steps)

    with pytest.raises(KeyboardInterrupt):
        train(config, replace(parts, schedule=stopping), ALONE)
    directory = cli.execute(config)
    assert directory.name == unbroken.name
    for name, values in scores_of(unbroken).items():
        assert np.array_equal(scores_of(directory)[name], values)
    assert of(directory)[1]["audit_right"] == of(unbroken)[1]["audit_right"]


def test_the_settings_of_an_audit_are_what_it_takes():
    node = cli.compose(ONE_RUN)["audit"]
    assert node.pop("name") == "one_run"
    check_settings("audit", node)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit.guesses=0"], "audit.guesses in"),
        (["audit.m=1"], "audit.m >= 2"),
        (["audit.confidence=1.0"], "audit.confidence in"),
        (["audit.canaries=dirak"], "Did you mean dirac"),
        (["sampling=shuffle"], "sampling=poisson with crafted gradients"),
        (["privacy.sampling=shuffle"], "sampling=poisson with crafted gradients"),
        (["audit.canaries=mislabelled", "audit.m=2000"], "audit.m <= 1437"),
        (["method=compressive"], "audit.canaries=mislabelled"),
        (["method=pate"], "scripts.audit methods=pate"),
    ],
)
def test_what_cannot_be_audited_so_is_refused_in_one_line(tmp_path, words, said):
    with pytest.raises(ConfigError, match=said) as refused:
        execute(tmp_path, *ONE_RUN, *words)
    assert "\n" not in str(refused.value)


# A plain Gaussian mechanism through the suite's own pipeline


def one_step(epsilon, m, share=1.0):
    """Take one step with m canaries, of which half take part, and guess at a twentieth of them.

    The noise is `share` of what the mechanism claims.
    """
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=cnn"]
    parts = cli.build_parts(cli.compose([*words, "model.channels=[16,32]"]), ALONE.device)
    state, included = parts.method.start(parts.model), toss(0, m)
    releases = parts.method.releases(state, 1.0)
    sizes = {"dataset_size": 8, "batch_size": 8, "num_steps": 1, "releases": releases}
    mechanism = build({**PRIVACY, "eps": epsilon}, seed=0, **sizes)
    settings = {"kind": "dirac", "sampling_prob": 1.0, "clip_norm": 1.0, "batch_size": 8}
    method = Canaried(parts.method, included=included, seed=0, **settings)
    less = replace(mechanism, noise_multiplier=share * mechanism.noise_multiplier)
    with PrivateGradient(parts.model, method, less, ALONE, 8) as gradient:
        after = gradient(method.start(parts.model), parts.task.train, 0).state
    return bounds.guess(after["scores"].numpy(), included.numpy(), m // 20), mechanism


def test_one_step_of_dpsgd_is_recovered_to_six_tenths_in_one_run():
    guesses, mechanism = one_step(4.0, 10_000)
    accounted = mechanism.epsilon(1)
    assert 0.6 * accounted < curve_bound(guesses, mechanism, 0.95) <= accounted
    assert 0.35 * accounted < guesses.epsilon_lower(mechanism.delta, 0.95) <= accounted


def test_a_quarter_of_the_noise_is_caught_in_one_run():
    guesses, mechanism = one_step(1.0, 4000, share=0.25)
    assert guesses.epsilon_lower(mechanism.delta, 0.95) > mechanism.epsilon(1)
    assert curve_bound(guesses, mechanism, 0.95) > mechanism.epsilon(1)


# The distinguishing game


def trials_of(method, num_trials, share=1.0, num_steps=2, eps=4.0):
    config = cli.compose([f"method={method}", *SMALL])
    parts = cli.build_parts(config, ALONE.device)
    state = parts.method.start(parts.model)
    mechanism = build(
        {**PRIVACY, "eps": eps},
        dataset_size=8,
        batch_size=8,
        num_steps=num_steps,
        releases=parts.method.releases(state, 1.0),
        seed=0,
    )
    less = replace(mechanism, noise_multiplier=share * mechanism.noise_multiplier)
    without, within = distinguishing.of_steps(parts, less, num_trials)
    verdict = distinguishing.judge(
        without, within, delta=mechanism.delta, confidence=0.95, is_gaussian=True
    )
    return without, within, verdict, mechanism


@pytest.mark.long
def test_a_distinguishing_game_recovers_six_tenths_of_a_methods_epsilon():
    without, within, verdict, mechanism = trials_of("dpsgd", 400, eps=8.0)
    accounted = mechanism.epsilon(2)
    assert 0.6 * accounted < verdict.epsilon_lower_gaussian <= accounted
    assert 0 < verdict.epsilon_lower <= accounted
    # Scores are what the pipeline's Gaussian noise makes of the canary's two steps.
    spread = mechanism.noise_multiplier * np.sqrt(2)
    for scores, mean in ((without, 0), (within, 2)):
        assert scores.mean() == pytest.approx(mean, abs=4 * spread / np.sqrt(400))
        assert scores.std() == pytest.approx(spread, rel=4 / np.sqrt(2 * 400))


def test_a_quarter_of_the_noise_is_caught_in_a_distinguishing_game():
    _, _, verdict, mechanism = trials_of("dpsgd", 300, share=0.25, num_steps=1, eps=1.0)
    assert verdict.epsilon_lower > mechanism.epsilon(1)
    assert verdict.epsilon_lower_gaussian > mechanism.epsilon(1)


def votes(epsilon, share=1.0):
    mechanism = build_votes(
        {**PRIVACY, "eps": epsilon},
        dataset_size=1437,
        num_classes=2,
        threshold=30,
        check_ratio=3.75,
        max_checks=12,
        max_answers=8,
        seed=0,
    )
    less = replace(mechanism, noise_multiplier=share * mechanism.noise_multiplier)
    without, within = distinguishing.of_votes(less, 100, 600)
    return mechanism, distinguishing.judge(
        without, within, delta=1e-4, confidence=0.95, is_gaussian=True
    )


def test_a_teachers_vote_shows_and_within_what_is_accounted_for():
    mechanism, verdict = votes(8.0)
    accounted = mechanism.epsilon()["rdp"]
    assert 0.25 * accounted < verdict.epsilon_lower_gaussian <= accounted
    assert 0 < verdict.epsilon_lower <= accounted


@pytest.mark.long
def test_votes_with_an_eighth_of_the_noise_are_caught():
    mechanism, verdict = votes(1.0, share=0.125)
    assert verdict.epsilon_lower > mechanism.epsilon()["rdp"]
    assert verdict.epsilon_lower_gaussian > mechanism.epsilon()["rdp"]


def test_a_gaussian_bound_is_of_gaussian_mechanisms_alone():
    same = np.random.default_rng(0).standard_normal((2, 50))
    settings = {"delta": 0.0, "confidence": 0.95}
    assert distinguishing.judge(*same, **settings, is_gaussian=False).epsilon_lower_gaussian is None
    assert gaussian_epsilon(0.0, 1e-5) == 0


# The script


def test_the_script_writes_its_table_and_fails_where_more_leaks_than_is_accounted_for(
    tmp_path, capsys
):
    words = ["methods=dpsgd", "trials=10", "steps=1", f"results={tmp_path}", *SMALL[2:]]
    assert audit.main([*words, "audit.m=50"]) == 0
    paths = [tmp_path / "embedded" / name for name in ("audit-dpsgd.md", "audit-dpsgd.csv")]
    assert capsys.readouterr().out.splitlines()[-2:] == [str(path) for path in paths]
    (directory,) = (tmp_path / "embedded" / "runs").iterdir()
    header, row = paths[1].read_text().splitlines()
    told = dict(zip(header.split(","), row.split(","), strict=True))
    result = json.loads((directory / "result.json").read_text())
    assert told["run"] == directory.name and told["canaries"] == "50"
    assert float(told["one_run"]) == result["audit_epsilon_lower"]
    accounted = f"{result['audit_epsilon_accounted']:.2f}"
    assert f"| dpsgd | {accounted} |" in paths[0].read_text()
    assert "for: none." in paths[0].read_text()

    # What a finished run says is looked up; one that says too much must not pass.
    result["audit_epsilon_lower"] = 8.5
    (directory / "result.json").write_text(json.dumps(result))
    assert audit.main([*words, "audit.m=50"]) == 1
    said = capsys.readouterr().err
    assert "leakage above the accounted epsilon: dpsgd" in said and "note" not in said
    assert "for: dpsgd." in paths[0].read_text()

    # Nor may one that was made of other bytes.
    (directory / "result.json").write_text(json.dumps(result | {"data_fingerprint": "0" * 64}))
    assert audit.main([*words, "audit.m=50"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: Expected the bytes that the finished run {directory} was made")
    assert "the data of digits were 000000000000… and are" in line and "results=FOLDER" in line


TINY = ["methods=dpsgd", "model=linear", "epochs=0.2", "trials=8", "steps=1", "audit.m=20"]


@pytest.mark.long
def test_an_audit_is_not_written_over_by_one_of_other_settings(tmp_path, capsys):
    words = [*TINY, f"results={tmp_path}"]
    assert audit.main([*words, "eps=8"]) == 0
    page, runs = tmp_path / "embedded" / "audit-dpsgd.md", tmp_path / "embedded" / "runs"
    before, table = page.read_text(), page.with_suffix(".csv").read_text()
    assert "at 95% confidence" in before
    capsys.readouterr()
    for other in ("eps=4", "trials=10", "steps=2", "audit.confidence=0.9", "audit.m=22"):
        assert audit.main(with_words([*words, "eps=8"], [other])) == 2, other
        line = capsys.readouterr().err
        assert line.startswith("error: Expected name= or results=") and str(page) in line
        assert line.count("\n") == 1 and len(list(runs.iterdir())) == 1
    assert page.read_text() == before and page.with_suffix(".csv").read_text() == table
    assert audit.main(["eps=8", *words]) == 0  # in another order they are the same
    assert "has no effect" not in capsys.readouterr().err
    assert audit.main([*words, "eps=8", "public=shapes"]) == 2  # another page
    assert "warning: public=shapes has no effect with method=dpsgd" in capsys.readouterr().err
    assert page.read_text() == before
    assert audit.main([*words, "eps=8", "audit.confidence=0.9", "name=sure"]) == 0
    sure = page.with_name("sure.md").read_text()
    assert page.read_text() == before and "at 90% confidence each" in sure
    assert page.with_name("sure.csv").is_file()


@pytest.mark.long
def test_what_the_last_audit_cannot_play_costs_no_run_of_the_first(tmp_path, capsys):
    """The game's small network is of images."""
    words = ["methods=dpsgd", "task=sentiment", "trials=4", f"results={tmp_path}"]
    assert audit.main(words) == 2
    line = capsys.readouterr().err
    assert line.startswith("error: Expected a language model for task sentiment")
    assert not list(tmp_path.iterdir())


SUBJECTS = {subject.name: subject for subject in audited.subjects_of([])}
SHORT = ("bitfit", "compressive_unmeasured", "dp_zo", "linear", "pate", "rgp")
"""Of words of their own, and one of none."""


@pytest.mark.parametrize("name", few(SUBJECTS, SHORT))
def test_every_subject_composes(name):
    subject = SUBJECTS[name]
    configs = [audit.of_one_run(subject, []), audit.of_distinguishing_game(subject, [])]
    for config in configs:
        if config is not None:
            assert config["privacy"]["noise"] is True and config["privacy"]["clip"] is True
            assert f"method={config['method']['name']}" == subject.method[0]


def test_every_private_method_is_a_subject():
    private = {path.stem for path in (cli.CONF / "method").glob("*.yaml")}
    chosen = {subject.method[0].removeprefix("method=") for subject in SUBJECTS.values()}
    assert private - chosen == {"nonprivate", "powersgd"}


def test_what_is_no_word_of_its_own_is_an_override():
    request = audit.parse(["trials=4", "~schedule", "+model.x=1", "methods=rgp"])
    assert ([subject.name for subject in request.subjects], request.trials) == (["rgp"], 4)
    assert request.overrides == ("~schedule", "+model.x=1")


def test_a_mistake_in_the_game_costs_no_run(tmp_path, capsys):
    """And a model of one's own takes the small one's place, settings and all."""
    words = ["methods=dpsgd", f"results={tmp_path}", "model.width=2"]
    assert audit.main(words) == 2
    assert "Unknown key model.width" in capsys.readouterr().err and not any(tmp_path.iterdir())
    (subject,) = audited.subjects_of([])[:1]
    game = audit.of_distinguishing_game(subject, ["model=linear"])
    assert game["model"]["name"] == "linear" and "channels" not in game["model"]


@pytest.mark.parametrize(
    "word",
    [
        *("methods=dpsdg", "trials=3", "trials=x", "dpsgd", "noise=false", "name=a/b"),
        *("audit.confidence=1", "audit.confidence=high"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(word, capsys):
    assert audit.main([word]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1


def test_make_audit_makes_the_committed_page_anew():
    """It is of these runs, and would be refused as another's if a default moved."""
    request = audit.parse([])
    ids = {
        subject.name: config and records.run_id(config)
        for subject in request.subjects
        for config in [audit.of_one_run(subject, request.overrides)]
    }
    stem = cli.CONF.parent / "results" / "embedded" / request.name
    above = audit_page.opening(request.trials, request.steps, 0.95, request.overrides)
    assert audit_page.is_of(stem, above, ids)
