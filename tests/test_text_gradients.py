"""Per-example gradients of language models: the tape against autograd, padding, and memory."""

import math
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, grad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.lsg import LSG
from dpexp.methods.rgp import RGP
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.models.language import Head
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError
from tests.marks import few, some_long
from tests.runs import Watched, total_of
from tests.texts import KINDS, SHAPE, from_hub, texts, tiny

ALONE = Ranks(0, 1, torch.device("cpu"))
LENGTHS = (9, 4, 7, 2, 5, 9)
EVERY = torch.arange(len(LENGTHS))
CLIP_NORM, HEAD_FACTOR = 0.1, 0.1
CLOSE = {"rtol": 1e-8, "atol": 1e-12}


def make(name):
    shape = {"rank": 3, "power_iterations": 1, "head_factor": HEAD_FACTOR, "head": "head"}
    rgp = {"warm_up_steps": 1, "decompose": "update", "residual": True}
    size = {"dataset_size": len(LENGTHS), "batch_size": len(LENGTHS)}
    return {
        "dpsgd": lambda: DPSGD("all", "head"),
        "dpsgd, matrices": lambda: DPSGD("matrices", "head"),
        "dpsgd, biases": lambda: DPSGD("biases", "head"),
        "dpsgd, head": lambda: DPSGD("head", "head"),
        "sparse": lambda: SparseDPSGD(0.5, "importance", "all", "head"),
        "rgp": lambda: RGP(**shape, **rgp, carriers="both"),
        "rgp, random": lambda: RGP(**shape, **rgp, carriers="random"),
        "lsg": lambda: LSG(**shape, **size, p=0.5, mask="importance", start_epoch=0),
    }[name]()


METHODS = ["dpsgd", "dpsgd, matrices", "dpsgd, biases", "dpsgd, head"]
METHODS += ["sparse", "rgp", "rgp, random", "lsg"]
one_kind = pytest.mark.parametrize("kind", some_long(KINDS, ["roberta"]))


def step(model, method, examples, *, micro_batch=100, clip=True, state=None, clip_norm=CLIP_NORM):
    """One step on all examples, without noise."""
    state = method.start(model) if state is None else state
    mechanism = whole_batch(len(examples), method.releases(state, clip_norm), clip=clip)
    with PrivateGradient(model, method, mechanism, ALONE, micro_batch) as gradient:
        return gradient(state, examples, 0)


def taped(model, batch, read):
    """Read every parameter's per-example gradients when backward reaches its layer."""
    got, wanted = {}, [name for name, _ in model.named_parameters()]

    def listen(layer, layer_grads):
        for name in layer_grads.parameters:
            got[f"{layer}.{name}"] = read(layer_grads.gradient(name))

    with Tape(model, wanted, listen) as tape:
        tape.expect(len(batch))
        F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum").backward()
        tape.check_complete()
    return got


def one_by_one(model, batch):
    """Per-example gradients of the padded batch's rows by torch.func, one at a time.

    vmap would take them together, but transformers asks whether a mask is all ones.
    """
    parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(parameters, inputs, target):
        outputs = functional_call(model, parameters, (inputs[None],))
        return F.cross_entropy(outputs, target[None])

    rows = [grad(loss)(parameters, x, y) for x, y in zip(batch.inputs, batch.targets, strict=True)]
    return {name: torch.stack([row[name] for row in rows]) for name in parameters}


def batch_gradient(model, batch):
    names = [name for name, _ in model.named_parameters()]
    loss = F.cross_entropy(model(batch.inputs), batch.targets, reduction="sum")
    return dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))


def assert_same(got, expected, of=""):
    """Compare tensors by name, each to 1e-8 of its own norm."""
    assert got.keys() == expected.keys()
    for name, tensor in expected.items():
        # Adding one to every attention score changes nothing: that gradient is zero but for
        # rounding.
        scale = float(tensor.norm()) if not name.endswith("key.bias") else 1.0
        assert float((got[name] - tensor).norm()) <= 1e-8 * scale, f"{name} {of}"


# Against autograd


@pytest.fixture(params=["from scratch", "sdpa", "eager"])
def built(request, tiny_models):
    """Builds a model as its configuration would, or loads one with either form of attention."""

    def build(kind, **changes):
        if request.param == "from scratch":
            return tiny(kind, **changes)
        return from_hub(kind, tiny_models, attention=request.param, **changes)

    return build


