"""LSG: Algorithm 1 transcribed, and what is frozen and when."""

import pytest
import torch
from torch import nn

from dpexp.methods.lsg import LSG
from dpexp.methods.rgp import RGP
from dpexp.methods.sparsity import most_important, num_kept
from dpexp.privacy.seeds import generator
from dpexp.types import ConfigError
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, TinyNet, data, step

RANK, HEAD_FACTOR = 3, 0.1
LAYERS = ("conv1.weight", "conv2.weight", "hidden.weight")


class Ungrouped(TinyNet):
    """A column of a grouped convolution is another input in every group: it cannot be frozen."""

    def __init__(self):
        super().__init__()
        self.conv2 = nn.Conv2d(6, 4, 3, stride=2, padding=1, bias=False).double()


def make(p=0.5, **options):
    defaults = {
        "rank": RANK,
        "mask": "importance",
        "start_epoch": 0,
        "power_iterations": 1,
        "head_factor": HEAD_FACTOR,
        "head": "head",
        "dataset_size": NUM,
        "batch_size": NUM,
    }
    return LSG(p=p, **defaults | options)


# Algorithm 1, line by line


def kernel_sums(weight, axis):
    """Eqs. (4) to (7): one sum of absolute values for every index along an axis."""
    sums = []
    for index in range(weight.shape[axis]):
        total = 0.0
        for number in weight.select(axis, index).flatten().tolist():
            total += abs(number)
        sums.append(total)
    return sums


def unimportant(sums, p):
    """Name those outside the top (1 - p)."""
    in_order = sorted(range(len(sums)), key=lambda i: sums[i])
    return in_order[: int(p * len(sums) + 1e-9)]


def carriers(model):
    """Algorithm 2 on W, from the Gaussian starts that the first step of seed 0 draws."""
    gen, bases = generator(0, "method", 0), {}
    for name in LAYERS:
        matrix = model.get_parameter(name).detach().flatten(1)
        start = torch.randn(RANK, matrix.shape[1], generator=gen, dtype=torch.float64)
        bases[name] = literal.rgp_carriers(matrix, start, 1)
    return bases


def algorithm_1(model, bases, frozen, x, y):
    """Lines 13 to 28, without noise; `frozen` maps a layer to its unimportant rows and columns."""
    each = literal.gradients(model, x, y)
    vectors = {}
    for name, (left, right) in bases.items():
        d_left = torch.stack([gradient.flatten(1) @ right.T for gradient in each[name]])
        d_right = torch.stack([left.T @ gradient.flatten(1) for gradient in each[name]])
        rows, columns = frozen[name]
        kernels = d_right.view(*d_right.shape[:2], each[name].shape[2], -1)
        for row in rows:
            d_left[:, row, :] = 0
        for column in columns:
            kernels[:, :, column, :] = 0
        vectors[name, "left"], vectors[name, "right"] = d_left, d_right
    for name in ("head.weight", "head.bias"):
        vectors[name, "full"] = HEAD_FACTOR * each[name]
    sums = {key: v.sum(0) / NUM for key, v in literal.clip(vectors, CLIP_NORM).items()}
    update = {}
    for name, (left, right) in bases.items():
        d_left, d_right = sums[name, "left"], sums[name, "right"]
        full = d_left @ right + left @ d_right - left @ left.T @ d_left @ right
        update[name] = full.view(each[name].shape[1:])
    for name in ("head.weight", "head.bias"):
        update[name] = sums[name, "full"]
    return update


def by_importance(model, p):
    weights = {name: model.get_parameter(name).detach() for name in LAYERS}
    return {
        name: tuple(unimportant(kernel_sums(weight, axis), p) for axis in (0, 1))
        for name, weight in weights.items()
    }


def frozen_in(state, model):
    """Read a state's masks as the rows and columns that are not among those kept."""
    found = {}
    for name in LAYERS:
        sizes = model.get_parameter(name).shape
        kept = (state["rows"][name], state["columns"][name])
        found[name] = tuple(
            [] if some is None else sorted(set(range(size)) - set(some.tolist()))
            for some, size in zip(kept, sizes, strict=False)
        )
    return found


