"""GEP and B-GEP: a step is the literal algorithm; no example moves a release beyond its clip."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.linalg import power_iteration
from dpexp.methods.anchor import parameter_groups, shares
from dpexp.methods.gep import GEP
from dpexp.models.resnet import ResNet
from dpexp.privacy import whole_batch
from dpexp.privacy.seeds import generator
from dpexp.training import checkpoint
from dpexp.training.gradient import PrivateGradient
from dpexp.types import ConfigError, Key
from tests.methods import literal

CPU = torch.device("cpu")
NUM, PUBLIC, CLASSES, CLIP, RESIDUAL_CLIP = 6, 9, 3, 0.05, 0.02
CLOSE = {"rtol": 1e-9, "atol": 1e-12}


class TinyNet(nn.Module):
    """Two convolutions that make one stage, a layer before them and a head after."""

    def __init__(self, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.stem = nn.Conv2d(2, 3, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(4, 4, 3, padding=1)
        )
        self.head = nn.Linear(4 * 9, CLASSES)
        self.double()

    def forward(self, x):
        return self.head(torch.tanh(self.blocks(torch.tanh(self.stem(x)))).flatten(1))


STAGES = {
    "stem:3": ("stem.weight",),
    "blocks:4": ("blocks.0.weight", "blocks.0.bias", "blocks.2.weight", "blocks.2.bias"),
    "head:3": ("head.weight", "head.bias"),
}


def images(num, seed):
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 2, 6, 6, generator=gen, dtype=torch.float64)
    return Examples(x, torch.randint(CLASSES, (num,), generator=gen))


def gep(**options):
    defaults = {
        "m": PUBLIC,
        "k": 8,
        "groups": "stages",
        "power_iterations": 1,
        "basis": "anchor",
        "public_labels": "random",
        "residual": True,
        "residual_clip": RESIDUAL_CLIP,
        "head": "head",
    }
    return GEP(**defaults | options)


class Spy:
    """A method that remembers what it was given."""

    def __init__(self, method):
        self.method = method

    def __getattr__(self, name):
        return getattr(self.method, name)

    def prepare(self, *arguments):
        self.prepared = self.method.prepare(*arguments)
        return self.prepared

    def reconstruct(self, state, noisy):
        self.noisy = dict(noisy)
        return self.method.reconstruct(state, noisy)


def step(model, method, private, public, *, micro_batch=NUM, clip_norm=CLIP, state=None):
    """One step on all private examples, without noise."""
    state = method.start(model) if state is None else state
    mechanism = whole_batch(len(private), method.releases(state, clip_norm))
    ranks = Ranks(0, 1, CPU)
    with PrivateGradient(model, method, mechanism, ranks, micro_batch, public) as gradient:
        return gradient(state, private, 0)


def rows(model, examples, names):
    """Per-example gradients of some parameters, side by side."""
    each = literal.gradients(model, examples.inputs, examples.targets)
    return torch.cat([each[name].flatten(1) for name in names], dim=1)


def algorithm_1(anchors, private, start, s1, s2, t):
    """gep, Algorithm 1, without noise; dictionaries hold a matrix per group."""
    basis = dict(start)  # line 3
    for group, b in basis.items():
        for _ in range(t):  # lines 4-7
            a = anchors[group] @ b.T
            b = literal.gram_schmidt((a.T @ anchors[group]).T).T
        basis[group] = b
    w = {group: private[group] @ b.T for group, b in basis.items()}  # line 10
    r = {group: private[group] - w[group] @ b for group, b in basis.items()}  # line 11
    w, r = literal.clip(w, s1), literal.clip(r, s2)
    n = len(next(iter(private.values())))
    inside = {group: w[group].sum(0) @ b / n for group, b in basis.items()}
    left = {group: r[group].sum(0) / n for group in basis}
    return inside, left  # v is their sum, line 15; B-GEP's is the first


GROUPINGS = {
    "stages": STAGES,
    "layers": {
        "stem": ("stem.weight",),
        "blocks.0": ("blocks.0.weight", "blocks.0.bias"),
        "blocks.2": ("blocks.2.weight", "blocks.2.bias"),
        "head": ("head.weight", "head.bias"),
    },
    "all": {"all": tuple(name for names in STAGES.values() for name in names)},
}


@pytest.mark.parametrize("residual", [True, False], ids=["gep", "bgep"])
@pytest.mark.parametrize(
    ("options", "micro_batch"),
    [
        ({}, 1),
        ({}, NUM),
        ({"power_iterations": 3}, 4),
        ({"groups": "all"}, 4),
        ({"groups": "layers", "k": 4}, 4),
        ({"public_labels": True}, 4),
        ({"basis": "random"}, 4),
    ],
    ids=lambda value: ",".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_a_step_is_algorithm_1(options, micro_batch, residual):
    model, private, public = TinyNet(), images(NUM, 1), images(PUBLIC, 2)
    method = gep(**options, residual=residual)
    got = step(model, method, private, public, micro_batch=micro_batch)

    gen = generator(0, "method", 0)
    if "basis" not in options and "public_labels" not in options:
        public = Examples(public.inputs, torch.randint(CLASSES, (PUBLIC,), generator=gen))
    groups, start, taken = GROUPINGS[options.get("groups", "stages")], {}, {}
    for group, names in groups.items():
        taken[group] = sum(model.get_parameter(name).numel() for name in names)
    for group, k in shares(taken, options.get("k", 8)).items():
        p = taken[group]
        if "basis" in options:
            gaussian = torch.randn(p, k, generator=gen, dtype=torch.float64)
            start[group] = literal.gram_schmidt(gaussian).T
        else:
            start[group] = torch.randn(k, p, generator=gen, dtype=torch.float64)
    inside, left = algorithm_1(
        {group: rows(model, public, names) for group, names in groups.items()},
        {group: rows(model, private, names) for group, names in groups.items()},
        start,
        CLIP,
        RESIDUAL_CLIP,
        0 if "basis" in options else options.get("power_iterations", 1),
    )
    assert got.clipped > 0
    assert got.gradients.keys() == {name for names in groups.values() for name in names}
    for group, names in groups.items():
        expected = inside[group] + left[group] if residual else inside[group]
        flat = torch.cat([got.gradients[name].flatten() for name in names])
        torch.testing.assert_close(flat, expected, **CLOSE)


def test_unclipped_gep_is_the_gradient_and_bgep_its_projection():
    """Eq. (4): without clipping and noise, v is unbiased and u lacks the residual."""
    model, private, public = TinyNet(), images(NUM, 1), images(PUBLIC, 2)
    F.cross_entropy(model(private.inputs), private.targets).backward()
    method = Spy(gep(residual_clip=1e3))
    whole = step(model, method, private, public, clip_norm=1e3).gradients
    part = step(model, gep(residual=False), private, public, clip_norm=1e3).gradients
    for names in STAGES.values():
        basis = torch.cat([method.prepared["bases"][name] for name in names], dim=1)
        eye = torch.eye(len(basis), dtype=torch.float64)
        torch.testing.assert_close(basis @ basis.T, eye, **CLOSE)
        full, projected = (
            torch.cat([tensors[name].flatten() for name in names])
            for tensors in ({n: model.get_parameter(n).grad for n in names}, part)
        )
        torch.testing.assert_close(projected, basis.T @ (basis @ full), **CLOSE)
        for name in names:
            torch.testing.assert_close(whole[name], model.get_parameter(name).grad, **CLOSE)


# Anchors


def test_labels_are_drawn_afresh_at_every_step_and_nothing_else_changes_the_bases():
    model, public = TinyNet(), images(PUBLIC, 2)
    seen = []
    for private in (images(NUM, 1), images(NUM, 3)):
        method = Spy(gep())
        outcome = step(model, method, private, public)
        seen.append((method.prepared["bases"], outcome.gradients))
    (one, first), (other, second) = seen
    assert not torch.allclose(first["head.bias"], second["head.bias"])  # the data do differ
    assert all(torch.equal(one[name], other[name]) for name in one)

    method, heard = gep(), []

    class Listening:
        def __len__(self):
            return PUBLIC

        def micro_batches(self, indices, targets):
            heard.append((indices.tolist(), targets.tolist()))
            return iter([{n: torch.randn(PUBLIC, *p.shape) for n, p in model.named_parameters()}])

    state = method.start(model)
    for seed in (0, 1, 0):
        method.prepare(model, state, Listening(), torch.Generator().manual_seed(seed))
    assert heard[0] == heard[2] != heard[1]
    for indices, labels in heard:
        assert indices == list(range(PUBLIC))
        assert set(labels) <= set(range(CLASSES))


def test_true_labels_are_refused_where_the_public_set_has_none():
    public = images(PUBLIC, 2)
    unlabelled = Examples(public.inputs, torch.full((PUBLIC,), -1))
    with pytest.raises(ConfigError, match=r"Set method\.public_labels=random"):
        step(TinyNet(), gep(public_labels="true"), images(NUM, 1), unlabelled)


def test_one_power_iteration_finds_a_low_rank_subspace():
    """Lemma 3.1: gradients of rank k leave no residual."""
    gen = torch.Generator().manual_seed(0)
    directions = torch.randn(5, 4000, generator=gen)
    anchors = torch.randn(40, 5, generator=gen) @ directions
    _, basis = power_iteration(anchors, 5, 1, gen)
    private = torch.randn(7, 5, generator=gen) @ directions
    residual = private - private @ basis.T @ basis
    assert residual.norm() < 1e-5 * private.norm()
    assert (basis @ basis.T - torch.eye(5)).abs().max() < 1e-5


def test_the_papers_five_groups_and_their_shares():
    """gep, Section 4: first layer, three stages, last layer; by the square root of their sizes."""
    model = ResNet(depth=20, channels_last=False, in_channels=3, num_classes=10)
    shapes = {name: weight.shape for name, weight in model.named_parameters()}
    groups = parameter_groups(shapes, "stages")
    assert list(groups) == ["stem:16", "blocks:16", "blocks:32", "blocks:64", "head:10"]
    sizes = {g: sum(model.get_parameter(n).numel() for n in names) for g, names in groups.items()}
    assert sizes == {
        "stem:16": 432,
        "blocks:16": 13_824,
        "blocks:32": 50_688,
        "blocks:64": 202_752,
        "head:10": 650,
    }
    given_ = shares(sizes, 1000)
    assert sum(given_.values()) == 1000
    total = sum(size**0.5 for size in sizes.values())
    for group, share in given_.items():
        assert abs(share - 1000 * sizes[group] ** 0.5 / total) < 1
    assert shares({"small": 100, "large": 784}, 5) == {"small": 1, "large": 4}  # of 1.3 and 3.7


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=8), st.data())
def test_shares_add_up_and_fit_their_groups(sizes, data):
    named = {str(i): size for i, size in enumerate(sizes)}
    total = data.draw(st.integers(len(sizes), min(sum(sizes), 3000)))
    given_ = shares(named, total)
    assert sum(given_.values()) == total
    assert all(1 <= given_[name] <= size for name, size in named.items())


# One example's influence


@settings(max_examples=60, deadline=None)
@example(seed=0, k=8, log_scale=150.0, log_clip=0.0, options={})
@given(
    seed=st.integers(0, 2**31),
    k=st.integers(3, PUBLIC),
    log_scale=st.floats(-12, 30),
    log_clip=st.floats(-3, 3),
    options=st.sampled_from(
        [{}, {"residual": False}, {"basis": "random"}, {"groups": "all"}, {"public_labels": "true"}]
    ),
)
def test_an_example_moves_either_release_by_at_most_its_clip_norm(
    seed, k, log_scale, log_clip, options
):
    model, public = TinyNet(seed), images(PUBLIC, seed + 1)
    clip_norm, residual_clip = 10**log_clip, 10 ** (log_clip / 2)
    private = images(NUM, seed)
    private.inputs[-1] *= 10**log_scale
    sums = []
    for count, micro_batch in ((NUM - 1, 2), (NUM, 4)):
        method = Spy(gep(**{"k": k, "residual_clip": residual_clip, **options}))
        some = Examples(private.inputs[:count], private.targets[:count])
        step(model, method, some, public, micro_batch=micro_batch, clip_norm=clip_norm)
        sums.append({key: count * total for key, total in method.noisy.items()})
    declared = method.releases(method.start(model), clip_norm)
    assert {key.release for key in sums[0]} == {release.name for release in declared}
    for release in declared:
        moved = [
            (sums[1][key] - sums[0][key]).flatten()
            for key in sums[0]
            if key.release == release.name
        ]
        bound = {"embedding": clip_norm, "residual": residual_clip}[release.name]
        assert release.clip_norm == bound and release.sensitivity == 1.0
        assert torch.cat(moved).norm() <= bound * (1 + 1e-9)


@pytest.mark.parametrize("residual", [True, False], ids=["gep", "bgep"])
def test_a_nan_costs_its_example_alone_and_a_group_that_waits_is_empty_after(residual):
    model, public, private = TinyNet(), images(PUBLIC, 2), images(NUM, 1)
    others = [0, 1, 2, 4, 5]
    method = Spy(gep(residual=residual))
    step(model, method, Examples(private.inputs[others], private.targets[others]), public)
    expected = {key: len(others) * total for key, total in method.noisy.items()}
    private.inputs[3, 0, 2, 2] = float("nan")
    outcome = step(model, method, private, public, micro_batch=4)
    assert outcome.nonfinite == 1
    for key, total in expected.items():
        torch.testing.assert_close(NUM * method.noisy[key], total, **CLOSE)
    assert method.prepared["held"] == {}


def test_a_checkpoint_holds_no_basis_and_no_gradient(tmp_path):
    outcome = step(TinyNet(), gep(), images(NUM, 1), images(PUBLIC, 2))
    checkpoint.save(tmp_path / "state.pt", outcome.state)
    loaded = checkpoint.load(tmp_path / "state.pt")
    assert loaded == outcome.state
    assert not any(isinstance(leaf, torch.Tensor) for leaf in loaded.values())
    again = step(TinyNet(), gep(), images(NUM, 1), images(PUBLIC, 2), state=loaded)
    for name, gradient in outcome.gradients.items():
        assert torch.equal(again.gradients[name], gradient)


def test_bases_serve_some_steps_and_the_next_start_from_the_last(tmp_path):
    """Line 3 with the last B in the Gaussian's place; what is stopped in between goes on alike."""
    model, private, public = TinyNet(), images(NUM, 1), images(PUBLIC, 2)
    states, seen = [None], []
    for number in range(4):
        spy = Spy(gep(every=2, public_labels="true"))
        checkpoint.save(tmp_path / "state.pt", states[-1] or {})
        loaded = checkpoint.load(tmp_path / "state.pt") or None
        states.append(step(model, spy, private, public, state=loaded).state)
        seen.append(spy.prepared["bases"])
        with torch.no_grad():
            model.stem.weight.mul_(1 + number / 10)
    assert states[2]["served"] == 2 and states[3]["served"] == 1
    for name in seen[0]:
        assert torch.equal(seen[0][name], seen[1][name])
        assert torch.equal(seen[2][name], seen[3][name])
    with torch.no_grad():  # as it was in the third step
        model.stem.weight.div_(1.3 * 1.2)
    for names in STAGES.values():
        old, new = (torch.cat([bases[name] for name in names], dim=1) for bases in seen[1:3])
        anchors = rows(model, public, names)
        expected = literal.gram_schmidt(anchors.T @ (anchors @ old.T)).T
        torch.testing.assert_close(new.T @ new, expected.T @ expected, **CLOSE)


