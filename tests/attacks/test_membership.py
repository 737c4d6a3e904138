"""The attack by a threshold on the loss: against closed forms, literal searches and real runs."""

import numpy as np
import pytest
import torch
from scipy.stats import norm

from dpexp.attacks.membership import attack, best_threshold, logits_of
from dpexp.cli.lookup import outcome
from dpexp.data import Examples
from dpexp.training.judging import EVAL_BATCH
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import execute, of, one_thread, with_words  # noqa: F401
from tests.texts import LONGEST, texts, tiny

CPU = torch.device("cpu")
FEW = ["profile=embedded", "attack=loss_threshold", "method=nonprivate", "eval_every=100"]
FEW += ["task.dataset_size=300", "batch_size=50", "epochs=40"]
"""So few examples that a network without privacy knows them by heart."""


# The threshold


def test_losses_that_do_not_overlap_are_told_apart_without_fail():
    rng = np.random.default_rng(0)
    found = attack(rng.uniform(0, 1, 50), rng.uniform(2, 3, 50))
    assert found.percent == 100 and found.standard_error == 0
    assert 1 < found.threshold < 2
    assert (found.found_on, found.scored_on) == (50, 50)


def test_losses_of_one_distribution_are_told_apart_by_chance_alone():
    rng = np.random.default_rng(1)
    found = attack(rng.exponential(size=4000), rng.exponential(size=4000))
    assert abs(found.percent - 50) < 4 * 100 * 0.5 / 4000**0.5  # four standard errors of a coin


def test_of_two_shifted_gaussians_the_success_is_the_closed_form():
    """The best threshold lies half way, and is right with probability Phi(shift / 2)."""
    rng, shift = np.random.default_rng(2), 1.5
    found = attack(rng.normal(0, 1, 40_000), rng.normal(shift, 1, 40_000))
    # The success is flat at the best threshold, whose own error so is of no account.
    assert abs(found.percent - 100 * norm.cdf(shift / 2)) < 4 * found.standard_error
    assert found.standard_error < 0.3


def test_the_threshold_is_the_best_of_all_by_literal_search():
    """On small whole numbers, so that members and others have losses in common."""
    rng = np.random.default_rng(3)
    for _ in range(200):
        members, others = rng.integers(0, 6, (2, 7)).astype(float)
        candidates = [-np.inf, *np.unique([members, others])]

        def right(threshold, members=members, others=others):
            return (members <= threshold).sum() + (others > threshold).sum()

        assert right(best_threshold(members, others)) == max(map(right, candidates))


def test_the_threshold_never_sees_the_half_that_it_is_scored_on():
    rng = np.random.default_rng(4)
    members, others = rng.normal(0, 1, 101), rng.normal(1, 1, 101)
    threshold = attack(members, others).threshold
    assert threshold == best_threshold(members[:50], others[:50])
    scored = [losses[50:].copy() for losses in (members, others)]
    members[50:], others[50:] = scored[1], scored[0]
    swapped = attack(members, others)
    assert swapped.threshold == threshold
    told = np.mean(scored[1] <= threshold), np.mean(scored[0] > threshold)
    assert swapped.percent == pytest.approx(50 * sum(told))


def test_the_standard_error_is_the_spread_over_redrawn_examples():
    rng, size, repeats = np.random.default_rng(5), 100, 1000
    finding = rng.normal(0, 1, size), rng.normal(1, 1, size)
    draws = [
        attack(*(np.append(f, rng.normal(m, 1, size)) for m, f in enumerate(finding)))
        for _ in range(repeats)
    ]
    spread = np.std([found.percent for found in draws])
    # A standard deviation of so many draws is off by 1 / sqrt(2 repeats) = 2.2%.
    assert spread == pytest.approx(np.mean([f.standard_error for f in draws]), rel=0.09)


# The losses


def test_logits_come_in_the_order_of_the_texts_and_in_eval_mode():
    gen = torch.Generator().manual_seed(6)
    lengths = torch.randint(3, LONGEST + 1, (40,), generator=gen).tolist()
    some = texts("bert", lengths * 8)
    pieces = list(some.micro_batches(torch.arange(len(some)), EVAL_BATCH))
    assert len(pieces) > 1 and not torch.cat(pieces).equal(torch.arange(len(some)))
    model = tiny(dropout=0.5).train()
    logits = logits_of(model, some, CPU)
    assert model.training
    model.eval()
    with torch.no_grad():
        literal = torch.cat([model(some.batch(torch.tensor([n])).inputs) for n in range(40)])
    torch.testing.assert_close(logits[:40], literal)


def test_a_model_that_diverged_is_not_attacked():
    model = torch.nn.Linear(2, 3)
    torch.nn.init.constant_(model.weight, torch.nan)
    with pytest.raises(ConfigError, match="diverged"):
        logits_of(model, Examples(torch.ones(4, 2), torch.zeros(4, dtype=torch.int64)), CPU)


# Whole runs


IMAGES = ["task=digits", "task.test_size=1497", "model=cnn", "epochs=80"]
TEXTS = ["task=entailment", "task.test_size=400"]


@pytest.mark.parametrize("words", [IMAGES, long(TEXTS)], ids=["images", "texts"])
def test_a_model_that_knows_its_examples_by_heart_gives_them_away(words, tmp_path):
    directory = execute(tmp_path, *with_words(FEW, words))
    _, result, privacy = of(directory)
    assert (result["attack_found_on"], result["attack_scored_on"]) == (300, 300)
    assert result["attack_success"] > 50 + 3 * result["attack_success_se"]
    assert f"attack: {result['attack_success']:.1f} % right" in outcome(directory)
    assert any("attacked" in words for words in privacy["deviations"])
    assert privacy["dataset_size"] == 300

    with np.load(directory / "scores.npz") as arrays:
        members, others = arrays["member_losses"], arrays["other_losses"]
    assert members.shape == others.shape == (300,)
    told = (members[150:] <= result["attack_threshold"]).sum()
    told += (others[150:] > result["attack_threshold"]).sum()
    assert result["attack_success"] == pytest.approx(told / 3)
    assert members.mean() < others.mean()


def test_the_attack_changes_nothing_in_the_run(tmp_path):
    words = ["profile=embedded", "method=nonprivate", "task=digits", "epochs=1"]
    attacked = of(execute(tmp_path, *words, "attack=loss_threshold"))
    plain = of(execute(tmp_path, *words))
    assert attacked[0][-1]["train_loss"] == plain[0][-1]["train_loss"]
    assert attacked[1]["test_accuracy"] == plain[1]["test_accuracy"]
    assert attacked[1]["attack_scored_on"] == 360  # the whole test set, halved, and as many


@pytest.mark.parametrize("attack", ["loss_threshold", "shadow"])
def test_a_regression_has_no_classes_to_be_sure_of(attack, tmp_path):
    words = ["profile=embedded", "method=nonprivate", "task=regression", f"attack={attack}"]
    with pytest.raises(ConfigError, match=f"task=regression. Leave attack={attack} out"):
        execute(tmp_path, *words)
