"""Generators that are independent and replayable."""

import ast
import hashlib
import json
import operator
from functools import cache, reduce
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpexp import cli
from dpexp.cli.instantiate import loop_of
from dpexp.privacy import calibration, seeds, whole_batch
from dpexp.privacy.sampling import poisson
from dpexp.privacy.seeds import (
    AXES,
    generator,
    named_unguessable,
    new_secret,
    seed_default,
    spawned,
)
from dpexp.types import Release
from tests.draws import Draws, place
from tests.marks import some_long
from tests.runs import ALONE
from tests.steps import PRIVATE


@pytest.mark.parametrize("change", [{"seed": 6}, {"axis": "sampling"}, {"index": 8}])
def test_a_generator_depends_on_seed_axis_and_index(change):
    axes = {"seed": 5, "axis": "noise", "index": 7}
    first = torch.randn(8, generator=generator(**axes))
    assert torch.equal(first, torch.randn(8, generator=generator(**axes)))
    assert not torch.equal(first, torch.randn(8, generator=generator(**axes | change)))


def test_a_generators_whole_state_comes_from_its_name():
    """Torch on the CPU keeps only 32 bits of a seed; two names must not meet by that."""
    ours = generator(5, "noise", 7)
    theirs = torch.Generator().manual_seed(ours.initial_seed())
    assert not torch.equal(torch.rand(8, generator=ours), torch.rand(8, generator=theirs))
    drawn = torch.randn(100_000, generator=generator(5, "noise", 7), dtype=torch.float64)
    assert stats.kstest(drawn.numpy(), "norm").pvalue > 1e-4


MANY = sorted(
    {*range(1100), *(10**k + d for k in range(3, 13) for d in (-1, 0, 1))}
    | {2**k + d for k in range(10, 41) for d in (-1, 0, 1)}
)


def test_steps_and_pieces_share_no_noise_however_far_apart():
    """Nor is there a count after which draws begin again."""
    mechanism = whole_batch(4, (Release("gradient", 1, 1.0),))
    of_steps = [mechanism.noise_generator(step) for step in MANY]
    of_pieces = spawned(generator(5, "noise", 7), 1100)
    for gens in (of_steps, of_pieces):
        assert len({gen.get_state().numpy().tobytes() for gen in gens}) == len(gens)


def test_a_secret_has_all_its_bits():
    drawn = [new_secret() for _ in range(200)]
    assert len(set(drawn)) == 200
    assert reduce(operator.or_, drawn) == 2**256 - 1 and reduce(operator.and_, drawn) == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_generator_depends_on_its_name_too():
    draws = [
        torch.randn(8, device="cuda", generator=generator(5, "noise", step, "cuda"))
        for step in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_what_draws_without_a_generator_gets_the_whole_state_too():
    """A seed alone fills 32 bits of it on a CPU."""
    before = torch.get_rng_state()
    try:
        for step in (1, 2):
            seed_default(5, "forward/0", step)
            masks = torch.rand(8)
            assert torch.equal(masks, torch.rand(8, generator=generator(5, "forward/0", step)))
    finally:
        torch.set_rng_state(before)


def test_spawned_generators_are_independent_and_replayable():
    def drawn(gen, count):
        return torch.stack([torch.randn(50_000, generator=g) for g in spawned(gen, count)])

    gen = generator(0, "noise", 0)
    first, second = drawn(gen, 3), drawn(gen, 3)
    assert torch.equal(first, drawn(generator(0, "noise", 0), 3))
    assert torch.equal(first[:2], drawn(generator(0, "noise", 0), 2))
    everything = torch.cat([first, second])
    apart = everything.corrcoef() - torch.eye(6)
    assert apart.abs().max() < 5 / 50_000**0.5
    assert stats.kstest(everything.flatten().numpy(), "norm").pvalue > 1e-4
    assert not torch.equal(first, drawn(generator(0, "noise", 1), 3))


def test_spawned_generators_hang_on_all_of_four_draws_of_63_bits():
    """A short key would let two blocks of a long run share their noise."""
    gen, twin = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    words = torch.randint(2**63 - 1, (4,), generator=twin).tolist()
    key = sum(word << 63 * place for place, word in enumerate(reversed(words)))
    for k, one in enumerate(spawned(gen, 2)):
        assert torch.equal(one.get_state(), generator(key, "spawned", k).get_state())
    assert torch.equal(gen.get_state(), twin.get_state())


# Axes

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "dpexp").rglob("*.py"))

OTHER_SEEDS = {
    "torch.Generator": {"dpexp.analysis.anchors", "dpexp.privacy.seeds"},
    "manual_seed": {"dpexp.cli.parts", "dpexp.analysis.anchors"},
    "default_rng": {"dpexp.data.public", "dpexp.data.regression", "dpexp.data.shapes"},
    "random.Random": {"dpexp.data.grammar"},
}
"""Who else seeds what draws: from a generator's own number, or to make or choose data."""
for of_torch in ("torch.Generator", "manual_seed"):
    OTHER_SEEDS[of_torch] |= {"dpexp.data.own"}