@pytest.mark.parametrize("kind", KINDS)
def test_every_parameters_per_example_gradient_is_autograds(kind, built):
    model, batch = built(kind), texts(kind, LENGTHS).batch(EVERY)
    assert (batch.inputs[:, 1] == 0).any() and (batch.inputs[:, 2] == 1).any()
    batch.inputs[0, 0, 3] = model.encoder.config.pad_token_id  # as a word: its row never learns
    expected = one_by_one(model, batch)
    assert_same(taped(model, batch, lambda grads: grads.materialize()), expected)
    for name, each in expected.items():
        if not name.endswith("key.bias"):
            assert each.flatten(1).norm(dim=1).min() > 1e-9, f"{name} has no gradient to compare"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["norms_squared", "measured"])
def test_squared_norms_and_weighted_sums_are_of_the_same_gradients(kind, way):
    model, batch = tiny(kind), texts(kind, LENGTHS).batch(EVERY)
    expected = one_by_one(model, batch)
    weights = torch.linspace(0.1, 1, len(batch), dtype=torch.float64)

    def read(grads):
        if way == "norms_squared":
            return grads.norms_squared(), total_of(grads, weights)
        size, held = grads.measured()
        return size.squares, total_of(held, weights)

    got = taped(model, batch, read)
    squares = {name: pair[0] for name, pair in got.items()}
    sums = {name: pair[1] for name, pair in got.items()}
    assert_same(squares, {k: v.flatten(1).square().sum(1) for k, v in expected.items()})
    assert_same(sums, {k: torch.tensordot(weights, v, dims=1) for k, v in expected.items()})


@pytest.mark.parametrize("kind", KINDS)
def test_with_dropout_the_examples_gradients_sum_to_the_same_forward_passs(kind, built):
    model, batch = built(kind, dropout=0.3), texts(kind, LENGTHS).batch(EVERY)
    torch.manual_seed(5)
    expected = batch_gradient(model, batch)
    torch.manual_seed(5)
    got = taped(model, batch, lambda grads: grads.materialize().sum(0))
    assert_same(got, expected)
    model.head.eval()  # the encoder's dropout is on, not the classifier's alone
    torch.manual_seed(5)
    expected = batch_gradient(model, batch)
    torch.manual_seed(6)
    other = batch_gradient(model, batch)
    name = "encoder.encoder.layer.0.attention.self.value.weight"
    assert not torch.allclose(other[name], expected[name], rtol=0.01)


@pytest.mark.parametrize("kind", few(KINDS, ["minilm"]))
def test_padding_changes_neither_outputs_nor_gradients(kind, built):
    model, examples = built(kind), texts(kind, LENGTHS)
    together = examples.batch(EVERY)
    padded = taped(model, together, lambda grads: grads.materialize())
    squares = taped(model, together, lambda grads: grads.norms_squared())
    for index, length in enumerate(LENGTHS):
        alone = examples.batch(torch.tensor([index]))
        assert alone.inputs.shape[2] == length
        torch.testing.assert_close(
            model(alone.inputs)[0], model(together.inputs)[index], rtol=1e-8, atol=1e-10
        )
        expected = taped(model, alone, lambda grads: grads.materialize()[0])
        assert_same({name: each[index] for name, each in padded.items()}, expected, index)
        expected = taped(model, alone, lambda grads: grads.norms_squared()[0])
        assert_same({name: each[index] for name, each in squares.items()}, expected, index)


# Methods


def projected(full, left, right):
    """rgp, Eq. 3 with dL = G R^T and dR = L^T G: P_L G + G P_R - P_L G P_R."""
    onto_left, onto_right = left @ left.T, right.T @ right
    return onto_left @ full + full @ onto_right - onto_left @ full @ onto_right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("method", ["rgp", "rgp, random"])
