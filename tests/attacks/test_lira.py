"""The likelihood ratio attack: against closed forms, a literal version and real runs."""

import json
import math
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.stats import norm

from dpexp import cli, records
from dpexp.attacks import lira
from dpexp.attacks.roc import roc
from dpexp.attacks.shadow import half
from dpexp.cli import lira as script
from dpexp.cli import lira_request as asked
from dpexp.cli.lira_page import POINTS
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import execute, of, one_process, one_thread, with_words  # noqa: F401

DIGITS = ["profile=embedded", "task=digits", "eval_every=100"]


# Confidences


def test_confidences_are_the_log_odds_of_the_softmax():
    gen = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(50, 7, generator=gen, dtype=torch.float64)
    targets = torch.randint(7, (50,), generator=gen)
    own = logits.softmax(1)[torch.arange(50), targets]
    sure = lira.confidences(logits, targets)
    torch.testing.assert_close(sure, torch.log(own / (1 - own)), rtol=1e-9, atol=1e-9)
    losses = F.cross_entropy(logits, targets, reduction="none")
    torch.testing.assert_close(F.softplus(-sure), losses, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("height", [50.0, 1000.0, -1000.0])
def test_confidences_do_not_overflow_where_a_probability_rounds_to_one_or_zero(height):
    """Of logits (z, 0, 0) the odds are e^z / 2."""
    logits = torch.tensor([[height, 0.0, 0.0]], dtype=torch.float64)
    assert lira.confidences(logits, torch.tensor([0])).item() == pytest.approx(
        height - math.log(2), rel=1e-15
    )


# Gaussians


def test_the_fit_is_that_of_a_literal_loop():
    rng = np.random.default_rng(1)
    values, mask = rng.normal(size=(9, 5)), rng.random((9, 5)) < 0.5
    mask[:2] = True
    columns = [values[mask[:, n], n] for n in range(5)]
    own = lira.fit(values, mask, is_shared=False)
    np.testing.assert_allclose(own.mean, [np.mean(some) for some in columns])
    np.testing.assert_allclose(own.std, [np.std(some, ddof=1) for some in columns])
    shared = lira.fit(values, mask, is_shared=True)
    squares = sum(((some - some.mean()) ** 2).sum() for some in columns)
    freedom = sum(len(some) - 1 for some in columns)
    np.testing.assert_allclose(shared.std, math.sqrt(squares / freedom))
    np.testing.assert_array_equal(shared.mean, own.mean)


@pytest.mark.parametrize("attack", ["online", "offline"])
def test_with_gaussians_known_the_power_is_the_closed_form(attack):
    """A shift d of unit Gaussians: at false positives a, Phi(d - Phi^-1(1 - a)) are found."""
    rng, size, shift = np.random.default_rng(2), 200_000, 2.0
    centre = rng.normal(0, 5, size)  # so that no threshold for all examples would do
    is_member = rng.random(size) < 0.5
    observed = centre + shift * is_member + rng.normal(size=size)
    outside = lira.Gaussian(centre, np.float64(1.0))
    inside = lira.Gaussian(centre + shift, np.float64(1.0))
    scores = {
        "online": lira.online(observed, inside, outside),
        "offline": lira.offline(observed, outside),
    }[attack]
    curve = roc(scores, is_member)
    assert curve.auc == pytest.approx(norm.cdf(shift / 2**0.5), abs=0.004)
    for false in (0.001, 0.01, 0.1):
        power = norm.cdf(shift - norm.isf(false))
        slope = norm.pdf(shift - norm.isf(false)) / norm.pdf(norm.isf(false))
        # Binomial errors of the members found, and of the threshold, times the curve's slope.
        variance = power * (1 - power) + slope**2 * false * (1 - false)
        assert abs(curve.tpr_at(false) - power) < 4 * math.sqrt(variance / (size / 2))


def test_the_ratio_is_the_literal_one_where_variances_differ():
    """log [s_out / s_in] - (x - m_in)^2 / 2 s_in^2 + (x - m_out)^2 / 2 s_out^2."""
    x = np.linspace(-3, 3, 7)
    ratio = lira.online(x, lira.Gaussian(1.0, 0.5), lira.Gaussian(-1.0, 2.0))
    literal = math.log(2.0 / 0.5) - (x - 1) ** 2 / (2 * 0.25) + (x + 1) ** 2 / (2 * 4)
    np.testing.assert_allclose(ratio, literal)


def test_with_gaussians_learnt_from_shadows_the_power_is_nearly_the_closed_form():
    rng, models, size, shift = np.random.default_rng(3), 101, 400, 2.0
    is_member = rng.random((models, size)) < 0.5
    centre = rng.normal(0, 5, size)
    values = centre + shift * is_member + rng.normal(size=(models, size))
    curves = {name: roc(some, is_member) for name, some in lira.attack(values, is_member).items()}
    ideal = norm.cdf(shift - norm.isf(0.01))
    for name in ("online", "offline"):
        # About 50 models estimate a mean to 0.14 of the noise, a deviation to 10%: that costs a
        # little, and most at few false positives.
        assert curves[name].auc == pytest.approx(norm.cdf(shift / 2**0.5), abs=0.02)
        assert 0.75 * ideal < curves[name].tpr_at(0.01) < 1.05 * ideal
    assert curves["threshold"].auc < 0.65  # drowned in how examples differ


def literal_scores(values, is_member, target, is_shared):
    """Attack one model example by example, as in the paper's Algorithm 1."""
    rows = [row for row in range(len(values)) if row != target]
    columns = range(values.shape[1])
    groups = [
        [[values[r, n] for r in rows if is_member[r, n] == kind] for n in columns]
        for kind in (True, False)
    ]
    deviations = []
    for group in groups:
        squares = [sum((v - np.mean(some)) ** 2 for v in some) for some in group]
        freedom = [len(some) - 1 for some in group]
        each = [math.sqrt(s / f) for s, f in zip(squares, freedom, strict=True)]
        shared = math.sqrt(sum(squares) / sum(freedom))
        deviations.append([shared] * len(group) if is_shared else each)
    scores = []
    for n in columns:
        x, inside, outside = values[target, n], groups[0][n], groups[1][n]
        ratio = norm.pdf(x, np.mean(inside), deviations[0][n]) / norm.pdf(
            x, np.mean(outside), deviations[1][n]
        )
        chance = norm.cdf(x, np.mean(outside), deviations[1][n])
        scores.append((math.log(ratio), chance))
    return np.array(scores).T


@pytest.mark.parametrize(
    ("models", "is_shared"), [(8, True), (lira.FEW, True), (lira.FEW + 1, False)]
)
def test_each_model_is_attacked_with_all_the_others_and_never_with_itself(models, is_shared):
    rng, size = np.random.default_rng(4), 6
    is_member = np.stack([rng.permutation(models) < models // 2 for _ in range(size)], axis=1)
    values = rng.normal(is_member, rng.uniform(0.5, 2, size))
    scores = lira.attack(values, is_member)
    for target in (0, models - 1):
        ratios, chances = literal_scores(values, is_member, target, is_shared)
        np.testing.assert_allclose(scores["online"][target], ratios, rtol=1e-6)
        np.testing.assert_allclose(norm.cdf(scores["offline"][target]), chances)
        np.testing.assert_array_equal(scores["threshold"][target], values[target])


def test_an_example_that_all_shadows_held_is_left_out_of_every_attack_alike():
    rng = np.random.default_rng(5)
    is_member = np.stack([rng.permutation(6) < 3 for _ in range(5)], axis=1)
    is_member[:, 2] = np.arange(6) != 1  # of target 1's shadows all held it
    values = rng.normal(size=(6, 5))
    scores = lira.attack(values, is_member)
    for some in scores.values():
        assert np.isnan(some[1, 2])
        assert np.isfinite(some[1, [0, 1, 3, 4]]).all() and np.isfinite(some[0]).all()
    assert roc(scores["online"], is_member).num_nonmembers == (~is_member).sum() - 1


def test_with_too_few_models_there_is_no_attack():
    with pytest.raises(ConfigError, match="shadows >= 4; got shadows=3"):
        lira.attack(np.zeros((3, 2)), np.ones((3, 2), dtype=bool))


# The curve


def test_the_curve_reads_off_what_a_count_says():
    scores = np.array([9.0, 8.0, 7.0, 6.0, 5.0, 4.0, np.nan])
    is_member = np.array([True, True, False, True, False, False, True])
    curve = roc(scores, is_member)
    assert curve.num_nonmembers == 3
    assert curve.tpr_at(0.0) == pytest.approx(2 / 3)
    assert curve.tpr_at(0.33) == pytest.approx(2 / 3)  # nothing between zero and a third
    assert curve.tpr_at(1 / 3) == 1
    assert curve.auc == pytest.approx(8 / 9)  # of nine pairs one is in the wrong order
    assert curve.balanced_accuracy == pytest.approx((1 + 2 / 3) / 2)


# Shadows


def test_a_shadow_holds_half_of_the_examples_and_every_seed_another_half():
    masks = torch.stack([half(51, seed) for seed in range(400)])
    assert (masks.sum(1) == 25).all()
    assert len({tuple(mask.tolist()) for mask in masks}) == 400
    share = masks.double().mean(0)
    # Five standard errors of a coin, for the furthest of 51.
    assert (share - 25 / 51).abs().max() < 5 * 0.5 / 400**0.5


def test_a_shadow_trains_on_its_half_and_is_accounted_for_it(tmp_path):
    words = [*DIGITS, "method=nonprivate", "attack=shadow", "seed=3"]
    words += ["task.dataset_size=201", "task.test_size=1596", "batch_size=50", "epochs=30"]
    directory = execute(tmp_path, *words)
    _, _, privacy = of(directory)
    assert (privacy["dataset_size"], privacy["q"]) == (100, 0.5)
    assert any("a shadow" in sentence for sentence in privacy["deviations"])
    with np.load(directory / "scores.npz") as arrays:
        is_member, sure = arrays["is_member"], arrays["confidences"]
    np.testing.assert_array_equal(is_member, half(201, 3).numpy())
    assert sure.shape == (201,) and sure.dtype == np.float64
    # Had it been trained on other examples, its members would be told apart by chance.
    curve = roc(sure, is_member)
    assert curve.auc > 0.5 + 3 * math.sqrt(1 / 12 * (1 / 100 + 1 / 101))


# The script


def runs_of(results):
    return list((results / "embedded" / "runs").iterdir())


def write(directory, result):
    (directory / "result.json").write_text(json.dumps(result))


def without(directories, entry):
    """Take an entry out of some results; give what is left, by directory."""
    left = {}
    for directory in directories:
        result = json.loads((directory / "result.json").read_text())
        left[directory] = {key: value for key, value in result.items() if key != entry}
        write(directory, left[directory])
    return left


@pytest.mark.long
def test_the_script_attacks_every_method_and_writes_its_files(tmp_path, capsys):
    words = [*DIGITS, "methods=nonprivate,dpsgd", "shadows=4", "eps=3", "epochs=1"]
    words += [f"results={tmp_path}", "name=few"]
    assert script.main(words) == 0
    paths = capsys.readouterr().out.splitlines()[-4:]
    assert [path.rpartition("/")[2] for path in paths] == [
        f"few.{suffix}" for suffix in ("md", "csv", "png", "svg")
    ]
    folder = tmp_path / "embedded" / "lira"
    text = (folder / "few.md").read_text()
    assert text.count("| nonprivate (not private) |") == text.count("| dpsgd (ε = 3) |") == 3
    assert "719 non-members: its smallest false-positive rate but 0 is 0.14%" in text
    assert "Left out" in text  # three shadows agree on every fourth example
    rows = (folder / "few.csv").read_text().splitlines()
    assert len(rows) == 1 + 2 * 3 * POINTS
    assert (folder / "few.png").stat().st_size > 10_000
    runs = [of(path) for path in (tmp_path / "embedded" / "runs").iterdir()]
    assert len(runs) == 8
    assert {privacy["target_epsilon"] for _, _, privacy in runs} == {None, 3.0}

    # What is looked up is held to the bytes here, before anything is trained beside it.
    assert script.main(words) == 0 and "note" not in capsys.readouterr().err
    of_data = without(runs_of(tmp_path), "data_fingerprint")
    assert script.main(words) == 0
    assert "note: 8 finished runs: the record does not say of which" in capsys.readouterr().err
    last = max(of_data)
    write(last, {**of_data[last], "data_fingerprint": "0" * 64})
    assert script.main(with_words(words, ["shadows=5"])) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: Expected the bytes that the finished run {last} was made of")
    assert "the data of digits were 000000000000… and are" in line and "results=FOLDER" in line
    assert len(runs_of(tmp_path)) == 8


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "label", "remark"),
    [
        (["clip=false"], "dpsgd (not private)", "; no clipping: no privacy."),
        long(["sampling=shuffle"], "dpsgd (ε = 3)", "paper-compatible, not a guarantee."),
        long(
            ["methods=dp_zo", "method.noise=laplace", "privacy.budget=per_step", "epochs=1"],
            "dp_zo (ε = 6)",
            "",
        ),
    ],
)
def test_an_attacked_method_is_named_by_what_is_certified(words, label, remark, tmp_path):
    few = ["methods=dpsgd", "model=linear", "epochs=0.2", "shadows=4", "eps=3"]
    words = with_words(few, words)
    assert script.main([*DIGITS, *words, f"results={tmp_path}", "name=few"]) == 0
    text = (tmp_path / "embedded" / "lira" / "few.md").read_text()
    assert text.count(f"| {label} |") == 3
    assert f"- {label}: " in text and remark in text


@pytest.mark.long
def test_an_attack_is_not_written_over_by_one_on_other_models(tmp_path, capsys):
    words = [*DIGITS, "model=linear", "epochs=0.2", f"results={tmp_path}"]
    words += ["methods=dpsgd", "shadows=4"]
    elsewhere = {**asked.compose(asked.parse([*words, "eps=3"]), "dpsgd"), "seed": 1}
    began = threading.Event()

    def hold():
        with records.held(tmp_path, elsewhere):  # as another process that is executing it does
            began.set()
            time.sleep(1)

    with ThreadPoolExecutor() as pool:
        pool.submit(hold)
        assert began.wait(10) and script.main([*words, "eps=3"]) == 0
    page = tmp_path / "embedded" / "lira" / "digits.md"
    before = page.read_text()
    capsys.readouterr()
    for others in (["eps=5"], ["eps=3", "shadows=5"], ["eps=3", "batch_size=9"]):
        assert script.main(with_words(words, others)) == 2
        line = capsys.readouterr().err
        assert line.startswith("error: Expected name= or results=") and str(page) in line
        assert line.count("\n") == 1 and len(runs_of(tmp_path)) == 4
    lacking = with_words(words, ["methods=nonprivate", "eps=3"])  # dpsgd's numbers
    assert script.main(lacking) == 2
    assert page.read_text() == before
    request = asked.parse(with_words(words, ["methods=nonprivate,dpsgd", "eps=3"]))  # has all
    configs = [asked.compose(request, method) for method in request.methods]
    assert asked.is_of(page, request, configs) and not asked.is_of(page, request, configs[:1])
    assert asked.files(asked.parse([*words, "name=other"]), configs[0])[0].name == "other.md"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("shadows=3", "whole number >= 4; got 'shadows=3'"),
        ("shadows=many", "whole number >= 4; got 'shadows=many'"),
        ("digits", "WORD=VALUE; got 'digits'"),
        ("methods=rpg", "Did you mean rgp?"),
        ("name=../x", "Expected name to name a file, without a folder; got 'name=../x'"),
        ("name=a/b", "without a folder"),
        ("name=", "Expected name to name a file"),
        ("name=..", "Expected name to name a file"),
        ("name=" + "é" * 101, "Expected name to have at most 200 bytes; got 202."),
    ],
)
def test_mistakes_are_one_line(word, message, capsys):
    assert script.main([*DIGITS, word]) == 2
    assert message in capsys.readouterr().err