OTHER_SEEDS["torch.Generator"] |= {"dpexp.data.examples", "dpexp.data.public"}
# What is held out, stand-in examples that are timed, the moments at which a run is disturbed, and
# draws that are simulated.
OTHER_SEEDS["torch.Generator"] |= {"dpexp.cli.search", "dpexp.cli.stand_in", "dpexp.data.holdout"}
OTHER_SEEDS["random.Random"] |= {"dpexp.cli.soak"}
OTHER_SEEDS["default_rng"] |= {"dpexp.cli.transcripts", "dpexp.cli.verdicts"}
OTHER_SEEDS["torch.Generator"] |= {"dpexp.cli.trainability"}  # small models with random weights
OTHER_SEEDS["default_rng"] |= {"dpexp.training.probing.sketch"}  # signs, where draws are fixed
OTHER_SEEDS["manual_seed"] |= OTHER_SEEDS["torch.Generator"] | {"dpexp.cli.models_page"}


def module_of(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@cache
def called(path):
    """List a file's calls: what is called, dotted, and its arguments."""
    nodes = ast.walk(ast.parse(path.read_text()))
    return [(ast.unparse(each.func), each.args) for each in nodes if isinstance(each, ast.Call)]


def axis_of(node):
    """Return an axis as written, without what fills it in: "forward/" of f"forward/{rank}"."""
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return node.values[0].value
    return None


def test_every_axis_is_drawn_from_by_the_one_module_that_the_list_names():
    found, elsewhere = {}, []
    for path in FILES:
        for name, arguments in called(path):
            if name in ("generator", "seeds.generator", "seed_default"):
                written = axis_of(arguments[1]) if len(arguments) > 1 else None
                if written is None:
                    elsewhere.append(module_of(path))
                else:
                    found.setdefault(written, set()).add(module_of(path))
    assert elsewhere == ["dpexp.privacy.seeds"]  # which hands on what it is given
    assert found == {axis: {module} for axis, module in AXES.items()}


def test_nothing_else_is_seeded_than_what_is_known():
    found = {name: set() for name in OTHER_SEEDS}
    for path in FILES:
        for name, _ in called(path):
            for known in found:
                if name == known or name.endswith(f".{known}"):
                    found[known].add(module_of(path))
    assert {k: v - OTHER_SEEDS[k] for k, v in found.items()} == dict.fromkeys(found, set())


NAMES = st.tuples(st.integers(0, 2**63), st.sampled_from(sorted(AXES)), st.integers(0, 2**31))


@given(NAMES, NAMES)
def test_generators_of_two_names_never_meet(one, other):
    def filled(name):  # a family's members, too
        seed, axis, index = name
        return seed, f"{axis}{index % 3}" if axis.endswith("/") else axis, index

    states = [generator(*filled(name)).get_state() for name in (one, other)]
    assert torch.equal(*states) == (filled(one) == filled(other))


class Named:
    """Stands for `hashlib` in dpexp.privacy.seeds and notes every name that a generator is made of.

    Attributes:
        places: functions of ours that had a generator of a name made, each time one was.
    """

    def __init__(self):
        self.places = {}

    def shake_256(self, name):
        self.places.setdefault(name.decode(), []).append(place(but="dpexp/privacy/seeds.py"))
        return hashlib.shake_256(name)

    @property
    def twice(self):
        """Return who made a generator of a name that had been made, over all names."""
        return {frozenset(places) for places in self.places.values() if len(places) > 1}


REPLAYED = {  # the same numbers for the same end, twice
    frozenset({"dpexp/attacks/audit.py:toss"}),
    frozenset({"dpexp/attacks/mislabelled.py:choose"}),
    frozenset({"dpexp/pate/loop.py:split_public"}),
    frozenset({"dpexp/training/probing/draws.py:__torch_dispatch__"}),
    frozenset({"dpexp/training/probing/draws.py:reseed"}),
}
SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3"]
BRIEF = ["batch_size=100", "epochs=0.3", "eval_every=0.1"]
DRAWN = {
    "init": "dpexp/models/cnn.py:__init__",
    "sampling": "dpexp/privacy/sampling.py:poisson",
    "noise": "dpexp/privacy/noise.py:_gaussian",
}
RUNS = {
    "dpsgd": ["method=dpsgd", *SMALL],
    "lsg": ["method=lsg", "method.rank=2", "method.mask=random", *SMALL],
    "gep": ["method=gep", "method.m=20", "method.k=8", *SMALL],
    "rgp_core": ["method=rgp_core", "method.rank=2", "method.public_examples=20", *SMALL],
    "compressive": ["method=compressive"],
    "canaries": ["method=dpsgd", "audit=one_run", "audit.m=8", "audit.guesses=0.5", *SMALL],
    "mislabelled": ["method=dpsgd", "audit=one_run", "audit.m=8", "audit.guesses=0.5"],
    "attacked": ["method=dpsgd", "attack=loss_threshold", *SMALL],
    "shadow": ["method=dpsgd", "attack=shadow", *SMALL],
    "pate": ["method=pate", "method.teachers=5", "method.teacher_steps=2", *SMALL],
}
RUNS["mislabelled"] += ["audit.canaries=mislabelled", *SMALL]
RUNS["pate"] += ["method.student_steps=3", "method.queries=20", "method.answers=9"]


ALIKE = ("rgp_core", "mislabelled", "attacked")  # as gep, canaries and shadow are


@pytest.mark.parametrize("name", some_long(RUNS, RUNS.keys() - {*ALIKE}))
def test_no_state_of_any_generator_is_drawn_from_twice_in_a_run(name, tmp_path, monkeypatch):
    """With a hook that draws where dropout does: in every forward pass of training."""
    words = ["task=digits", "profile=embedded", "device=cpu", *PRIVATE, *BRIEF, *RUNS[name]]
    config = cli.compose([*words, f"results={tmp_path}"])
    named = Named()
    monkeypatch.setattr(seeds, "hashlib", named)
    with Draws() as draws:
        parts = cli.build_parts(config, ALONE.device)

        def drop(model, _):
            if model.training:
                torch.rand(3)

        parts.model.register_forward_pre_hook(drop)
        loop_of(config).train(config, parts, ALONE)
    assert draws.shared - REPLAYED == set()
    assert named.twice - REPLAYED == set()  # also where a generator's number seeds another
    if name == "dpsgd":  # the test itself must hear
        assert {*DRAWN.values(), "dpexp/training/batch_sum.py:_backward"} <= draws.places.keys()
        assert draws.places[DRAWN["noise"]] >= draws.places[DRAWN["sampling"]] == 5


SECRET_RUNS = {
    "dpsgd": RUNS["dpsgd"],
    "dp_zo": ["method=dp_zo", "method.noise=laplace", "method.directions=4", *SMALL],
    "adaptive": ["method=rgp", "method.rank=2", "clipping=adaptive", *SMALL],
    "pate": RUNS["pate"],
}


@pytest.mark.parametrize("name", SECRET_RUNS)
def test_secret_noise_and_coins_come_from_no_generator_of_torchs(name, tmp_path, monkeypatch):
    """Whoever knows most of a Mersenne twister's numbers can compute the others."""
    words = ["task=digits", "profile=embedded", "device=cpu", *PRIVATE, *BRIEF, "noise=secret"]
    config = cli.compose([*words, *SECRET_RUNS[name], f"results={tmp_path}"])
    asked, urandom = [], seeds.os.urandom

    def heard(size):
        asked.append(size // 8)
        return urandom(size)

    monkeypatch.setattr(seeds.os, "urandom", heard)
    with Draws() as draws:
        loop_of(config).train(config, cli.build_parts(config, ALONE.device), ALONE)
    rooms = ("dpexp/privacy/sampling.py", "dpexp/privacy/noise.py", "dpexp/pate/votes.py")
    assert not [place for place in draws.places if place.startswith(rooms)]
    certificate = json.loads(next(tmp_path.rglob("privacy.json")).read_text())
    assert len(asked) >= certificate["noise_draws"] > 0


def test_secret_coins_are_the_same_on_all_ranks_and_fall_as_declared():
    secret, total = 2**255 + 12345, 10**6
    coins = named_unguessable(secret, "sampling", 3, total)
    assert torch.equal(coins, named_unguessable(secret, "sampling", 3, total))
    assert stats.kstest(coins.numpy(), "uniform").pvalue > 1e-4 and coins.min() > 0
    drawn = [poisson(secret, step, total, 0.01, is_secret=True) for step in range(2)]
    assert all(abs(len(each) - 10_000) < 600 for each in drawn)  # six standard deviations
    together = np.intersect1d(*(each.numpy() for each in drawn))
    assert abs(len(together) - 100) < 60
    assert len(poisson(secret, 0, total, 1.0, is_secret=True)) == total


def test_no_file_of_a_secret_run_holds_its_secret_its_checkpoints_neither(tmp_path, monkeypatch):
    secret, seen = new_secret(), set()
    monkeypatch.setattr(calibration, "new_secret", lambda: secret)
    traces = [str(secret).encode(), f"{secret:x}".encode()]
    traces += [secret.to_bytes(33, order).strip(b"\0") for order in ("little", "big")]

    def look(*_):
        for path in filter(Path.is_file, tmp_path.rglob("*")):
            held = path.read_bytes()
            seen.add(path.name)
            assert not any(trace in held for trace in traces), path

    words = ["task=digits", "profile=embedded", "device=cpu", *PRIVATE, *BRIEF, "noise=secret"]
    words += [*RUNS["dpsgd"], "checkpoint.steps=1", f"results={tmp_path}"]
    config = cli.compose(words)
    parts = cli.build_parts(config, ALONE.device)
    parts.model.register_forward_pre_hook(look)
    loop_of(config).train(config, parts, ALONE)
    look()
    assert {"checkpoint.pt", "released.jsonl", "privacy.json"} <= seen
