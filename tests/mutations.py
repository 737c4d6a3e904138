"""A pytest plugin that breaks dpexp's privacy on purpose, one way at a time.

    python -m pytest -p tests.mutations --break no-noise TEST

Nothing of dpexp may be imported before: modules keep what they import from one another. Each break
names the test that must fail under it (tests/test_mutations.py); docs/privacy/breaks.md shows what
each does to epsilon.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import Phase, settings

from tests import breaks, breaks_noise, breaks_options
from tests.mutations_recipes import RECIPES, SLIPS
from tests.planted import Break

CONTRACT = "tests/contract/test_methods.py"
GRADIENT, PRIVATIZE = "tests/test_gradient.py", "tests/test_privatize.py"
INFLUENCE, NOISE, SEEDS = "tests/test_influence.py", "tests/test_noise.py", "tests/test_seeds.py"
TWINS, IMAGES = "tests/test_twins.py", "tests/data/test_images.py"
ADAPTIVE = "tests/test_adaptive.py"
CORRELATION = "tests/privacy/test_correlation.py"
MECHANISM, GEP = "tests/privacy/test_mechanism.py", "tests/methods/test_gep.py"

NOISE_ON_ALL = (
    f"{CONTRACT}::test_every_released_coordinate_gets_the_declared_noise_once_and_nothing_else_does"
    "[rgp]"
)
RANKS = f"{GRADIENT}::test_ranks_share_one_draw_of_noise_and_take_the_same_step"
SIZED = f"{NOISE}::test_noise_has_its_law_and_all_its_bits_in_a_block_of_any_size"
ONCE = f"{SEEDS}::test_no_state_of_any_generator_is_drawn_from_twice_in_a_run[dpsgd]"
AGAIN = f"{SEEDS}::test_steps_and_pieces_share_no_noise_however_far_apart"
SOUND = (
    f"{CONTRACT}::test_one_example_moves_a_release_by_no_more_than_is_declared"
    "_and_nothing_else_is_known[4-dpsgd]"
)
AVERAGED = (
    f"{TWINS}::test_after_equal_releases_all_is_equal_but_the_declared_diagnostics"
    "[dpsgd model=cnn model.channels=[4,8] model.kernel=3 averaging=ema averaging.decay=0.9 "
    "clipping=normalize]"
)
EQUAL = f"{TWINS}::test_after_equal_releases_all_is_equal_but_the_declared_diagnostics[dpsgd]"

BREAKS = {
    "no-noise": Break(breaks_noise.no_noise, NOISE_ON_ALL, r"assert 0 == \d+", math.inf),
    "half-noise": Break(breaks_noise.half_noise, NOISE_ON_ALL, r"assert .*0\.0.* > 0\.001", 2),
    "noise-on-first-rank": Break(
        breaks_noise.noise_on_the_first_rank, RANKS, r"assert 0\.\d+ < 1e-12", math.inf
    ),
    "same-noise-every-step": Break(
        breaks_noise.same_noise_every_step,
        f"{GRADIENT}::test_different_steps_and_seeds_draw_different_noise",
        r"assert (1\.0\d*|0\.99\d+) < 0\.15",
        math.inf,
    ),
    "noise-again-after-steps": Break(
        breaks_noise.noise_again_after_steps, AGAIN, r"assert 1\d\d\d == 1\d\d\d", math.inf
    ),
    "same-noise-every-block": Break(
        breaks_noise.same_noise_every_block,
        f"{PRIVATIZE}::test_every_coordinate_gets_noise_of_the_declared_scale",
        r"assert .*(1\.0|0\.99\d+).* < 0\.06",
        math.inf,
    ),
    "same-noise-every-piece": Break(
        breaks_noise.same_noise_every_piece,
        f"{PRIVATIZE}::test_blocks_drawn_in_pieces_have_fresh_noise_in_each_and_none_without[cpu]",
        r"assert .*(1\.0|0\.99\d+).* < 0\.1\b",
        math.inf,
    ),
    "noise-again-after-pieces": Break(
        breaks_noise.noise_again_after_pieces, AGAIN, r"assert 1024 == 1100", math.inf
    ),
    "noise-repeated-within-a-block": Break(
        breaks_noise.noise_repeated_within_a_block,
        f"{SIZED}[524295-torch.float32-gaussian]",
        r"assert \d+ >= \(",
        math.inf,
    ),
    "half-precision-noise": Break(
        breaks_noise.half_precision_noise,
        f"{SIZED}[524295-torch.float32-gaussian]",
        r"assert \d+ >= \(",
        math.inf,
    ),
    "noise-in-the-sums-precision": Break(
        breaks_noise.noise_in_the_sums_precision,
        f"{NOISE}::test_what_comes_out_does_not_tell_in_which_precision_sums_were_held"
        "[262153-gaussian]",
        r"assert \(?False\b[^$]*torch\.equal",
        math.inf,
    ),
    "short-secret": Break(
        breaks_noise.short_secret,
        f"{SEEDS}::test_a_secret_has_all_its_bits",
        r"assert \(?(1\d\d == 200|65535 == )",
        None,
    ),
    "secret-by-twister": Break(
        breaks_noise.secret_by_twister,
        f"{SEEDS}::test_secret_noise_and_coins_come_from_no_generator_of_torchs[dpsgd]",
        r"assert not \['dpexp/privacy/noise\.py:_gaussian'",
        math.inf,
    ),
    "sampler-draws-noise": Break(
        breaks_noise.sampler_draws_noise,
        ONCE,
        r"frozenset.*(sampling\.py:poisson.*_gaussian|_gaussian.*sampling\.py:poisson)",
        None,
    ),
    "masks-draw-noise": Break(
        breaks_noise.masks_draw_noise,
        ONCE,
        r"frozenset.*(batch_sum\.py:_backward.*_gaussian|_gaussian.*batch_sum\.py:_backward)",
        None,
    ),
    "clip-micro-batches": Break(
        breaks.clip_micro_batches,
        f"{PRIVATIZE}::test_adding_one_example_moves_the_sum_by_at_most_the_clip_norm",
        r"Expected [\d.]+ but got",
        2,
    ),
    "clip-layers": Break(
        breaks.clip_layers,
        f"{PRIVATIZE}::test_clipping_is_joint_over_the_blocks_of_a_release",
        r"Expected 1\.2 but got (2\.0|1\.99999)",
        math.sqrt(26),
    ),
    "layers-at-the-whole-norm": Break(
        breaks_options.layers_clipped_at_the_whole_norm,
        "tests/test_clipping.py::test_a_search_finds_no_example_that_moves_the_sum_by_more_than_c"
        "[per_layer]",
        r"assert \(?[\d.]+ <= ",
        math.sqrt(3),
    ),
    "views-one-by-one": Break(
        breaks_options.views_clipped_one_by_one,
        "tests/test_augmentation.py::test_one_example_moves_the_sum_by_the_clip_norm_at_most",
        r"a row for each of 4 examples; got 12",
        3,
    ),
    "views-not-divided": Break(
        breaks_options.views_not_divided,
        "tests/test_augmentation.py::test_the_clipped_sum_is_that_of_every_examples_mean_over_views[12]",
        r"assert 39\.\d+ == 13\.\d+",
        1,
    ),
    "views-by-place-in-the-draw": Break(
        breaks_options.views_by_place_in_the_draw,
        "tests/test_augmentation.py"
        "::test_the_clipped_sum_is_that_of_every_examples_mean_over_views[6]",
        r"assert \d+\.\d+ == \d+\.\d+ ",
        10,
    ),
    "normalised-without-a-bound": Break(
        breaks_options.normalised_without_a_bound,
        "tests/test_clipping.py::test_a_search_finds_no_example_that_moves_the_sum_by_more_than_c"
        "[normalize]",
        r"assert \d+\.\d+ <= \(0\.7 ",
        10,
    ),
    "adapter-out-of-the-norm": Break(
        breaks_options.adapter_out_of_the_norm,
        SOUND.replace("dpsgd", "dp_lora"),
        r"one example moves release gradient by \d",
        2.9,
    ),
    "filter-of-what-has-no-noise": Break(
        breaks_options.filter_of_what_has_no_noise,
        f"{TWINS}::test_after_equal_releases_all_is_equal_but_the_declared_diagnostics"
        "[rgp model=cnn model.channels=[4,8] model.kernel=3 method.rank=2 clipping=adaptive "
        "denoise=disk]",
        r"assert 'steps\.\d\.",
        math.inf,
    ),
    "average-without-noise": Break(
        breaks_options.average_of_what_has_no_noise,
        AVERAGED,
        r"assert 'steps\.\d\.checkpoint\.averaged",
        math.inf,
    ),
    "quantile-without-noise": Break(
        breaks_options.quantile_without_noise,
        f"{ADAPTIVE}::test_one_run_tells_no_canary_by_its_counts",
        r"assert 1\.\d+ <= 0\.\d+",
        math.inf,
    ),
    "count-not-charged": Break(
        breaks_options.count_not_charged,
        f"{ADAPTIVE}::test_a_distinguishing_game_sees_no_more_than_is_accounted_for",
        r"assert 1\d\.\d+ <= 9\.9\d+",
        math.sqrt(2),
    ),
    "whole-micro-batch-dropped": Break(
        breaks.whole_micro_batch_dropped,
        f"{PRIVATIZE}::test_what_is_not_finite_leaves_out_no_other_example_that_float64_sums",
        r"Mismatched elements: 3 / 3",
        10,
    ),
    "head-scaled-back-before-noise": Break(
        breaks.head_scaled_back_before_noise,
        f"{INFLUENCE}::test_an_example_that_moves_the_head_alone_moves_it_by_at_most_the_clip_norm",
        r"assert (100\.0\d*|99\.99\d+) <= ",
        10,
    ),
    "projection-scaled-after-the-clip": Break(
        breaks.projection_scaled_after_the_clip,
        SOUND.replace("dpsgd", "dp_grape"),
        r"one example moves release projected by 4\.\d",
        12,
    ),
    "difference-clipped-after-the-sum": Break(
        breaks.difference_clipped_after_the_sum,
        SOUND.replace("dpsgd", "dp_zo"),
        r"one example moves release differences by \d\.",
        10,
    ),
    "top-entries-of-exact-sums": Break(
        breaks.top_entries_of_exact_sums,
        SOUND,
        r"one example moves release gradient by \d\d\d",
        10,
    ),
    "kept-beside-the-state": Break(
        breaks.kept_beside_the_state,
        SOUND,
        r"the next step's sum depends on the examples",
        10,
    ),
    "images-by-their-own-mean": Break(
        breaks.images_by_their_own_mean,
        f"{IMAGES}::test_every_set_loads_pixel_for_pixel_from_files_laid_out_like_the_hub"
        "[1-cifar10-counts0]",
        r"Mismatched elements: 92160 / 92160",
        math.inf,
    ),
    "rate-by-private-loss": Break(
        breaks.rate_by_private_loss, EQUAL, r"assert 'steps\.\d\.rates and", math.inf
    ),
    "stopped-by-private-loss": Break(
        breaks.stopped_by_private_loss, EQUAL, r"assert \d == \d", math.inf
    ),
    "step-by-exact-norm": Break(
        breaks.step_by_exact_norm, EQUAL, r"assert 'steps\.0\.rates and", math.inf
    ),
    "fitted-at-evaluations": Break(
        breaks.fitted_at_evaluations, EQUAL, r"assert 'steps\.\d\.", math.inf
    ),
    "warm-start-on-private": Break(
        breaks.warm_start_on_private,
        f"{TWINS}::test_a_model_begins_alike_whatever_the_private_texts[dpsgd-warm start]",
        r"assert 'weights\.",
        math.inf,
    ),
    "realised-batch-size": Break(
        breaks.realised_batch_size,
        f"{GRADIENT}::test_a_draw_larger_than_expected_is_used_whole_and_divided_by_the_expected"
        "_size[none clipped]",
        r"assert 0\.\d+ < 1e-12",
        None,
    ),
    "shuffle-for-poisson": Break(
        breaks.shuffle_for_poisson,
        f"{MECHANISM}::test_what_is_accounted_as_poisson_is_drawn_by_coins",
        r"assert 0\.75 < \(0\.0 / 19\.0\)",
        None,
    ),
    "every-group-at-every-step": Break(
        breaks_options.every_group_at_every_step,
        f"{CORRELATION}::test_no_example_moves_what_leaves_further_than_its_participations_say"
        "[3-500]",
        r"assert 26\.\d+ <= \(21 ",
        None,
    ),
    "coefficients-twice-as-long": Break(
        breaks_options.coefficients_twice_as_long,
        f"{CORRELATION}::test_no_example_moves_what_leaves_further_than_its_participations_say"
        "[3-500]",
        r"assert (24\.0|23\.9)\d* <= \(6 ",
        2,
    ),
    "private-bases-of-rgp": Break(
        breaks.private_bases_of_rgp,
        f"{GRADIENT}::test_bases_do_not_depend_on_private_data[rgp]",
        r"assert False[^$]*torch\.equal",
        math.inf,
    ),
    "private-anchors-of-gep": Break(
        breaks.private_anchors_of_gep,
        f"{GEP}::test_labels_are_drawn_afresh_at_every_step_and_nothing_else_changes_the_bases",
        r"assert False\n.*where False = all",
        math.inf,
    ),
    "one-release-forgotten": Break(
        breaks.one_release_forgotten,
        f"{MECHANISM}::test_two_releases_of_a_step_cost_root_two_and_one_draw",
        r"assert (0\.\d+) == 0\.\d+",
        math.sqrt(2),
    ),
    "nothing-is-lost": Break(
        breaks.nothing_is_lost,
        "tests/test_ledger.py::test_a_run_goes_on_where_nothing_is_released_twice[elsewhere]",
        r"assert 8 == 10",
        math.inf,
    ),
    "repeats-are-not-compared": Break(
        breaks.repeats_are_not_compared,
        "tests/test_repeated_steps.py::test_a_step_that_comes_out_otherwise_is_not_released_again"
        "[in_the_loss]",
        r"DID NOT RAISE.*RecordError",
        math.inf,
    ),
    **RECIPES,
    **SLIPS,
}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the break's name."""
    parser.addoption("--break", dest="broken", choices=sorted(BREAKS), help="break dpexp so")


def pytest_configure(config: pytest.Config) -> None:
    """Break dpexp before any test module imports from it."""
    if config.option.broken is None:
        return
    # The first counterexample will do: no search for a smaller one.
    settings.register_profile(
        "broken",
        parent=settings(),
        phases=[Phase.explicit, Phase.generate],
        derandomize=True,
        database=None,
    )
    settings.load_profile("broken")
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    BREAKS[config.option.broken].apply(patch)