def test_a_model_that_a_later_method_cannot_train_costs_no_run_of_the_first(tmp_path, capsys):
    words = [*DIGITS, "model=linear", "eps=8", f"results={tmp_path}"]  # nonprivate and rgp
    assert script.main(words) == 2
    printed = capsys.readouterr().err
    assert "weight matrices besides the classifier" in printed and "step" not in printed
    assert not list(tmp_path.iterdir())


def test_a_later_method_that_cannot_be_attacked_costs_no_run_of_the_first(tmp_path, capsys):
    words = [*DIGITS, "methods=dpsgd,pate", "model=linear", "eps=8", f"results={tmp_path}"]
    assert script.main(words) == 2
    assert "Expected no attack or audit with method=pate" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_budget_is_for_methods_with_noise():
    request = asked.parse([*DIGITS, "methods=nonprivate,rgp", "eps=2"])
    assert asked.compose(request, "rgp")["privacy"]["eps"] == 2
    assert asked.compose(request, "nonprivate") == cli.compose(
        [*DIGITS, "method=nonprivate", "attack=shadow"]
    )


def test_a_budget_that_no_method_spends_is_told_of(capsys):
    words = [*DIGITS, "model=linear", "methods=powersgd", "eps=8", "privacy.delta=1e-5"]
    assert script.main(words) == 2  # a linear model has no matrix to project
    printed = capsys.readouterr().err
    assert "warning: eps=8 has no effect: methods=powersgd has no noise" in printed
    assert "warning: privacy.delta=1e-5 has no effect with noise=false" in printed
    assert script.main([*DIGITS, "model=linear", "methods=powersgd,rgp", "eps=9"]) == 2
    assert "eps=9 has no effect" not in capsys.readouterr().err


def test_make_lira_makes_the_committed_page_anew():
    """It is of these settings, and would be refused as another's if a default moved."""
    request = asked.parse(["profile=embedded", "task=digits"])
    configs = [asked.compose(request, method) for method in request.methods]
    page = asked.files(request, configs[0])[0]
    assert asked.is_of(cli.CONF.parent / page, request, configs)
    told = (cli.CONF.parent / "docs" / "privacy" / "audits.md").read_text(encoding="utf-8")
    rows = re.findall(
        r"^\| \w+ \(.*?\) \| (\S+) ± \S+ \| LiRA, (\w+) \| (\S+) ",
        (cli.CONF.parent / page).read_text(encoding="utf-8"),
        re.M,
    )
    plain, plain_offline, rgp, rgp_offline = (area for _, _, area in rows)
    assert f"is {rgp_offline} for RGP at ε = 8 and {plain_offline} without privacy" in told
    assert f"(online {rgp} and {plain}). These models get {rows[2][0]} and {rows[0][0]} %" in told
