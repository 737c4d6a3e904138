"""Every piece of a model that can change what it computes changes its hash; copies do not."""

import copy
import gc
import importlib
import logging
import os
import pickle
import random
import re
import subprocess
import sys
from os import environ
from random import choice
from string import Template

import numpy as np
import pytest
import torch
from numpy.random import rand
from torch import nn

from dpexp.models.architecture import code_digest
from tests.marks import few

OPS = """
import functools
LEVEL = $global_of_a_module
def act(x): return x * $by_attribute_of_a_held_module
def aliased(x): return x * $by_an_alias
def got(x): return x * $by_getattr
def spare(x): return x * $unused_function
class Mixin:
    gain = $attribute_of_a_mixin
    def mixed(self, x): return x + $method_of_a_mixin
class Meta(type):
    def __call__(cls, *words, **more):
        made = super().__call__(*words, **more)
        made.stamp = $metaclass
        return made
def deco(times):
    def around(function):
        @functools.wraps(function)
        def inner(*words):
            return function(*words) * times + $wrapper
        return inner
    return around
"""
NET = """
import collections, dataclasses, enum, functools, operator, re, threading, typing, weakref
from decimal import Decimal
import numpy as np
import torch, torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
import arch_ops_here
import arch_ops_here as ops
from arch_ops_here import Meta, Mixin, deco
LIMITS = [$item_of_a_global_list, 2]
TABLE = torch.tensor([$global_tensor])
LOCK = threading.Lock()
UNUSED = $unused_global
T = typing.TypeVar("T")
class Mode(enum.Enum):
    ON = $enum_value
    OFF = "off"
@dataclasses.dataclass
class Config:
    width: int = $dataclass_default
    words: list = dataclasses.field(default_factory=lambda: [$default_factory])
    def wide(self): return self.width * $dataclass_method
class Slotted:
    __slots__ = ("a", "b")
    def __init__(self): self.a = $slot
class Words(str): pass
Pair = collections.namedtuple("Pair", "one two")
@functools.lru_cache
def cached(x): return x * $cached_function
@functools.singledispatch
def dispatched(x): return x
@dispatched.register
def _(x: torch.Tensor): return x * $dispatched_function
class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x): return x * $autograd_forward
    @staticmethod
    def backward(ctx, grad): return grad * $autograd_backward
class Gate:
    def __init__(self): self.level = $attribute_of_an_object; self.back = self
    def __call__(self, x): return x * self.level
GATE = Gate()
def closing(a):
    def outer(x):
        nonlocal a
        return x * a
    return outer
def using(module): return lambda x: module.act(x)
def power(x, exponent=$default_argument, *, base=$keyword_default): return base * x ** exponent
def shift(self, kept, given): return (given[0] + $hook,)
class Sub(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2))
        self.register_buffer("kept", torch.ones(2))
        self.register_buffer("dropped", torch.tensor([$nonpersistent_buffer]), persistent=False)
    def forward(self, x): return x * self.weight * self.dropped
class Center(nn.Module):
    def forward(self, w): return w * $parametrization
class Net(Mixin, nn.Module, typing.Generic[T], metaclass=Meta):
    factor = $class_attribute
    table = {"a": [$nested_class_attribute]}
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.sub = Sub()
        self.tied = self.sub if $tied_module else Sub()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear2 = nn.Linear(2, 2, bias=False)
        self.linear2.weight.data.copy_(self.linear.weight.data)
        if $tied_weights: self.linear2.weight = self.linear.weight
        self.layers = nn.ModuleList([nn.ReLU(), $layer_in_a_list])
        self.hidden = [nn.Linear(1, 1)]
        with torch.no_grad(): self.hidden[0].weight.fill_($weight_in_a_plain_list)
        self.config, self.mode, self.gate = Config(), Mode.ON, Gate()
        self.slotted, self.words = Slotted(), Words("$str_subclass")
        self.pair = Pair(1, $named_tuple)
        self.part = functools.partial(power, exponent=$partial_argument)
        self.bound, self.own = Gate().__call__, self.scaled
        self.fun = $lambda_here
        self.closed = closing($closed_over)
        self.options = {"b": 1, "a": {"deep": ($nested_option,)}}
        self.choice = {*$members_of_a_set.split()}
        self.kinds = frozenset([Gate, Config, $member_class_of_a_set])
        self.array, self.objects = np.array([$array]), np.array([$object_array, None], dtype=object)
        self.pattern, self.amount = re.compile("$pattern"), Decimal("$decimal")
        self.queue, self.getter = collections.deque([$deque], maxlen=3), operator.itemgetter($item)
        self.counted = collections.OrderedDict(x=$ordered_dict)
        self.default = collections.defaultdict(lambda: $default_dict)
        self.using = using(ops)
        self.kind, self.dtype, self.size = $held_class, torch.$dtype, torch.Size([$size])
        self.shared = [0.0]
        self.other = self.shared if $shared_list else [0.0]
        self.mean = torch.zeros(4)
        self.view = self.mean[:2] if $shared_storage else torch.zeros(2)
        self.sparse = torch.eye(2).mul($sparse).to_sparse()
        self.rng = torch.Generator().manual_seed($generator)
        self.handle = self.sub.register_forward_hook(shift)
        self.layers[0].register_forward_pre_hook(lambda m, x: x[0] * $lambda_hook)
        self.sub.register_forward_hook(functools.partial(shift, given=1), with_kwargs=$with_kwargs)
        self.deep = (((((((($deep_tuple,),),),),),),),)
        self.linear2.weight.requires_grad_($frozen)
        self.lstm = nn.LSTM(2, 2)
        self.normed = nn.Linear(2, 2)
        if $parametrized: parametrizations.weight_norm(self.normed)
        nn.utils.parametrize.register_parametrization(self.linear, "weight", Center())
        self.cells = [closing([0.0])]
        self.ref = weakref.ref(Gate)
    @property
    def twice(self): return $property_here
    @functools.cached_property
    def late(self): return $cached_property
    @staticmethod
    def fixed(x): return x + $static_method
    @classmethod
    def made(cls, x): return x + $class_method
    @deco($decorator_argument)
    def scaled(self, x): return x * $decorated_method
    @torch.no_grad()
    def still(self, x): return x * $no_grad_method
    def forward(self, x):
        import arch_late_here
        if $branch: x = x + 1
        x = F.$library_function(x) * LIMITS[0] * TABLE
        with LOCK: x = [each * $comprehension for each in x]
        class Local:
            inner = $local_class
        m = ops
        x = m.aliased(x) if x in $set_constant else getattr(ops, "got")(x) + arch_ops_here.LEVEL
        return GATE(cached(dispatched(Scale.apply(self.using(x))))) + arch_late_here.late(x)
    def loop(self, x): return self.loop(x) if x else f"{x:$format_spec}"
"""
LATE = "def late(x): return x * $imported_as_it_runs"
NUMBERS = sorted({*re.findall(r"\$(\w+)", OPS + NET + LATE)})
OTHERS = {
    "tied_module": (True, False), "tied_weights": (True, False), "shared_list": (True, False),
    "shared_storage": (True, False), "parametrized": (True, False), "frozen": (True, False),
    "with_kwargs": (True, False), "branch": ("x is not None", "x is None"),
    "lambda_here": ("lambda x: x + 1", "lambda x: x + 2"),
    "held_class": ("nn.ReLU", "nn.GELU"), "dtype": ("float32", "float64"),
    "library_function": ("relu", "gelu"), "members_of_a_set": ("'a b c d e'", "'a b c d f'"),
    "member_class_of_a_set": ("Slotted", "Mode"), "set_constant": ('{"a", "b"}', '{"a", "c"}'),
    "layer_in_a_list": ("nn.Tanh()", "nn.Sigmoid()"), "global_tensor": ("1.0", "2.0"),
    "nonpersistent_buffer": ("1.0", "2.0"), "weight_in_a_plain_list": ("1.0", "2.0"),
    "format_spec": ("1d", "2d"),
}  # fmt: skip
log = logging.getLogger(__name__)
UNUSED = ("unused_function", "unused_global")


