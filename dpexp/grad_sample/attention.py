"""nn.MultiheadAttention taken apart into layers, so that its projections have rules.

torch computes the whole of it in one function, which reads the parameters and calls no layer. While
a tape is attached, `Attend` stands in for that function. It computes the same from the same
parameters, but calls a layer wherever one of them is read: the input projections, what is appended
to keys and values, and `out_proj`. Between them nothing has parameters, and autograd does the rest.

Where queries, keys and values have one width, their projections are one matrix [3 e, e]. It is
applied to all the positions that are asked about, one after another: in self-attention to the
input, else to queries, keys and values in turn, of which a third of the outputs is used each. So
it is a linear layer like any other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary, ref

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from dpexp.grad_sample.linear import LinearGrads
from dpexp.grad_sample.per_example import FactoredGrads, MaterializedGrads
from dpexp.grad_sample.rules import ROWWISE, FormedGrads, rule

MATRICES = ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight")
"""An attention's own weight matrices: one, or three where widths differ."""

LINEAR = (nn.Linear, NonDynamicallyQuantizableLinear)

OWN = {*MATRICES, "in_proj_bias", "bias_k", "bias_v"}


class Projection(nn.Module):
    """A projection of an attention's inputs, x [n, t, d] to [n, t, p], as a layer.

    It reads the attention's parameters at every call, since a step may put others in their place.
    """

    def __init__(self, attention: nn.MultiheadAttention, weight: str, third: int | None) -> None:
        """Name the parameters.

        Args:
            attention: whose they are.
            weight: its matrix's name.
            third: which third of `in_proj_bias` it adds; None: all.
        """
        super().__init__()
        self._of, self.weight_name, self.third = ref(attention), weight, third
        bias = () if attention.in_proj_bias is None else ("in_proj_bias",)
        self.names = (weight, *bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map the inputs."""
        attention = self._of()
        assert attention is not None  # whose forward calls this
        bias: Tensor | None = attention.in_proj_bias
        if bias is not None and self.third is not None:
            bias = bias.chunk(3)[self.third]
        return F.linear(x, getattr(attention, self.weight_name), bias)


class Appended(nn.Module):
    """The position that an attention appends to its keys or values, [n, s, e] to [n, s + 1, e]."""

    def __init__(self, attention: nn.MultiheadAttention, name: str) -> None:
        """Name the parameter, `bias_k` or `bias_v`."""
        super().__init__()
        self._of, self.names = ref(attention), (name,)

    def forward(self, x: Tensor) -> Tensor:
        """Append it to every example's."""
        last = getattr(self._of(), self.names[0])
        return torch.cat([x, last.to(x.dtype).expand(len(x), -1, -1)], 1)


_PARTS: WeakKeyDictionary[nn.MultiheadAttention, dict[str, nn.Module]] = WeakKeyDictionary()


def is_taken_apart(module: nn.Module) -> TypeGuard[nn.MultiheadAttention]:
    """Return whether a module is an attention that `Attend` computes as torch does."""
    if type(module) is not nn.MultiheadAttention:
        return False  # a subclass may compute something else
    held = {name for name, each in module._parameters.items() if each is not None}
    out, forward = module.out_proj, vars(module).get("forward")
    return (
        held <= OWN
        and not held.isdisjoint(MATRICES)
        # A subclass may compute something else than torch, which reads its parameters.
        and (type(out) in LINEAR or not isinstance(out, nn.Linear))
        and (forward is None or isinstance(forward, Attend))
    )


def parts_of(attention: nn.MultiheadAttention) -> dict[str, Any]:
    """Return the layers that stand for an attention's own parameters, each with its `names`."""
    if attention not in _PARTS:
        parts: dict[str, nn.Module] = {}
        if attention.in_proj_weight is not None:
            parts["in_proj"] = Projection(attention, "in_proj_weight", None)
        else:
            for third, each in enumerate("qkv"):
                parts[f"{each}_proj"] = Projection(attention, f"{each}_proj_weight", third)
        for name in ("bias_k", "bias_v"):
            if getattr(attention, name) is not None:
                parts[name] = Appended(attention, name)
        _PARTS[attention] = parts
    return _PARTS[attention]


@dataclass(frozen=True)
class Attend:
    """Stands in for an attention's `forward`: the same numbers, by layers that hooks see.

    Attributes:
        attention: it.
        is_idle: returns whether no hook wants to see anything; torch's own function is called then.
        refuse: called where the inputs have no axis of examples.
    """

    attention: nn.MultiheadAttention
    is_idle: Callable[[], bool]
    refuse: Callable[[], None]

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the attention returns."""
        layer = self.attention
        inputs = (query, key, value)
        # As torch has it: the hint replaces the mask where nothing else needs one.
        is_hinted = is_causal and key_padding_mask is None and not need_weights
        if self.is_idle() or not _is_usual(
            layer, inputs, attn_mask, key_padding_mask, is_causal=is_causal, is_hinted=is_hinted
        ):
            if query.dim() != 3 and not self.is_idle():
                self.refuse()
            return type(layer).forward(
                layer,
                query,
                key,
                value,
                key_padding_mask,
                need_weights,
                attn_mask,
                average_attn_weights,
                is_causal,
            )
        given = {id(each): each for each in inputs}
        if not layer.batch_first:
            given = {word: each.transpose(0, 1) for word, each in given.items()}
        q, k, v = _projected(layer, [id(each) for each in inputs], given)
        parts, more = parts_of(layer), 0
        if layer.bias_k is not None:
            k, v, more = parts["bias_k"](k), parts["bias_v"](v), 1
        q, k, v = (each.unflatten(2, (layer.num_heads, -1)).transpose(1, 2) for each in (q, k, v))
        if layer.add_zero_attn:
            k, v, more = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), more + 1
        mask = _mask(q, None if is_hinted else attn_mask, key_padding_mask, more, query.dtype)
        dropout = layer.dropout if layer.training else 0.0
        weights = None
        if need_weights:
            scores = (q * math.sqrt(1.0 / q.shape[-1])) @ k.mT
            weights = (scores if mask is None else scores + mask).softmax(-1)
            weights = F.dropout(weights, dropout) if dropout else weights
            found = weights @ v
            weights = weights.mean(1) if average_attn_weights else weights
        else:
            found = F.scaled_dot_product_attention(q, k, v, mask, dropout, is_hinted)
        out = layer.out_proj(found.transpose(1, 2).flatten(2))
        return (out if layer.batch_first else out.transpose(0, 1).contiguous()), weights


class Attentions:
    """Puts `Attend` in the place of attentions' own `forward`, and takes it away again."""

    def __init__(
        self,
        attentions: Mapping[str, nn.MultiheadAttention],
        is_idle: Callable[[], bool],
        refuse: Callable[[str], None],
    ) -> None:
        """Choose the attentions.

        Args:
            attentions: by name.
            is_idle: as in `Attend`.
            refuse: called with the name of one whose inputs have no axis of examples.
        """
        self._attentions, self._is_idle, self._refuse = attentions, is_idle, refuse
        self._before: dict[str, Any] = {}
        self._has_fast_path = False

    def replace(self) -> None:
        """Put them there. torch's fast path, which in eval mode asks no module, is closed."""
        if not self._attentions:
            return
        for name, attention in self._attentions.items():
            self._before[name] = vars(attention).get("forward")  # another tape's, if any
            attend = Attend(attention, self._is_idle, partial(self._refuse, name))
            vars(attention)["forward"] = attend
        self._has_fast_path = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)

    def put_back(self) -> None:
        """Take them away."""
        if not self._before:
            return
        for name, forward in self._before.items():
            del self._attentions[name].forward
            if forward is not None:
                vars(self._attentions[name])["forward"] = forward
        self._before = {}
        torch.backends.mha.set_fastpath_enabled(self._has_fast_path)