def test_a_basis_that_is_not_finite_is_no_start():
    model, private, public = TinyNet(), images(NUM, 1), images(PUBLIC, 2)
    state = step(model, gep(every=1), private, public).state
    bases = {
        name: torch.full((2, p.numel()), torch.nan).double() for name, p in model.named_parameters()
    }
    outcome = step(model, gep(), private, public, state={**state, "bases": bases, "served": 1})
    assert outcome.nonfinite == 0


def test_blocks_speak_of_groups_and_of_parameters():
    model = TinyNet()
    state = gep().start(model)
    blocks = gep().release_shapes(state)
    assert {key.parameter for key in blocks if key.release == "embedding"} == set(STAGES)
    for name, parameter in model.named_parameters():
        assert blocks[Key("residual", name)] == tuple(parameter.shape)
    embedding, residual = gep().releases(state, CLIP)
    assert (embedding.dimension, embedding.clip_norm) == (8, CLIP)
    assert residual.dimension == sum(parameter.numel() for parameter in model.parameters())
    (alone,) = gep(residual=False).releases(state, CLIP)
    assert alone == embedding


# Mistakes


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 10}, r"Expected k in \[1, m = 9\].*got k=10\. Set method\.k or method\.m\."),
        ({"k": 0}, r"Expected k in \[1, m = 9\].*got k=0"),
        ({"every": 0}, r"method\.every >= 1; got 0\. Set method\.every"),
        ({"power_iterations": 0}, r"method\.power_iterations >= 1.*got 0 and 0\.02"),
        ({"residual_clip": 0.0}, r"method\.residual_clip > 0; got 1 and 0\.0"),
        ({"residual_clip": float("inf")}, r"method\.residual_clip > 0; got 1 and inf"),
        ({"groups": "stage"}, r"method\.groups=stage\. Did you mean stages\?"),
        ({"basis": "anchors"}, r"method\.basis=anchors\. Did you mean anchor\?"),
        ({"public_labels": "randm"}, r"method\.public_labels=randm\. Did you mean random\?"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value),
)
def test_a_mistake_is_one_clear_line(options, said):
    with pytest.raises(ConfigError, match=said) as caught:
        gep(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("k", "grouping"), [(2, "stages"), (600, "all")])
def test_too_few_or_too_many_basis_vectors_are_refused(k, grouping):
    with pytest.raises(ConfigError, match=rf"at least one basis vector a group.*k={k}"):
        gep(k=k, m=1000, groups=grouping).start(TinyNet())