def assert_same(got, expected):
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, **CLOSE)


def descend(model, gradients):
    with torch.no_grad():
        for name, gradient in gradients.items():
            model.get_parameter(name).sub_(5.0 * gradient)


@pytest.mark.parametrize("micro_batch", [4, NUM])
@pytest.mark.parametrize("p", [0.3, 0.5, 0.9])
def test_three_steps_are_algorithm_1(p, micro_batch):
    model, method, (x, y) = Ungrouped(), make(p), data()
    state, choices = None, []
    for _ in range(3):
        frozen = by_importance(model, p)
        expected = algorithm_1(model, carriers(model), frozen, x, y)
        got = step(model, method, x, y, state=state, micro_batch=micro_batch)
        assert got.clipped > 0
        assert_same(got.gradients, expected)
        state = got.state
        choices.append({name: (set(a), set(b)) for name, (a, b) in frozen.items()})
        descend(model, got.gradients)
    assert choices[0] != choices[2]  # chosen afresh from W, or the steps show less than they say


def test_with_importance_from_the_carriers_it_is_algorithm_1_on_their_norms():
    """Section 4.4, sparsification based on low-rank matrices."""
    model, (x, y) = Ungrouped(), data()
    bases = carriers(model)
    frozen = {}
    for name, (left, right) in bases.items():
        channels = model.get_parameter(name).shape[1]
        of_columns = kernel_sums(right.view(RANK, channels, -1), axis=1)
        frozen[name] = unimportant(kernel_sums(left, 0), 0.5), unimportant(of_columns, 0.5)
    assert frozen != by_importance(model, 0.5)
    got = step(model, make(mask="carriers"), x, y)
    assert_same(got.gradients, algorithm_1(model, bases, frozen, x, y))


def test_direct_sparsification_leaves_out_entries_of_the_finished_update():
    """Section 4.4: nothing that is released gets smaller."""
    model, (x, y) = Ungrouped(), data()
    method = make(0.4, mask="direct")
    expected = algorithm_1(model, carriers(model), {name: ([], []) for name in LAYERS}, x, y)
    for name in LAYERS:
        sizes = model.get_parameter(name).detach().abs().flatten().tolist()
        for entry in unimportant(sizes, 0.4):
            expected[name].view(-1)[entry] = 0
    got = step(model, method, x, y)
    assert_same(got.gradients, expected)
    assert method.release_shapes(got.state) == make(0.0).release_shapes(make(0.0).start(model))


def test_random_masks_are_algorithm_1_with_rows_and_columns_drawn_afresh_every_step():
    """Section 4.4, random sparsification of the low-rank gradients."""
    model, (x, y) = Ungrouped(), data()
    method = make(mask="random")
    got = step(model, method, x, y)
    bases = {name: (got.state["left"][name], got.state["right"][name]) for name in LAYERS}
    assert_same(got.gradients, algorithm_1(model, bases, frozen_in(got.state, model), x, y))
    counts, kept = torch.zeros(36), []
    for seed in range(400):
        gen = torch.Generator().manual_seed(seed)
        state = method.prepare(model, method.start(model), None, gen)
        kept.append(state["columns"]["hidden.weight"])
        counts[kept[-1]] += 1
    assert not torch.equal(kept[0], kept[1])
    assert (counts / 400 - 0.5).abs().max() < 0.125  # five standard errors of a fair coin


def test_with_nothing_frozen_it_is_rgp_before_its_switch():
    """Figure 5: p = 0 is RGP."""
    model, (x, y) = TinyNet(), data()
    method, state, twin = make(0.0), None, None
    rgp = RGP(RANK, "both", 1, 10**9, "update", residual=True, head_factor=HEAD_FACTOR, head="head")
    for _ in range(2):
        got, expected = (
            step(model, one, x, y, state=before) for one, before in ((method, state), (rgp, twin))
        )
        assert_same(got.gradients, expected.gradients)
        state, twin = got.state, expected.state
        descend(model, got.gradients)