def _is_usual(
    layer: nn.MultiheadAttention,
    inputs: Sequence[Tensor],
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    *,
    is_causal: bool,
    is_hinted: bool,
) -> bool:
    """Return whether inputs and masks are as torch requires; torch refuses all others itself.

    Its fused attention checks little: where values are fewer than keys, it reads beyond them.
    """
    if any(each.dim() != 3 for each in inputs) or (is_causal and attn_mask is None):
        return False
    examples, positions = (0, 1) if layer.batch_first else (1, 0)
    (n, t), keys, values = [(each.shape[examples], each.shape[positions]) for each in inputs]
    s = keys[1]
    masks = ((attn_mask, ((t, s), (n * layer.num_heads, t, s))), (key_padding_mask, ((n, s),)))
    return keys == values == (n, s) and all(
        mask is None
        or (
            (mask.dtype == torch.bool or mask.is_floating_point())
            and (mask.dim() in (2, 3) if is_hinted else mask.shape in shapes)
        )
        for mask, shapes in masks
    )


def _projected(
    layer: nn.MultiheadAttention, words: list[int], given: dict[int, Tensor]
) -> list[Tensor]:
    """Return queries, keys and values [n, t, e], of inputs [n, t, d] by a word for each."""
    parts = parts_of(layer)
    if layer.in_proj_weight is None:
        return [parts[f"{each}_proj"](given[word]) for each, word in zip("qkv", words, strict=True)]
    lengths = [each.shape[1] for each in given.values()]
    whole = torch.cat([*given.values()], 1) if len(given) > 1 else given[words[0]]
    pieces = dict(zip(given, parts["in_proj"](whole).split(lengths, 1), strict=True))
    return [pieces[word].chunk(3, 2)[third] for third, word in enumerate(words)]