def texts(changed=None):
    """Return the three files; a number stands in each place, another where it is changed."""
    values = {name: OTHERS.get(name, (3, 4))[name == changed] for name in NUMBERS}
    return {
        "arch_ops_here": Template(OPS).substitute(values),
        "arch_late_here": Template(LATE).substitute(values),
        "arch_net_here": Template(NET).substitute(values),
    }


def built(folder, changed=None):
    """Return a model of these files."""
    for name, text in texts(changed).items():
        (folder / f"{name}.py").write_text(text)
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("arch_net_here").Net()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder on Python's path, of which nothing stays imported."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(found := tmp_path_factory.mktemp("own"))
        patch.setattr(sys, "dont_write_bytecode", True)
        yield found
    for name in texts():
        sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def before(folder):
    """The hash of the model as the files have it at first."""
    return code_digest(built(folder))


@pytest.mark.parametrize("name", few(NUMBERS, [*NUMBERS][::3]))
def test_a_piece_that_changes_changes_the_hash(folder, before, name):
    assert (code_digest(built(folder, name)) != before) == (name not in UNUSED)


def test_the_model_built_anew_or_copied_has_the_same_hash(folder, before):
    model = built(folder)
    assert code_digest(model) == before
    gc.collect()
    copied = copy.deepcopy(model)
    assert code_digest(copied) == code_digest(copy.deepcopy(copied)) == before