def test_rgps_update_is_the_projection_of_the_gradient(kind, method):
    model, examples = tiny(kind), texts(kind, LENGTHS)
    got = step(model, make(method), examples, clip=False, micro_batch=2)
    full = batch_gradient(model, examples.batch(EVERY))
    assert got.state["left"].keys() == set(matrices(model))
    for name, left in got.state["left"].items():
        expected = projected(full[name], left, got.state["right"][name]) / len(examples)
        torch.testing.assert_close(got.gradients[name], expected, **CLOSE)
        assert not torch.allclose(expected, full[name] / len(examples), rtol=0.01)
    for name in heads(model):
        expected = HEAD_FACTOR * full[name] / len(examples)
        torch.testing.assert_close(got.gradients[name], expected, **CLOSE)


@pytest.mark.parametrize("kind", KINDS)
def test_lsgs_update_is_the_projection_of_what_is_kept(kind):
    model, examples = tiny(kind), texts(kind, LENGTHS)
    got = step(model, make("lsg"), examples, clip=False, micro_batch=2)
    full = batch_gradient(model, examples.batch(EVERY))
    assert got.state["left"].keys() == set(matrices(model))
    for name, left in got.state["left"].items():
        right, gradient = got.state["right"][name], full[name] / len(examples)
        rows, columns = (torch.zeros(size, 1, dtype=torch.float64) for size in gradient.shape)
        weight = model.get_parameter(name).detach().abs()
        rows[weight.sum(1).topk(math.ceil(len(rows) / 2)).indices] = 1
        columns[weight.sum(0).topk(math.ceil(len(columns) / 2)).indices] = 1
        d_left, d_right = rows * (gradient @ right.T), (left.T @ gradient) * columns.T
        expected = d_left @ right + left @ d_right - left @ left.T @ d_left @ right
        torch.testing.assert_close(got.gradients[name], expected, **CLOSE)


@one_kind
@pytest.mark.parametrize("method", few(METHODS, ["dpsgd", "sparse", "rgp"]))
def test_a_step_does_not_depend_on_the_micro_batch_size(kind, method):
    model, examples = tiny(kind), texts(kind, LENGTHS)
    whole = step(model, make(method), examples)
    assert whole.clipped > 0
    for micro_batch in (1, 2):
        parts = step(model, make(method), examples, micro_batch=micro_batch)
        assert parts.gradients.keys() == whole.gradients.keys()
        assert (parts.examples, parts.clipped) == (whole.examples, whole.clipped)
        flat = [
            torch.cat([g.flatten() for g in some.gradients.values()]) for some in (parts, whole)
        ]
        assert float((flat[0] - flat[1]).norm()) < 1e-12 * float(flat[1].norm())


# What trains


def matrices(model):
    """Name the attention and feed-forward matrices of a tiny encoder."""
    inside = ["attention.self.query", "attention.self.key", "attention.self.value"]
    inside += ["attention.output.dense", "intermediate.dense", "output.dense"]
    layers = range(SHAPE["layers"])
    return [f"encoder.encoder.layer.{k}.{name}.weight" for k in layers for name in inside]


def heads(model):
    two = ["head.dense.weight", "head.dense.bias"] if model.head.dense is not None else []
    return [*two, "head.out.weight", "head.out.bias"]


@one_kind
@pytest.mark.parametrize("method", few(METHODS, ["dpsgd", "dpsgd, biases", "lsg"]))
def test_what_trains_is_what_is_named_and_the_rest_stays_as_it_was(kind, method, built):
    model, examples, chosen = built(kind), texts(kind, LENGTHS), make(method)
    names = [name for name, _ in model.named_parameters()]
    if method in ("dpsgd", "sparse"):
        expected = set(names)
        assert "encoder.embeddings.word_embeddings.weight" in expected
    elif method == "dpsgd, head":
        expected = set(heads(model))
    elif method == "dpsgd, biases":
        inside = {name for name in names if name.endswith((".bias", "LayerNorm.weight"))}
        expected = {*inside, *heads(model)}
    else:
        expected = {*matrices(model), *heads(model)}
    assert set(chosen.trainable(model)) == expected
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    state = chosen.start(model)
    for _ in range(2):
        outcome = step(model, chosen, examples, state=state)
        state = outcome.state
        assert outcome.gradients.keys() == expected
        with torch.no_grad():
            for name, gradient in outcome.gradients.items():
                model.get_parameter(name).sub_(gradient)
    moved = {name for name in names if not torch.equal(before[name], model.get_parameter(name))}
    still = {name for name in expected if name.endswith("key.bias")}  # see `assert_same`
    assert moved - still == expected - still and moved <= expected


