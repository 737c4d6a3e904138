"""Certificates recomputed from configs: closed forms, runs of every kind, and every forgery."""

import copy
import json
import math
from dataclasses import replace

import pytest
import yaml
from scipy.optimize import brentq
from scipy.stats import norm

from dpexp import cli, records
from dpexp.privacy import certificate
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.calibration import whole_batch
from dpexp.privacy.pld import Part, gaussian_epsilon, laplace_epsilon
from dpexp.privacy.verification import epsilons
from dpexp.privacy.verification.files import verify_files
from dpexp.privacy.verification.statements import due_words
from dpexp.types import Release
from tests.contract.cases import case

# The accountant against closed forms


def gaussian_delta(log_odds, mu):
    """Return H(N(mu, 1) || N(0, 1)) at e^log_odds (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(mu / 2 - log_odds / mu) - math.exp(log_odds) * norm.cdf(-mu / 2 - log_odds / mu)


@pytest.mark.parametrize("delta", [1e-6, 1e-3])
@pytest.mark.parametrize("mus", [(0.5,), (1.0, 2.0), (3.0, 0.2, 0.7)])
def test_whole_batches_cost_what_one_gaussian_does(mus, delta):
    """Gaussian mechanisms compose to one, whose delta has a closed form."""
    parts = tuple(Part(1.0, math.sqrt(2) / mu, 2) for mu in mus)  # two of each, mu / sqrt 2 apiece
    epsilon = gaussian_epsilon(parts, delta, target=5.0)
    assert gaussian_delta(epsilon, math.hypot(*mus)) == pytest.approx(delta, rel=0.01)


@pytest.mark.parametrize("q", [0.01, 0.3])
@pytest.mark.parametrize("sigma", [0.4, 2.0])
def test_one_sampled_step_costs_what_its_mixture_does(q, sigma):
    """(1 - q) N(0) + q N(1) against N(0): removing is dearer than adding."""
    delta = 1e-3 * q

    def excess(epsilon):
        inner = math.log1p(math.expm1(epsilon) / q)
        return q * gaussian_delta(inner, 1 / sigma) - delta

    expected = brentq(excess, 1e-9, 50, xtol=1e-12)
    epsilon = gaussian_epsilon((Part(q, sigma, 1),), delta, target=expected)
    assert epsilon == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("q", [0.01, 0.4, 1.0])
@pytest.mark.parametrize("sigma", [0.02, 1.0, 50.0, 1e6])
def test_laplace_steps_add_up(q, sigma):
    expected = 7 * math.log1p(q * math.expm1(1 / sigma))
    assert laplace_epsilon(Part(q, sigma, 7), expected) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("size", "batch", "steps", "delta", "target"),
    [
        (67_349, 2000, 674, 1e-5, 3.3),  # lsg, SST-2
        (50_000, 1000, 10_000, 1e-5, 2.0),  # rgp, CIFAR10
        (73_257, 1000, 14_652, 1e-6, 8.0),  # rgp, SVHN
        (1437, 64, 1, 1e-4, 1.0),
    ],
)
def test_noise_that_prv_calibrates_is_enough_by_a_hair(size, batch, steps, delta, target):
    """What the tolerance of one percent is made of: 0.1 to 0.5 % are left, of one step less."""
    sigma, by = calibrate(batch / size, steps, delta, target)
    epsilon = gaussian_epsilon((Part(batch / size, sigma, steps),), delta, target)
    assert by == "prv"
    assert 0.995 * target < epsilon < (0.999 if steps > 1 else 1) * target


# Runs of every kind

SMALL = ["task=digits", "profile=embedded", "device=cpu", "epochs=0.2", "noise=true", "clip=true"]
SMALL += ["eps=3"]
DEPARTURES = {
    "per step": ["method=compressive", "privacy.budget=per_step", "eps=0.5"],
    "one example's bound": [
        *("method=compressive", "method.psi=none", "method.kappa=null", "method.bound=example"),
    ],
    "where PRV is loose": ["method=dpsgd", "model=linear", "eps=0.12", "batch_size=2"]
    + ["epochs=0.01"],
    "shuffled": ["method=dpsgd", "sampling=shuffle"],
    "secret": ["method=dpsgd", "noise=secret"],
    "no clipping": ["method=dpsgd", "clip=false"],
    "no noise": ["method=rgp", "noise=false", "eps=null"],
    "no noise on votes": ["method=pate", *case("pate").brief, "noise=false", "eps=null"],
    "a shadow": ["method=dpsgd", "attack=shadow"],
}


def record_of(tmp_path, *words):
    return records.read(cli.execute(cli.compose([*SMALL, *words, f"results={tmp_path}"])))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("words", DEPARTURES.values(), ids=DEPARTURES)
def test_a_run_that_departs_from_the_rule_holds_as_what_it_is(tmp_path, words):
    record = record_of(tmp_path, *words)
    found = verify_files(record.config, record.result, record.privacy)
    assert found.findings == ()
    assert (found.epsilon is None) == any("no privacy" in w for w in record.privacy["deviations"])


# Forgeries


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    words = {
        "dpsgd": ["method=dpsgd", "model=linear", "epochs=1"],
        "gep": ["method=gep", *case("gep").few],
    }
    words["compressive"] = ["method=compressive", *case("compressive").brief]
    words["pate"] = ["method=pate", *case("pate").brief]
    words["a shadow"] = ["method=dpsgd", "model=linear", "attack=shadow"]
    words["none"] = ["method=dpsgd", "model=linear", "noise=false", "eps=null"]
    return {name: record_of(root, *some) for name, some in words.items()}


def forged(record, file, change):
    """Apply a change, a dict to merge or a function of the file's content."""
    files = {"config": record.config, "result": record.result, "privacy": record.privacy}
    files = copy.deepcopy(files)
    if callable(change):
        change(files[file])
    else:
        files[file] |= change
    return verify_files(**files).findings