# What is frozen, and when


@pytest.mark.parametrize(
    ("size", "p", "kept"),
    [(10, 0.3, 7), (100, 0.29, 71), (3, 0.5, 2), (1, 0.5, 1), (5, 0.999999, 1), (7, 0.0, 7)],
)
def test_the_kept_part_is_rounded_up(size, p, kept):
    assert num_kept(size, p) == kept
    found = most_important(torch.arange(size), p)
    assert kept == size if found is None else found.tolist() == list(range(size - kept, size))


def test_blocks_hold_what_is_kept_alone_and_whole_kernels_of_it():
    method, model = make(0.5, rank=4), Ungrouped()
    blocks = method.release_shapes(method.start(model))
    shapes = {(key.parameter, key.part): shape for key, shape in blocks.items()}
    assert shapes == {
        ("conv1.weight", "left"): (3, 4),  # of 6 outputs
        ("conv1.weight", "right"): (4, 1 * 9),  # of 2 channels
        ("conv2.weight", "left"): (2, 4),  # of 4
        ("conv2.weight", "right"): (4, 3 * 9),  # of 6
        ("hidden.weight", "left"): (4, 4),  # of 7, rounded up
        ("hidden.weight", "right"): (4, 18),  # of 36
        ("head.weight", "full"): (3, 7),
        ("head.bias", "full"): (3,),
    }


def test_sparsity_switches_on_at_its_epoch_under_one_declaration():
    model, (x, y) = Ungrouped(), data()
    late = make(start_epoch=1.5, dataset_size=4 * NUM)  # 4 steps an epoch: from step 6 on
    dense, sparse = make(0.0), make(0.5)
    state = late.start(model)
    declared = late.releases(state, CLIP_NORM)
    assert declared == dense.releases(dense.start(model), CLIP_NORM)  # the largest it will be
    assert declared[0].sensitivity == 1.0
    for at in range(8):
        got = step(model, late, x, y, state=state)
        state = got.state
        twin = dense if at < 6 else sparse
        assert late.releases(state, CLIP_NORM) == declared
        assert late.release_shapes(state) == twin.release_shapes(twin.start(model))
        assert_same(got.gradients, step(model, twin, x, y).gradients)


def test_a_grouped_convolution_is_masked_as_its_matrix_is():
    model, (x, y) = TinyNet(), data()
    frozen = by_importance(model, 0.5)
    expected = algorithm_1(model, carriers(model), frozen, x, y)
    assert_same(step(model, make(0.5), x, y).gradients, expected)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"p": 1.0}, r"method\.p, the fraction that is frozen, in \[0, 1\); got method\.p=1\.0"),
        ({"p": -0.1}, r"got method\.p=-0\.1\. Set method\.p"),
        ({"p": 50}, r"got method\.p=50"),
        ({"p": float("nan")}, r"got method\.p=nan"),
        ({"mask": "importanse"}, r"method\.mask=importanse\. Did you mean importance\?"),
        ({"start_epoch": -1}, r"method\.start_epoch >= 0"),
        ({"power_iterations": 0}, r"method\.power_iterations >= 1"),
        ({"head_factor": 0.0}, r"method\.head_factor > 0"),
    ],
    ids=str,
)
def test_an_option_outside_its_range_is_refused_in_one_line(options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        make(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rank", [0, 8])
def test_a_rank_that_fits_no_layer_is_refused(rank):
    with pytest.raises(ConfigError, match=rf"rank in \[1, 7\].*rank={rank}.*method\.rank"):
        make(rank=rank).start(Ungrouped())


def test_a_model_that_is_all_classifier_is_refused():
    model = nn.Sequential()
    model.head = nn.Linear(4, 3)
    with pytest.raises(ConfigError, match="weight matrices besides the classifier.*method=dpsgd"):
        make().start(model)
