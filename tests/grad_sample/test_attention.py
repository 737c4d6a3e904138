"""Attention of torch's own: fast, exact, and its projections are matrices."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.grad_sample import Tape
from dpexp.grad_sample.attention import Attend
from dpexp.grad_sample.hooking import hook_at_parent, hooked_layers
from dpexp.grad_sample.shared_inputs import trial
from dpexp.methods.selection import matrix_of
from dpexp.models.matrices import matrix_parameters
from dpexp.types import full_name
from tests.grad_sample.test_modules import D, Net, T, drawn, per_example, taken

pytestmark = pytest.mark.filterwarnings("ignore")

K, V = 3, 5  # other widths of keys and values


def padding(h):
    """Name keys to leave out, by what the example holds; never the first."""
    return (h[..., 0] > 0.2) & (torch.arange(h.shape[1]) > 0)


def masks_of_each(h, heads):
    """Return a mask of every example and head."""
    mask = (h[:, None, :, :1] > h[:, None, None, :, 0]).expand(-1, heads, -1, -1)
    return (mask & ~torch.eye(h.shape[1], dtype=torch.bool)).flatten(0, 1)


def to_itself(layer, h, **more):
    return layer(h, h, h, **more)[0]


def across(layer, h, **more):
    memory = h.flip(2)[:, :-1]
    return layer(h, memory, memory, **more)[0]


def of_three(layer, h):
    return layer(h, h.flip(1), h.flip(2).tanh(), key_padding_mask=padding(h))[0]


def of_other_widths(layer, h):
    return layer(h, h[..., :K], h[..., :V].flip(1))[0]


def examples_second(layer, h):
    h = h.transpose(0, 1)
    mask = torch.ones(T, T, dtype=torch.bool).triu(1)
    out, _ = layer(h, h, h, attn_mask=mask, need_weights=False, is_causal=True)
    return out.view(-1).view(h.shape).transpose(0, 1)  # as torch lays it out


def across_second(layer, h):
    h = h.transpose(0, 1)
    return layer(h, h.flip(0), h.flip(0))[0].transpose(0, 1)


def with_weights(layer, h):
    out, weights = layer(h, h, h, key_padding_mask=padding(h), average_attn_weights=False)
    return out + weights.sum((1, 3))[..., None] + weights[:, 0, :, :1].square()


def added(layer, h):
    """Masks that are added, of both kinds at once."""
    return to_itself(
        layer,
        h,
        key_padding_mask=padding(h).double().mul(-2),
        attn_mask=torch.eye(T).double(),
        need_weights=False,
    )


def windows(layer, h):
    return to_itself(layer, h.reshape(-1, T // 2, D), need_weights=False).reshape(h.shape)


def twice(layer, h):
    return to_itself(layer, across(layer, h))


def made(use, wrap=lambda layer: layer, **settings):
    settings = {"batch_first": True, **settings}
    return lambda: Net(wrap(nn.MultiheadAttention(D, 2, **settings)), use)


CASES = {
    "to itself": made(to_itself),
    "without weights": made(lambda layer, h: to_itself(layer, h, need_weights=False)),
    "without biases": made(to_itself, bias=False),
    "across": made(across),
    "across, padded": made(lambda layer, h: across(layer, h, key_padding_mask=padding(h[:, :-1]))),
    "of three": made(of_three),
    "of other widths": made(of_other_widths, kdim=K, vdim=V),
    "of other widths, without biases": made(of_other_widths, kdim=K, vdim=V, bias=False),
    "positions appended": made(to_itself, add_bias_kv=True),
    "appended and masked": made(
        lambda layer, h: to_itself(
            layer, h, key_padding_mask=padding(h), attn_mask=masks_of_each(h, 2)
        ),
        add_bias_kv=True,
        add_zero_attn=True,
    ),
    "other widths, appended": made(
        lambda layer, h: layer(h, h[..., :K], h[..., :V], need_weights=False)[0],
        kdim=K,
        vdim=V,
        add_bias_kv=True,
    ),
    "masks of each": made(
        lambda layer, h: to_itself(layer, h, attn_mask=masks_of_each(h, 2), need_weights=False)
    ),
    "added masks": made(added),
    "examples second": made(examples_second, batch_first=False),
    "across, examples second": made(across_second, batch_first=False),
    "weights in the loss": made(with_weights),
    "windows": made(windows),
    "called twice": made(twice),
}


def decoder(layer, h):
    return layer(h, h.flip(1), tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1))


LAYER = nn.TransformerEncoderLayer(D, 2, 8, 0.0, batch_first=True)
CASES |= {
    "encoder, padded": lambda: Net(
        nn.TransformerEncoder(LAYER, 2), lambda layer, h: layer(h, src_key_padding_mask=padding(h))
    ),
    "decoder": lambda: Net(nn.TransformerDecoderLayer(D, 2, 8, 0.0, batch_first=True), decoder),
}


@pytest.mark.parametrize("kind", CASES)
def test_gradients_and_their_low_rank_products_are_each_examples_own(kind):
    model, x, y = drawn(CASES[kind])
    names = [name for name, _ in model.named_parameters()]
    assert all(each.has_rule for each in hooked_layers(model, names).values())
    expected = per_example(model, x, y, names)
    matrices = matrix_parameters(model, "after")
    assert {name for name in names if "_proj_weight" in name} <= set(matrices)
    got, carried = {}, {}

    def take(layer, layer_grads):
        for own in layer_grads.parameters:
            got[full_name(layer, own)] = layer_grads.gradient(own)
        if (name := matrix_of(layer, layer_grads, matrices)) is not None:
            p, d = model.get_parameter(name).shape
            left, right = torch.randn(p, 2).double(), torch.randn(2, d).double()
            rows, columns = torch.arange(p)[::2], torch.arange(d)[1:]
            whole = expected[name]
            carried[name] = [
                (layer_grads.left(right), whole @ right.T),
                (layer_grads.left(right, rows), whole[:, rows] @ right.T),
                (layer_grads.right(left), left.T @ whole),
                (layer_grads.right(left, columns), left.T @ whole[..., columns]),
            ]

    with trial(), Tape(model, names, take) as tape:
        tape.expect(len(x))
        tape.backward(F.cross_entropy(model(x), y, reduction="sum"))
    assert got.keys() == expected.keys() and carried.keys() == set(matrices)
    for name, each in expected.items():
        close(got[name].materialize().view_as(each), each)
        norms = each.flatten(1).square().sum(1)
        torch.testing.assert_close(got[name].norms_squared(), norms, rtol=1e-8, atol=1e-12)
    for found, each in sum(carried.values(), []):
        close(found.materialize(), each)
    assert not any("forward" in vars(module) for module in model.modules())


def test_at_the_module_around_it_each_matrix_comes_by_itself():
    model, x, y = drawn(CASES["of other widths"])
    names = [name for name, _ in model.named_parameters()]
    for name in ("layer.out_proj", "layer"):
        hook_at_parent(model, name)
    expected, matrices = per_example(model, x, y, names), matrix_parameters(model, "after")
    seen = set()

    def take(layer, layer_grads):
        if (name := matrix_of(layer, layer_grads, matrices)) is not None:
            right = torch.randn(2, model.get_parameter(name).shape[1]).double()
            close(layer_grads.left(right).materialize(), expected[name] @ right.T)
            seen.add(name)

    with trial(), Tape(model, names, take) as tape:
        tape.expect(len(x))
        tape.backward(F.cross_entropy(model(x), y, reduction="sum"))
    assert seen == set(matrices) and len(seen) == 5


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def test_torchs_fast_path_passes_no_attention_by_and_is_open_again_after():
    layer = nn.TransformerEncoderLayer(D, 2, 8, 0.0, batch_first=True)
    layer.requires_grad_(False)
    layer.self_attn.in_proj_weight.requires_grad_(True)
    encoder = nn.TransformerEncoder(layer, 1)
    head = nn.Linear(D, 3)

    class First(nn.Module):  # nothing before the encoder trains
        def __init__(self):
            super().__init__()
            self.encoder, self.head = encoder, head

        def forward(self, x):
            mask = torch.arange(T)[None] >= torch.tensor([T, T - 1, 2])[:, None][: len(x)]
            return self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])

    model, x, y = drawn(First, 3)
    names = ["encoder.layers.0.self_attn.in_proj_weight"]
    got = taken(model.eval(), x, y, names)
    model.encoder.enable_nested_tensor = model.encoder.use_nested_tensor = False
    weight = model.get_parameter(names[0])
    (expected,) = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), [weight])
    close(got[names[0]].sum(0), expected)
    assert torch.backends.mha.get_fastpath_enabled()


def test_what_it_drops_is_drawn_once():
    model, x, y = drawn(made(lambda layer, h: to_itself(layer, h, need_weights=False), dropout=0.5))
    names = ["layer.in_proj_weight", "layer.out_proj.bias"]
    torch.manual_seed(0)
    first = taken(model.train(), x, y, names)
    torch.manual_seed(0)
    again = taken(model, x, y, names)
    other = taken(model, x, y, names)
    for name in names:
        close(first[name], again[name])
    assert not torch.allclose(first[names[0]], other[names[0]])
    model.layer.dropout = 0.0
    plain = taken(model, x, y, names)
    model.layer.dropout = 0.5
    close(taken(model.eval(), x, y, names)[names[0]], plain[names[0]])


def test_a_subclass_is_taken_as_it_is():
    class Louder(nn.MultiheadAttention):
        def forward(self, *args, **kwargs):
            out, weights = super().forward(*args, **kwargs)
            return 2 * out, weights

    model, x, y = drawn(lambda: Net(Louder(D, 2, batch_first=True), to_itself))
    names = [name for name, _ in model.named_parameters()]
    assert not all(each.has_rule for each in hooked_layers(model, names).values())
    got = taken(model, x, y, names)
    for name, each in per_example(model, x, y, names).items():
        close(got[name].view_as(each), each)


MASKS = st.tuples(
    st.sampled_from([torch.bool] * 4 + [torch.double] * 4 + [torch.long]),
    st.sampled_from(["own"] * 4 + ["each"] * 4 + ["one", "longer", "flat"]),
)


@st.composite
def calls(draw):
    """Draw an attention, and what it is called with; some of it fits nothing."""
    flag = st.booleans()
    n, t, s = (draw(st.integers(1, 3)) for _ in "nts")
    heads = draw(st.sampled_from([1, 2]))
    settings = {name: draw(flag) for name in ("bias", "add_bias_kv", "add_zero_attn")}
    settings |= {"batch_first": draw(flag), "dropout": draw(st.sampled_from([0.0, 0.5]))}
    widths = [4, draw(st.sampled_from([4, 4, 3])), draw(st.sampled_from([4, 4, 5]))]
    torch.manual_seed(draw(st.integers(0, 99)))
    layer = nn.MultiheadAttention(4, heads, **settings, kdim=widths[1], vdim=widths[2]).double()
    layer.train(draw(flag))
    sizes = [(n, t), (n, s), (n, s)]
    if draw(st.integers(0, 9)) == 0:  # one of them has another length or other examples
        sizes[draw(st.integers(0, 2))] = (draw(st.integers(1, 3)), draw(st.integers(1, 3)))
    inputs = [torch.randn(*size, width).double() for size, width in zip(sizes, widths, strict=True)]
    if widths == [4, 4, 4] and draw(flag):
        inputs = [inputs[0]] * 3
        s = t
    elif widths[1] == widths[2] and draw(flag):
        inputs[2] = inputs[1]
    if draw(st.integers(0, 4)) == 0:
        inputs, n = [each[0] for each in inputs], 1
    elif not settings["batch_first"]:
        turned = {id(each): each.transpose(0, 1) for each in inputs}
        inputs = [turned[id(each)] for each in inputs]
    is_single = inputs[0].dim() == 2

    def mask(own, each):
        if draw(flag):
            return None
        dtype, shape = draw(MASKS)
        one = (1, *own[-2:])
        shapes = {"own": own, "each": each, "one": one, "flat": own[-1:]}
        shape = shapes.get(shape, (*own[:-1], own[-1] + 1))
        return (torch.rand(shape) < 0.4).to(dtype)

    given = {
        "attn_mask": mask((t, s), (n * heads, t, s)),
        "key_padding_mask": mask((s,) if is_single else (n, s), (n, s)),
    }
    given |= {name: draw(flag) for name in ("need_weights", "average_attn_weights", "is_causal")}
    return layer, inputs, given


def answer(forward, layer, inputs, given):
    """Return outputs, attention weights and gradients; None if it refuses."""
    torch.manual_seed(0)
    held = {id(each): each.clone().requires_grad_() for each in inputs}
    try:
        out, weights = forward(*(held[id(each)] for each in inputs), **given)
        loss = out.square().sum() + (0 if weights is None else weights[..., :1].sum())
        return out, weights, torch.autograd.grad(loss, [*held.values(), *layer.parameters()])
    except (AssertionError, RuntimeError):
        return None


@pytest.mark.parametrize("examples", [150, pytest.param(5000, marks=pytest.mark.long)])
def test_every_call_is_answered_or_refused_as_by_torch(examples):
    @given(calls())
    @settings(max_examples=examples)
    def compare(call):
        expected = answer(call[0].forward, *call)
        got = answer(Attend(call[0], lambda: False, lambda: None), *call)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12, equal_nan=True)

    compare()


def test_a_causal_call_without_a_mask_is_refused_by_torch():
    """Not answered as if it were not causal."""
    model, x, y = drawn(made(lambda layer, h: to_itself(layer, h, is_causal=True)))
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        taken(model, x, y, ["layer.in_proj_weight"])


@pytest.mark.parametrize("need_weights", [True, False])
def test_fewer_values_than_keys_are_refused_by_torch(need_weights):
    """Its fused attention would read beyond them."""

    def use(layer, h):
        return layer(h, h, h[:, :1], need_weights=need_weights)[0]

    model, x, y = drawn(made(use))
    with pytest.raises(AssertionError, match="does not match value shape"):
        taken(model, x, y, ["layer.in_proj_weight"])