def test_a_model_without_biases_is_refused_where_only_they_would_train():
    model = nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, 3, bias=False), head=nn.Linear(2, 2)))
    with pytest.raises(ConfigError, match=r"with biases .* Set method\.train=all"):
        DPSGD("biases", "head").trainable(model)


def test_a_layer_that_serves_twice_adds_its_uses_up():
    model, batch = tiny("bert"), texts("bert", LENGTHS).batch(EVERY)
    model.encoder.encoder.layer[1].output = model.encoder.encoder.layer[0].output
    got = taped(model, batch, lambda grads: grads.materialize())
    step(model, make("rgp"), texts("bert", LENGTHS))
    assert_same(got, one_by_one(model, batch))  # last: functional_call does not restore the model


def test_a_head_tied_to_the_embeddings_adds_its_uses_up():
    model, batch = tiny("bert"), texts("bert", LENGTHS).batch(EVERY)
    rows = len(model.encoder.embeddings.word_embeddings.weight)
    model.head = Head(SHAPE["width"], rows, 1, 0.0).double()
    model.head.out.weight = model.encoder.embeddings.word_embeddings.weight
    got = taped(model, batch, lambda grads: grads.materialize())
    assert "head.out.weight" not in got
    assert_same(got, one_by_one(model, batch))


# Halved precision


def single(grads):
    """Measure what is held, which must be float32 whatever the model's precision."""
    held = [part for name, part in vars(grads).items() if name in ("values", "dh")]
    assert held and all(part.dtype == torch.float32 for part in held)
    return grads.norms_squared()


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_gives_float32s_norms_within_a_few_percent(kind):
    examples, squares = texts(kind, LENGTHS), {}
    for precision in ("float32", "bfloat16"):
        model = tiny(kind, precision=precision).float()
        got = taped(model, examples.batch(EVERY), single)
        squares[precision] = torch.stack(list(got.values())).sum(0)
    full, half = (squares[precision].sqrt() for precision in ("float32", "bfloat16"))
    assert half.isfinite().all()
    assert not torch.equal(half, full)  # it did halve
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.0)


@one_kind
@pytest.mark.parametrize("method", few(METHODS, ["dpsgd", "rgp, random", "lsg"]))
def test_bfloat16_holds_the_clip_bound_in_float32(kind, method):
    model, examples = tiny(kind, precision="bfloat16").float(), texts(kind, LENGTHS)
    for index in range(len(examples)):
        watched = Watched(make(method))
        one = examples.take(torch.tensor([index]))
        outcome = step(model, watched, one, clip_norm=0.01)
        released = torch.cat([block.flatten() for block in watched.released.values()])
        assert outcome.clipped == 1 and released.dtype == torch.float32
        assert 0.99 * 0.01 < float(released.double().norm()) <= 0.01 * (1 + 1e-5)


# Memory


class Largest(TorchDispatchMode):
    """Watches for the largest tensor that anything makes, in numbers; views make none."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = tree_flatten((args, kwargs or {}))[0]
        held = {each.untyped_storage().data_ptr() for each in given if torch.is_tensor(each)}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_flatten(out)[0]:
            if torch.is_tensor(leaf) and leaf.untyped_storage().data_ptr() not in held:
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.itemsize)
        return out


@pytest.mark.parametrize("train", ["all", "matrices"])
def test_no_example_gets_a_table_or_a_matrix_of_its_own(train):
    num, width, vocabulary, longest = 16, 64, 30_000, 12
    shape = {"layers": 1, "width": width, "feed_forward": 256, "max_length": longest}
    model = tiny("bert", **shape, vocabulary=vocabulary).float()
    examples = texts("bert", [longest] * num, longest=longest, vocabulary=vocabulary)
    with Largest() as seen:
        outcome = step(model, DPSGD(train, "head"), examples)
    assert outcome.examples == num and outcome.clipped > 0
    table, matrix_of_each = vocabulary * width, num * 256 * width
    if train == "all":
        assert seen.numbers == table  # the batch's gradient; one an example would be 16 of them
    else:
        assert seen.numbers < matrix_of_each / 2
    with Largest() as seen:  # what it would see if they were formed
        taped(model, examples.batch(torch.arange(num)), lambda grads: len(grads.materialize()))
    assert seen.numbers == num * table