def lower_noise(privacy):
    """Claim the same epsilon at half the noise, consistently."""
    privacy["noise_multiplier"] /= 2
    privacy["effective_noise_multiplier"] /= 2


def more_noise(privacy):
    """Claim ten times the noise that the run had, at the same epsilon."""
    privacy["noise_multiplier"] *= 10
    privacy["effective_noise_multiplier"] *= 10
    privacy["epsilon"].pop("rdp", None)


def a_little_less_noise(privacy):
    privacy["noise_multiplier"] *= 0.995
    privacy["effective_noise_multiplier"] *= 0.995


def cheaper(privacy):
    privacy["epsilon"]["prv"] *= 0.9


def vote_noise(privacy):
    for release in privacy["releases"]:
        release["noise_std"] /= 2
    privacy["noise_multiplier"] /= 2


FORGERIES = {
    "less noise": ("dpsgd", "privacy", lower_noise, "above the target 3"),
    "half a percent less noise": (
        *("dpsgd", "privacy", a_little_less_noise),
        "epsilon: recomputed",
    ),
    "ten times the noise": ("dpsgd", "privacy", more_noise, "the stated noise gives"),
    "an epsilon too low": ("dpsgd", "privacy", cheaper, "prv states"),
    "a looser delta": ("dpsgd", "privacy", {"delta": 1e-2}, "delta: expected 0.0001"),
    "lost steps unsaid": ("dpsgd", "privacy", {"lost_steps": 1}, "lost to a kill"),
    "more lost than taken": (
        "dpsgd",
        "privacy",
        {"lost_steps": 9999},
        "lost_steps: expected from 0",
    ),
    "half a step lost": (
        *("dpsgd", "privacy"),
        {"lost_steps": 0.5, "deviations": [certificate.LOST]},
        "a whole number; got 0.5",
    ),
    "hardly any noise": (
        *("dpsgd", "privacy"),
        lambda p: p.update(noise_multiplier=1e-4, effective_noise_multiplier=1e-4),
        "recomputed inf, above the target 3",
    ),
    "no calibration": ("dpsgd", "privacy", {"calibrated_by": "none"}, "expected prv or rdp"),
    "names twice": (
        *("dpsgd", "privacy"),
        lambda p: p["frozen"].update({"head.weight": 640}),
        "both name head.weight",
    ),
    "replayable, by number": ("dpsgd", "privacy", {"replayable": 1}, "replayable: expected True"),
    "a deviation too many": (
        *("dpsgd", "privacy"),
        {"deviations": ["no noise: no privacy"]},
        "'no noise: no privacy' is not so",
    ),
    "half a file": ("dpsgd", "privacy", lambda p: p.pop("epsilon"), "malformed or incomplete"),
    "no number": ("dpsgd", "privacy", {"noise_multiplier": None}, "malformed or incomplete"),
    "a config of more epochs": ("dpsgd", "config", {"epochs": 7}, "steps: expected"),
    "a config of a larger batch": ("dpsgd", "config", {"batch_size": 700}, "q: expected"),
    "a config that shuffles": (
        *("dpsgd", "config"),
        lambda c: c["privacy"].update(sampling="shuffle"),
        "paper-compatible, not a guarantee' is missing",
    ),
    "a config of an attack": ("dpsgd", "config", {"attack": {"name": "x"}}, "nothing is said"),
    "an attack that other words hide": (
        *("a shadow", "privacy", {"deviations": ["something else"]}),
        "nothing is said",
    ),
    "the pair as one": ("gep", "privacy", lambda p: p["releases"].pop(), "2 leave at a step"),
    "the pair's root two": (
        *("gep", "privacy"),
        lambda p: p.update(noise_multiplier=p["noise_multiplier"] / math.sqrt(2)),
        "above the target 3",
    ),
    "a residual clipped elsewhere": (
        *("gep", "config"),
        lambda c: c["method"].update(residual_clip=99.0),
        "release residual, clip_norm: expected 99.0",
    ),
    "other public data": (
        *("gep", "privacy"),
        lambda p: p["public"].update(name="imagenet32"),
        "public name: expected shapes",
    ),
    "a smaller l1 sensitivity": (
        *("compressive", "privacy"),
        lambda p: p["releases"][0].update(sensitivity=1.0),
        "sensitivity: expected",
    ),
    "less Laplace noise": ("compressive", "privacy", lower_noise, "above the target 3"),
    "more entries kept": (
        *("compressive", "config"),
        lambda c: c["method"].update(kappa=50),
        "above the target 3",
    ),
    "less noise on votes": ("pate", "privacy", vote_noise, "above the target 3"),
    "more answers than are paid for": (
        *("pate", "privacy"),
        lambda p: p.update(answers=p["releases"][1]["at_most"] + 1),
        "were made, of at most",
    ),
    "answers without noise": (
        *("pate", "privacy"),
        lambda p: p["releases"][1].update(drawn=0),
        "release votes, drawn",
    ),
    "more examples than the data have": (
        *("dpsgd", "config"),
        lambda c: c["task"].update(dataset_size=14_370),
        "config.yaml task.dataset_size, N: expected 1437",
    ),
    "an epsilon of nothing": ("none", "privacy", {"epsilon": {"prv": 3.0}}, "there is none"),
    "a budget of nothing": ("none", "privacy", {"target_epsilon": 3.0}, "target_epsilon"),
    "noise of nothing": ("none", "privacy", {"noise_multiplier": 1.0}, "noise_multiplier"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("which", "file", "change", "said"), FORGERIES.values(), ids=FORGERIES)
def test_a_change_in_any_file_is_found(runs, which, file, change, said):
    record = runs[which]
    assert verify_files(record.config, record.result, record.privacy).findings == ()
    findings = forged(record, file, change)
    assert any(said in finding for finding in findings), findings
    assert all("\n" not in finding for finding in findings)


COMPARED = {
    "dpsgd": ("steps", "epochs"),
    "pate": ("asked", "answered"),  # the others with metrics.jsonl
}
"""Entries of result.json that are compared here beside those of every run."""

ELSEWHERE = {"run", "noise_multiplier"}
"""Those of a certificate that are compared with files' hashes, or by the epsilon that they give."""

BY = {"steps": "drawn", "answers": "drawn"}
"""How many votes were taken is compared with how often noise was drawn."""


@pytest.mark.parametrize("kind", COMPARED)
def test_every_number_and_word_is_compared(runs, kind):
    record = runs[kind]
    names = ("method", "model", "task", "profile", "seed", "delta", "eps", *COMPARED[kind])
    places = [("result", None, {name: record.result[name] for name in names})]
    places += [("privacy", None, record.privacy)]
    places += [("privacy", *each) for each in enumerate(record.privacy["releases"])]
    unknown = {"dimension"} if kind == "pate" else set()  # said to be unchecked
    for file, at, entries in places:
        for name in entries.keys() - ELSEWHERE - unknown:
            if type(value := entries[name]) not in (int, float, str):
                continue
            other = f"{value}?" if isinstance(value, str) else value + 1

            def change(content, at=at, name=name, other=other):
                (content if at is None else content["releases"][at])[name] = other

            findings = forged(record, file, change)
            said = BY.get(name, name) if kind == "pate" else name
            assert any(f"{said}: expected" in each for each in findings), (file, at, name, findings)


@pytest.mark.filterwarnings("ignore")
def test_a_certificate_of_another_run_is_found(runs):
    for name, record in runs.items():
        for other_name, other in runs.items():
            findings = verify_files(record.config, record.result, other.privacy).findings
            assert bool(findings) == (name != other_name)


def test_a_method_not_known_here_is_taken_to_release_one_clipped_vector(runs):
    record = runs["dpsgd"]
    renamed = {"_target_": "elsewhere.Novel"}
    assert forged(record, "config", lambda c: c["method"].update(renamed)) == ()
    twice = copy.deepcopy(record.privacy)
    twice["releases"] *= 2
    config = yaml.safe_load(json.dumps(record.config))
    config["method"] |= renamed
    findings = verify_files(config, record.result, twice).findings
    assert any("1 leave at a step; privacy.json names 2" in finding for finding in findings)


def test_an_epsilon_in_a_finding_is_rounded_up():
    """Rounded to nearest it would be the target that it is above."""
    (finding,) = epsilons.differences({"prv": 3.0}, "prv", 3.0, 3.000004, 3.0)
    assert finding == "epsilon: recomputed 3.00001, above the target 3"


@pytest.mark.parametrize("size", [48, 49, 50])
def test_a_delta_of_one_over_n_is_large_for_runs_and_for_verification(size):
    """49 times 1 / 49 is below 1 in floating point."""
    run = whole_batch(size, [Release("gradient", 1, 1.0)], 1.0)
    privacy = {"noise": True, "clip": True, "sampling": "poisson"}
    config = {"privacy": privacy, "task": {}, "model": {}, "method": {}}
    for delta in (1 / size, math.nextafter(1 / size, 0)):
        said = certificate.LARGE_DELTA in replace(run, delta=delta).deviations
        stated = {"delta": delta, "dataset_size": size, "calibrated_by": "prv"}
        due = due_words(config, stated, False)[certificate.LARGE_DELTA]
        assert said == due == (delta == 1 / size)


STATED = [  # beside 2.9 for a target of 3
    ({"prv": 2.998, "rdp": 3.4}, ""),
    ({"prv": 2.998, "rdp": 2.8}, "rdp states 2.8; recomputed 2.9"),
    ({"prv": 2.993, "rdp": 3.4}, "prv states 2.993; calibration would give 2.994 to 3"),
    ({"prv": 2.998, "rdp": True}, "rdp states True, which nothing here computes"),
    ({"prv": 2.998, "gdp": 2.9}, "gdp states 2.9, which nothing here computes"),
    ({"prv": 2.998, "pld": 2.9001}, "pld states 2.9001; recomputed 2.9"),
]


@pytest.mark.parametrize(("stated", "said"), STATED, ids=str)
def test_every_stated_epsilon_is_held_to_the_rule_of_its_accountant(stated, said):
    findings = epsilons.differences(stated, "prv", 3.0, 2.9, None)
    assert list(findings) == [f"epsilon: {said}"] * bool(said)


def test_an_epsilon_above_its_target_by_rounding_alone_holds():
    assert not [*epsilons.differences({"prv": 3.0}, "prv", 3.0, 3.000001, 3.0)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        *({"eps": 0.5}, {"eps": None}, {"noise": "secret"}, {"clip": False}),
        *({"sampling": "shuffle"}, {"delta": 1e-9}),
    ],
    ids=str,
)
def test_a_setting_that_stands_in_a_config_twice_is_said_where_the_two_differ(runs, change):
    """Only the one under privacy is read; the other, as typed, meets the eye first."""
    ((name, value),) = change.items()
    for kind, record in runs.items():
        config = copy.deepcopy(record.config)
        (config["task"] if name == "delta" else config).update(change)
        found, before = (
            verify_files(each, record.result, record.privacy) for each in (config, record.config)
        )
        said = [words for words in found.unchecked if "which decides nothing" in words]
        if value == record.config["privacy"][name]:
            assert (kind, name, said) == ("none", "eps", [])
            continue
        assert said == [
            f"config.yaml {name}: {value}, which decides nothing; privacy.{name} does, and is "
            f"{record.config['privacy'][name]}"
        ]
        assert not any("decides nothing" in words for words in before.unchecked)
