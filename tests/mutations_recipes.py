"""Planted breaks of later methods and recipes, and slips of whoever adds to dpexp."""

from __future__ import annotations

import math

from tests import breaks_recipes, breaks_slips
from tests.planted import STEPS, Break

SOUND = (
    "tests/contract/test_methods.py::test_one_example_moves_a_release_by_no_more_than_is_declared"
    "_and_nothing_else_is_known"
)
ADAPTIVE = (
    "tests/test_adaptive.py::test_no_example_moves_a_release_by_more_than_is_declared"
    "_and_nothing_else_is_known"
)
EQUAL = "tests/test_twins.py::test_after_equal_releases_all_is_equal_but_the_declared_diagnostics"
LAST = (
    f"{EQUAL}[rgp model=cnn model.channels=[4,8] model.kernel=3 method.rank=2 clipping=per_layer "
    "averaging=last denoise=doppler]"
)
LOSS = "tests/contract/test_tasks.py::test_examples_decide_a_fingerprint_and_nothing_that_trains"

RECIPES = {
    "laplace-ignores-directions": Break(
        breaks_recipes.laplace_ignores_directions,
        f"{SOUND}[4-dp_zo method.noise=laplace]",
        r"one example moves release differences by 2 of",
        16,
        noise="laplace",
    ),
    "differences-not-clipped": Break(
        breaks_recipes.differences_not_clipped,
        f"{SOUND}[4-dp_zo]",
        r"one example moves release differences by [\din]",
        math.inf,
    ),
    "moments-without-noise": Break(
        breaks_recipes.moments_without_noise,
        f"{SOUND}[4-dp_grape]",
        r"the gradient depends on the examples",
        math.inf,
    ),
    "projection-without-noise": Break(
        breaks_recipes.projection_without_noise,
        f"{SOUND}[4-dp_grape]",
        r"depends on the examples beyond",
        math.inf,
    ),
    "head-out-of-the-norm": Break(
        breaks_recipes.head_out_of_the_norm,
        f"{SOUND}[4-dp_lora]",
        r"one example moves release gradient by \d",
        1.107,
    ),
    "biases-out-of-the-norm": Break(
        breaks_recipes.biases_out_of_the_norm,
        f"{SOUND}[4-dp_lora]",
        r"one example moves release gradient by 1\.\d+ .*0\.001 of the clip norm",
        1.155,
    ),
    "clip-moves-alone": Break(
        breaks_recipes.clip_moves_alone,
        f"{ADAPTIVE}[1.0]",
        r"one example moves release gradient by 1\.1",
        10,
    ),
    "noise-moves-alone": Break(
        breaks_recipes.noise_moves_alone,
        f"{ADAPTIVE}[100.0]",
        r"one example moves release gradient by 1\.1",
        10,
    ),
    "last-iterates-without-noise": Break(
        breaks_recipes.last_iterates_without_noise,
        LAST,
        r"assert 'steps\.\d\.checkpoint\.averaged",
        math.inf,
    ),
    "low-pass-without-noise": Break(
        breaks_recipes.low_pass_without_noise,
        "tests/test_denoising.py::test_nothing_is_known_but_what_was_released[denoise=doppler]",
        r"the gradient depends on the examples",
        math.inf,
    ),
    "one-participation": Break(
        breaks_recipes.one_participation,
        "tests/privacy/test_correlation.py"
        "::test_epsilon_is_that_of_participations_by_another_accountant[4]",
        r"assert (inf|[\d.]+) <= [\d.]+",
        1,
        q=0.16,  # of eight bands
        accounted=1,
        drawn=STEPS // 8,
    ),
}

SLIPS = {
    "classes-weighted-by-private-labels": Break(
        breaks_slips.classes_weighted_by_private_labels,
        f"{LOSS}[cifar10]",
        r"assert \d+\.\d+ == \d+\.\d+ ",
        None,
    ),
    "labels-smoothed-by-the-batch": Break(
        breaks_slips.labels_smoothed_by_the_batch,
        f"{LOSS}[digits]",
        r"assert \d+\.\d+ == \d+\.\d+ ",
        10,
    ),
    "views-of-several-examples": Break(
        breaks_slips.views_of_several_examples,
        "tests/test_augmentation.py::test_every_augmentation_keeps_examples_apart[crop_flip]",
        r"Expected an augmentation that keeps examples apart",
        10,
    ),
    "rule-looks-at-the-batch": Break(
        breaks_slips.rule_looks_at_the_batch,
        "tests/test_clipping.py::test_every_rule_of_conf_keeps_examples_apart[normalize]",
        r"Expected a clipping rule that keeps examples apart",
        10,
    ),
    "draws-cut-to-fit": Break(
        breaks_slips.draws_cut_to_fit,
        "tests/privacy/test_sampling.py::test_sizes_of_draws_have_the_law_of_coins",
        r"assert .* > 0\.0001",
        None,
    ),
    "shares-padded-to-one-size": Break(
        breaks_slips.shares_padded_to_one_size,
        "tests/test_gradient.py::test_ranks_share_one_draw_of_noise_and_take_the_same_step",
        r"assert \(?\d+ == \d+",
        2,
    ),
    "kept-by-private-loss": Break(
        breaks_slips.kept_by_private_loss,
        f"{EQUAL}[dpsgd]",
        r"assert 'end\.",
        math.inf,
    ),
    "private-images-for-public-ones": Break(
        breaks_slips.private_images_for_public_ones,
        "tests/data/test_public.py::test_images_that_are_private_too_are_refused[cifar100]",
        r"DID NOT RAISE",
        math.inf,
    ),
}