def _mask(
    q: Tensor,
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    more: int,
    dtype: torch.dtype,
) -> Tensor | None:
    """Return what is added to the scores [n, h, t, s + more]; None: nothing.

    Args:
        q: [n, h, t, e / h].
        attn_mask: [t, s] or [n h, t, s], True where a query may not look, or what is added.
        key_padding_mask: [n, s], likewise.
        more: how many positions were appended, which every query sees.
        dtype: of what is added where a mask is of True and False.
    """
    n, heads, t, _ = q.shape
    found = None
    if attn_mask is not None:
        found = F.pad(_added(attn_mask, dtype), (0, more))
        found = found if found.dim() == 2 else found.view(n, heads, t, -1)
    if key_padding_mask is not None:
        padding = F.pad(_added(key_padding_mask, dtype), (0, more))[:, None, None]
        found = padding if found is None else found + padding
    return found


def _added(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return what a mask adds to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, -math.inf)


@dataclass(frozen=True)
class ProjectionGrads:
    """Layer gradients of a projection.

    Attributes:
        linear: those of a linear layer.
        third: which third of the attention's bias it has; None: all.
        parameters: the names of matrix and bias.
    """

    linear: LinearGrads
    third: int | None
    parameters: tuple[str, ...]

    @classmethod
    def read(cls, layer: Projection, x: Tensor, dh: Tensor) -> ProjectionGrads:
        """Return the layer's gradients for x [n, ..., t, d] and dh [n, ..., t, p]."""
        x, dh = (each.reshape(len(each), -1, each.shape[-1]) for each in (x, dh))
        return cls(LinearGrads(x, dh, ("weight", "bias")), layer.third, layer.names)

    def gradient(self, name: str) -> FactoredGrads | MaterializedGrads:
        """Return dW_i [n, p, d], or the whole bias's, zero outside the projection's own third."""
        if name != "in_proj_bias":
            return self.linear.gradient("weight")
        each = self.linear.gradient("bias")
        if self.third is None:
            return each
        width = self.linear.dh.shape[2]
        return MaterializedGrads(
            F.pad(each.materialize(), (self.third * width, (2 - self.third) * width))
        )

    def left(self, right_basis: Tensor, rows: Tensor | None = None) -> MaterializedGrads:
        """Return dW_i R^T, [n, p, r], or its rows alone."""
        return self.linear.left(right_basis, rows)

    def right(self, left_basis: Tensor, columns: Tensor | None = None) -> MaterializedGrads:
        """Return L^T dW_i, [n, r, d], or its columns alone."""
        return self.linear.right(left_basis, columns)

    def scaled(self, factor: float) -> ProjectionGrads:
        """Return the gradients times a constant."""
        return replace(self, linear=self.linear.scaled(factor))


def _appended(layer: Appended, x: Tensor, dh: Tensor) -> FormedGrads:
    """Return the gradients of the position, [n, 1, 1, e]."""
    return FormedGrads({layer.names[0]: dh[:, None, -1:]}, layer.names)


rule(Projection)(ProjectionGrads.read)
rule(Appended)(_appended)
rule(NonDynamicallyQuantizableLinear)(LinearGrads.read)
ROWWISE.update({Projection, NonDynamicallyQuantizableLinear})