def test_another_process_gives_the_same_hash(folder, before):
    built(folder)
    lines = (
        "import dpexp.models.architecture as a, arch_net_here as n; print(a.code_digest(n.Net()))"
    )
    path = os.pathsep.join([str(folder), *sys.path])
    variables = os.environ | {"PYTHONHASHSEED": "1", "PYTHONPATH": path}
    found = subprocess.run([sys.executable, "-c", lines], env=variables, capture_output=True)
    assert found.stdout.decode().strip() == before, found.stderr.decode()


def holding(**held):
    model = nn.Sequential(nn.Linear(2, 2))
    for name, value in held.items():
        setattr(model, name, value)
    return model


def tied(case):
    one, other = ([0], [0])
    return holding(one=one, other=one if case == 1 else other)


def functions(times):
    return holding(made=eval(f"lambda x: x * {times}", {}))  # of no module at all


def in_a_set(times):
    return holding(members={Member(1), Member(times), Member(3)})


class Member:
    """Of which a set keeps an order that differs each time."""

    def __init__(self, level):
        self.level = level


def late_kept(level):
    torch.manual_seed(0)  # its weights count too
    model = holding(kept=nn.BatchNorm1d(2))
    model.state_dict = lambda *words, **more: {}  # says nothing of what the model holds
    model.kept.running_mean.fill_(level)
    return model


def of_nested_classes(depth):
    kind = nn.Linear
    for _ in range(depth):
        kind = type("Deep", (kind,), {})
    return kind(1, 1)


def nested(depth):
    inner = ()
    for _ in range(depth):
        inner = (inner,)
    return inner


@pytest.mark.parametrize(
    "made",
    [tied, functions, in_a_set, late_kept, of_nested_classes,
     lambda case: holding(order={"a": 1, "b": 2} if case == 1 else {"b": 2, "a": 1}),
     lambda case: holding(code=compile(f"x * {case}", "f", "eval").replace(co_firstlineno=case)),
     lambda case: holding(zero=-0.0 if case == 1 else 0.0),
     lambda case: holding(one=True if case == 1 else 1),
     lambda case: holding(words=("ab", "c") if case == 1 else ("a", "bc")),
     lambda case: holding(deep=nested(5000 + case)),
     lambda case: holding(kept=nn.Linear(2, 2, bias=case == 1)),
     lambda case: holding(number=10**5000 + case)],
)  # fmt: skip
def test_two_of_a_kind_are_told_apart(made):
    torch.manual_seed(0)
    one, again, other = (code_digest(made(case)) for case in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize(
    "made",
    [lambda: (*range(2),), lambda: np.dtype([("a", "f4")]), lambda: np.float32(1.5),
     lambda: torch.Size([1]), lambda: frozenset([1, "a"]), lambda: torch.device("cpu")],
)  # fmt: skip
def test_what_cannot_change_counts_by_what_it_is(made):
    """Whether it is shared may differ in a copy; what comes after it is told apart as before."""
    one = made()
    shared, equal = holding(a=one, b=one, c=[[0]]), holding(a=made(), b=made(), c=[[0]])
    assert shared.a is shared.b and code_digest(shared) == code_digest(equal)


def test_what_is_planted_in_a_library_counts(monkeypatch):
    before = code_digest(holding())
    with monkeypatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda self, x: x * 2)
        assert code_digest(holding()) != before
    assert code_digest(holding()) == before


def test_what_a_model_was_used_for_before_does_not_count():
    """Nor the mode that it is in, nor numbers that the process has given to its hooks."""

    def hooked():
        model = holding()
        model[0].register_forward_hook(lambda m, x, y: None)
        return model

    before, later = code_digest(hooked()), hooked()
    later.eval()(torch.ones(2, 2)).sum().backward()
    assert code_digest(later) == before


class Everyday(nn.Module):
    """It names what Python and numpy hold for the whole process, as programs do."""

    def forward(self, x):
        if os.environ.get("ANY") or environ or sys.modules or sys.stdout or sys.argv:
            log.info("%s %s", random.random(), np.random.rand() + choice([1]) + rand())
        torch.default_generator.manual_seed(0)
        return compiled(torch.ops.aten.relu(x), torch.backends.cudnn.benchmark)


@torch.compiler.disable
def compiled(x, y):
    return x * y


def test_the_state_of_the_process_does_not_count(monkeypatch):
    before = code_digest(Everyday())
    monkeypatch.setenv("ANY", "1")
    monkeypatch.setitem(sys.modules, "another_here", sys)
    for draw in (random.random, np.random.rand, lambda: torch.rand(1)):
        draw()
    assert code_digest(Everyday()) == before
    monkeypatch.setattr(compiled, "_torchdynamo_orig_callable", lambda x, y: x * y * 2)
    assert code_digest(Everyday()) != before


@pytest.mark.parametrize(
    "made",
    [lambda: nn.LSTM(2, 2, 2), lambda: nn.TransformerEncoderLayer(4, 2, 4),
     lambda: nn.MultiheadAttention(4, 2), lambda: nn.utils.parametrizations.weight_norm(
         nn.utils.parametrizations.orthogonal(nn.Linear(2, 2)), "bias"),
     lambda: torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2), nn.ReLU())),
     lambda: nn.Sequential(nn.Embedding(3, 2), nn.GRU(2, 2), nn.BatchNorm1d(2))],
)  # fmt: skip
def test_a_librarys_model_and_its_copies_have_one_hash(made):
    model = made()
    copies = [made(), copy.deepcopy(model), copy.deepcopy(copy.deepcopy(model))]
    if not hasattr(model, "parametrizations"):  # which torch does not pickle
        copies.append(pickle.loads(pickle.dumps(model)))
    assert {*map(code_digest, copies)} == {code_digest(model)}


def test_a_model_that_cannot_be_compared_is_like_no_other_and_it_is_said():
    file = open(os.devnull)  # noqa: SIM115
    model = holding(write=lambda x: file.write(x))
    with pytest.warns(UserWarning, match=r"model.write.* \(TextIOWrapper\) cannot be compared"):
        one = code_digest(model)
    with pytest.warns(UserWarning, match="cannot be compared"):
        assert code_digest(model) != one
    file.close()
