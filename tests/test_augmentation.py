"""Augmented views: an example's gradient is their mean, clipped once."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dpexp import cli
from dpexp.data import Examples
from dpexp.data.augmentation import CropFlip
from dpexp.distributed.ranks import Ranks
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.rgp import RGP
from dpexp.privacy import build
from dpexp.training.gradient import PrivateGradient
from dpexp.training.probing.own_sets import in_parts
from dpexp.training.train import first_look
from dpexp.types import Batch, ConfigError
from tests.marks import long
from tests.runs import with_words

N, SIDE, CLASSES = 12, 6, 3


def literal(image, top, left, flip, padding):
    """Pad by the mirror, crop, flip: one image [c, h, w] as numpy does it."""
    height, width = image.shape[1:]
    padded = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), mode="symmetric")
    seen = padded[:, top : top + height, left : left + width]
    return seen[:, :, ::-1] if flip else seen


@pytest.mark.parametrize("shape", [(3, 6, 6), (1, 5, 8), (2, 4, 4)])
@pytest.mark.parametrize("padding", [0, 1, 4])
def test_views_are_crops_of_the_mirrored_image_and_their_flips(shape, padding):
    images = torch.randn(7, *shape)
    augmentation = CropFlip(multiplicity=5, padding=padding)
    draws = augmentation.draws(7, torch.Generator().manual_seed(padding))
    seen = augmentation.views(Batch(images, torch.arange(7)), draws)
    assert seen.views == 5 and seen.targets.tolist() == [i for i in range(7) for _ in range(5)]
    for example in range(7):
        for view, (top, left, flip) in enumerate(draws[example].tolist()):
            expected = literal(images[example].numpy(), top, left, flip, padding)
            assert torch.equal(seen.inputs[5 * example + view], torch.tensor(expected.copy()))


def test_every_offset_and_flip_is_drawn_alike():
    draws = CropFlip(multiplicity=10, padding=1).draws(3000, torch.Generator().manual_seed(0))
    places = draws[..., 0] * 6 + draws[..., 1] * 2 + draws[..., 2]
    counts = torch.bincount(places.flatten(), minlength=18)
    expected = 30_000 / 18
    assert len(counts) == 18
    assert float(((counts - expected) ** 2 / expected).sum()) < 45  # chi-square of 17, 1e-4


class Attending(nn.Module):
    """A convolution with a stride, a table, a layer used twice, and attention."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(2, 8, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.place = nn.Parameter(torch.randn(9, 8))
        self.twice = nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.norm(self.stem(x)).flatten(2).mT + self.place
        x = torch.tanh(self.twice(torch.tanh(self.twice(x))))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head(x.mean(1))


@pytest.fixture
def model():
    torch.manual_seed(0)
    return Attending().double()


@pytest.fixture
def examples():
    gen = torch.Generator().manual_seed(1)
    inputs = torch.randn(N, 2, SIDE, SIDE, generator=gen, dtype=torch.float64)
    return Examples(inputs, torch.randint(CLASSES, (N,), generator=gen))


def mechanism(method, model, clip_norm=0.5, clip=True, noise=False, batch_size=N):
    privacy = {"eps": 8.0, "delta": 1e-3, "noise": noise, "clip": clip, "sampling": "poisson"}
    return build(
        privacy,
        dataset_size=N,
        batch_size=batch_size,
        num_steps=4,
        releases=method.releases(method.start(model), clip_norm),
        seed=0,
    )


def gradient_of(method, model, examples, augmentation, micro_batch=4, step=2, **changes):
    """The released sum, divided by the batch size, without noise."""
    mechanism_ = mechanism(method, model, **changes)
    cpu = Ranks(0, 1, torch.device("cpu"))
    with PrivateGradient(
        model, method, mechanism_, cpu, micro_batch, augmentation=augmentation
    ) as gradient:
        return gradient(method.start(model), examples, step), mechanism_


def views_of(augmentation, examples, mechanism_, step=2):
    """What the step's views are, made again from the seed alone."""
    from dpexp.privacy.seeds import generator

    draws = augmentation.draws(N, generator(mechanism_.root, "augmentation", step))
    return augmentation.views(Batch(examples.inputs, examples.targets), draws)


@pytest.mark.parametrize("batch_size", [N, 6])
def test_the_clipped_sum_is_that_of_every_examples_mean_over_views(model, examples, batch_size):
    """Of half of the examples too: a view is of its example, whoever else is drawn."""
    augmentation = CropFlip(multiplicity=3, padding=2)
    method = DPSGD(train="all", head="head")
    outcome, mechanism_ = gradient_of(method, model, examples, augmentation, batch_size=batch_size)
    seen, drawn = views_of(augmentation, examples, mechanism_), mechanism_.sample(2).tolist()
    assert drawn == [*range(N)] if batch_size == N else drawn != [*range(len(drawn))]
    expected = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    clipped, loss = 0, 0.0
    for example in drawn:
        rows = slice(3 * example, 3 * example + 3)
        mean = F.cross_entropy(model(seen.inputs[rows]), seen.targets[rows])
        grads = torch.autograd.grad(mean, [*model.parameters()])
        norm = torch.sqrt(sum(g.square().sum() for g in grads))
        clipped += int(norm > 0.5)
        loss += float(mean)
        for name, g in zip(expected, grads, strict=True):
            expected[name] += g * min(1.0, 0.5 / float(norm)) / batch_size
    assert outcome.loss == pytest.approx(loss, rel=1e-9)
    assert 0 < clipped == outcome.clipped and outcome.examples == len(drawn) > 0
    for name, value in expected.items():
        torch.testing.assert_close(outcome.gradients[name], value, rtol=1e-5, atol=1e-7)


METHODS = {
    "dpsgd": lambda: DPSGD(train="all", head="head"),
    "rgp": lambda: RGP(
        rank=2,
        carriers="both",
        power_iterations=1,
        warm_up_steps=2,
        decompose="update",
        residual=True,
        head_factor=0.3,
        head="head",
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_the_micro_batch_changes_nothing_but_rounding(method, model, examples):
    augmentation = CropFlip(multiplicity=2, padding=1)
    outcomes = [
        gradient_of(METHODS[method](), model, examples, augmentation, micro_batch)[0]
        for micro_batch in (1, 5, N)
    ]
    for other in outcomes[1:]:
        for name, value in outcomes[0].gradients.items():
            torch.testing.assert_close(other.gradients[name], value, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("views", [1, 3])
def test_a_step_is_done_once_its_examples_are_however_many_views_they_have(views, model, examples):
    """Of four examples at once, and twelve in all."""
    method, parts = METHODS["dpsgd"](), []
    augmentation, cpu = CropFlip(views, padding=1), Ranks(0, 1, torch.device("cpu"))
    with PrivateGradient(
        model, method, mechanism(method, model), cpu, 4, augmentation=augmentation
    ) as gradient:
        gradient(method.start(model), examples, 0, on_part=parts.append)
    assert parts == [4 / N, 8 / N, 1]


def test_one_example_moves_the_sum_by_the_clip_norm_at_most(model, examples):
    """Adjacent sets: an example's views do not depend on which others are drawn."""
    augmentation = CropFlip(multiplicity=3, padding=2)
    whole, _ = gradient_of(METHODS["dpsgd"](), model, examples, augmentation)
    replaced = Examples(examples.inputs.clone(), examples.targets)
    replaced.inputs[5] = float("nan")  # contributes nothing: as if it were left out
    less, _ = gradient_of(METHODS["dpsgd"](), model, replaced, augmentation)
    assert less.nonfinite == 1
    moved = sum(
        (whole.gradients[name] - less.gradients[name]).square().sum() for name in whole.gradients
    )
    assert 0 < N * float(moved) ** 0.5 <= 0.5 * (1 + 1e-9)


def test_a_step_draws_views_of_its_own_and_repeats_them(model, examples):
    augmentation = CropFlip(multiplicity=2, padding=2)

    def at(step):
        return gradient_of(METHODS["dpsgd"](), model, examples, augmentation, step=step)[0].loss

    assert at(0) == at(0) != at(1)


# Examples apart

AUGMENTATIONS = sorted({p.stem for p in (cli.CONF / "augmentation").glob("*.yaml")} - {"none"})


def built(*words):
    config = ["method=dpsgd", "profile=embedded", "eps=8", *words]
    return cli.build_parts(cli.compose(config), torch.device("cpu"))


@pytest.fixture(scope="module")
def digits():
    return built("task=digits", "model=linear")


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_every_augmentation_keeps_examples_apart(name):
    first_look(built("task=digits", "model=linear", f"augmentation={name}"), torch.device("cpu"))


class Odd(CropFlip):
    """Crops and flips, and then something else."""

    def views(self, batch, draws):
        seen = super().views(batch, draws)
        return self.change(seen, self.multiplicity)


def largest_seen(seen, _):
    return replace(seen, inputs=seen.inputs / seen.inputs.abs().max())


def is_of_many(seen, many):
    return (torch.bincount(seen.targets)[seen.targets] > many).view(-1, 1, 1, 1)


MIXING = {
    "the next example": lambda s, k: replace(s, inputs=0.9 * s.inputs + 0.1 * s.inputs.roll(k, 0)),
    "a thousandth of the mean": lambda s, _: replace(s, inputs=s.inputs + 1e-3 * s.inputs.mean(0)),
    "the largest pixel of the batch": largest_seen,
    "large classes alone": lambda s, k: replace(s, inputs=s.inputs * ~is_of_many(s, 12 * k)),
    "nothing among few": lambda s, k: largest_seen(s, k) if len(s) > 64 * k else s,
    "the size of the batch": lambda s, _: replace(s, inputs=s.inputs / len(s)),
    "the next one's target": lambda s, k: replace(s, targets=s.targets.roll(k)),
    "another order": lambda s, _: replace(s, inputs=s.inputs.flip(0), targets=s.targets.flip(0)),
    "numbers of torch's own": lambda s, _: replace(s, inputs=s.inputs + torch.rand(())),
    "numbers of numpy's own": lambda s, _: replace(s, inputs=s.inputs * np.random.rand()),
}


@pytest.mark.parametrize("name", MIXING)
def test_an_augmentation_that_mixes_examples_is_refused_before_the_first_step(name, digits):
    odd = Odd(multiplicity=2, padding=1)
    vars(odd)["change"] = MIXING[name]
    before = torch.get_rng_state(), np.random.get_state()[1].tolist()
    with pytest.raises(ConfigError, match="keeps examples apart; of Odd") as refused:
        first_look(replace(digits, augmentation=odd), torch.device("cpu"))
    assert "\n" not in str(refused.value)
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == np.random.get_state()[1].tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda s, k: replace(s, views=1),
        lambda s, k: replace(s, inputs=s.inputs[::k], targets=s.targets[::k]),
        lambda s, k: replace(s, inputs=s.inputs[:-1]),
    ],
)
def test_an_augmentation_that_makes_other_views_than_it_says_is_refused(change, digits):
    odd = Odd(multiplicity=2, padding=1)
    vars(odd)["change"] = change
    with pytest.raises(ConfigError, match="Expected 2 views of each of 9 examples"):
        first_look(replace(digits, augmentation=odd), torch.device("cpu"))


class Turned:
    """Images turned by a random angle, in place: rounding may differ with the batch."""

    multiplicity = 2

    def draws(self, num_examples, gen):
        return torch.rand((num_examples, 2), generator=gen)

    def views(self, batch, draws):
        angles, rows = draws.flatten().to(batch.inputs), batch.inputs.repeat_interleave(2, 0)
        zero = torch.zeros_like(angles)
        turn = torch.stack([angles.cos(), -angles.sin(), zero, angles.sin(), angles.cos(), zero], 1)
        grid = F.affine_grid(turn.view(-1, 2, 3), list(rows.shape), align_corners=False)
        batch.inputs.zero_()
        seen = F.grid_sample(rows, grid, align_corners=False)
        return Batch(seen, batch.targets.repeat_interleave(2), 2)


class Masked:
    """Texts of which a random token is another one."""

    multiplicity = 1

    def draws(self, num_examples, gen):
        return torch.rand((num_examples, 1), generator=gen)

    def views(self, batch, draws):
        seen = batch.inputs.clone()
        lengths = seen[:, 1].sum(1, keepdim=True)
        seen[:, 0] = seen[:, 0].scatter(1, (draws * lengths).long(), 1)
        return replace(batch, inputs=seen)


def test_one_that_keeps_them_apart_passes_whatever_it_works_on(digits):
    first_look(replace(digits, augmentation=Turned()), torch.device("cpu"))
    texts = built("task=sentiment", "task.dataset_size=50", "task.test_size=20", "batch_size=10")
    first_look(replace(texts, augmentation=Masked()), torch.device("cpu"))


# Examples of anyone's own set


class Own(Examples):
    """Gives other examples than it holds."""

    def batch(self, indices):
        return OTHERS[self.change](super().batch(indices))


def centred(batch):
    return replace(batch, inputs=batch.inputs - batch.inputs.mean(0))


def by_class_size(batch):
    sizes = torch.bincount(batch.targets)[batch.targets]
    return replace(batch, inputs=batch.inputs / sizes.view(-1, 1, 1, 1))


def with_a_mean_at_the_end(batch):
    inputs = batch.inputs.clone()
    inputs[-1] = inputs.mean(0)
    return replace(batch, inputs=inputs)


OTHERS = {
    "a mean at the end": with_a_mean_at_the_end,
    "as they are": lambda batch: batch,
    "centred": centred,
    "by class size": by_class_size,
    "the next one's target": lambda b: replace(b, targets=b.targets.roll(1)),
    "noisy": lambda b: replace(b, inputs=b.inputs + torch.rand_like(b.inputs)),
    "half": lambda b: Batch(b.inputs[::2], b.targets[::2]),
    "of two lengths": lambda b: replace(b, targets=b.targets[::2]),
}


def own(kind, change, train):
    held = kind(train.inputs, train.targets, train.mean, train.std)
    vars(held)["change"] = change
    return held


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("centred", "keeps examples apart; of Own an example changes"),
        ("a mean at the end", "keeps examples apart; of Own an example changes"),
        ("by class size", "keeps examples apart; of Own an example changes"),
        ("the next one's target", "keeps examples apart; of Own an example changes"),
        ("noisy", "stay as they are; Own gives others when the same are read again"),
        ("half", "of the 160 training .*; Own gives 80 inputs and 80 targets. Correct its `batch`"),
        ("of two lengths", "Own gives 160 inputs and 80 targets"),
    ],
)
def test_a_set_of_ones_own_that_mixes_examples_is_refused(change, said, digits):
    task = replace(digits.task, train=own(Own, change, digits.task.train))
    drawn = torch.get_rng_state()
    with pytest.raises(ConfigError, match=said):
        first_look(replace(digits, task=task), torch.device("cpu"))
    assert torch.equal(drawn, torch.get_rng_state())


class Twice(Own):
    """Has every example in two micro-batches."""

    def micro_batches(self, indices, size):
        return [*super().micro_batches(indices, size), indices]


class Fewer(Own):
    """Leaves out what would be a smaller micro-batch."""

    def micro_batches(self, indices, size):
        return [part for part in super().micro_batches(indices, size) if len(part) == size]


@pytest.mark.parametrize("kind", [Twice, Fewer])
def test_a_set_of_ones_own_has_each_drawn_example_once(kind, digits):
    held = own(kind, "as they are", digits.task.train)
    said = f"each drawn example once; those of {kind.__name__}"
    with pytest.raises(ConfigError, match=said):
        first_look(replace(digits, task=replace(digits.task, train=held)), torch.device("cpu"))
    with pytest.raises(ConfigError, match=said):  # at a step, where the draw is another
        in_parts(held, torch.arange(20), 7)


def test_a_set_of_ones_own_that_keeps_examples_apart_passes(digits):
    held = own(Own, "as they are", digits.task.train)
    first_look(replace(digits, task=replace(digits.task, train=held)), torch.device("cpu"))
    assert [len(part) for part in in_parts(held, torch.arange(20), 7)] == [7, 7, 6]


class Split(Own):
    """Splits any draw, so that one of nobody has a part of nobody."""

    def micro_batches(self, indices, size):
        return indices.split(size)


def test_a_draw_of_nobody_reads_nobody_of_a_set_of_ones_own(digits):
    held = own(Split, "as they are", digits.task.train)
    assert [*in_parts(held, torch.arange(0), 7)] == []
    assert [len(part) for part in in_parts(held, torch.arange(9), 7)] == [7, 2]


class Trimmed(Examples):
    """Pads texts to the longest that is read beside them, as a loader of one's own may."""

    def batch(self, indices):
        batch = super().batch(indices)
        longest = int(batch.inputs[:, 1].sum(1).max())
        return replace(batch, inputs=batch.inputs[..., :longest])


def test_a_set_of_ones_own_may_pad_texts_to_the_longest_beside_them(recwarn):
    texts = built("task=sentiment", "task.dataset_size=50", "task.test_size=20", "batch_size=10")
    whole = texts.task.train.batch(torch.arange(50))
    held = Trimmed(whole.inputs, whole.targets)
    assert held.batch(torch.arange(1)).inputs.shape != held.batch(torch.arange(50)).inputs.shape
    first_look(replace(texts, task=replace(texts.task, train=held)), torch.device("cpu"))
    assert not recwarn  # the model was tried, though the set cannot read nobody


# Mistakes


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("augmentation=crop_flop", "crop_flip"),
        ("augmentation=crop_flip augmentation.multiplicity=0", "augmentation.multiplicity >= 1"),
        ("augmentation=crop_flip augmentation.padding=-1", "augmentation.padding >= 0"),
        ("augmentation=crop_flip augmentation.padding=9", "at least 9 pixels"),
        long("augmentation=crop_flip task=sentiment", r"Expected images, \[channels.*Leave"),
        ("augmentation=crop_flip method=pate", "method=pate has its own"),
        ("averaging=ema method=pate", "method=pate has its own"),
        ("averaging=emma", "ema"),
        ("averaging=ema averaging.decay=1", r"averaging.decay in \[0, 1\)"),
        ("averaging=last averaging.share=0", r"averaging.share in \(0, 1\]"),
        ("averaging=ema averaging.dekay=1", "dekay"),
        ("averaging=ema averaging.decay=x", "decay of EMA to be float"),
        ("averaging=ema averaging.decay=null", "decay of EMA to be float"),
        ("augmentation=crop_flip augmentation.multiplicity=1000000000000", "smaller augmentation"),
    ],
)
def test_a_mistake_is_one_line(words, line, tmp_path):
    import dpexp

    said = f"method=dpsgd task=digits profile=embedded eps=8 epochs=0.3 results={tmp_path}"
    with pytest.raises(ConfigError, match=line) as refused:
        dpexp.run(*with_words(said.split(), words.split()))
    assert "\n" not in str(refused.value)


def test_no_config_without_it_is_another():
    config = cli.compose(["method=dpsgd", "task=digits"])
    assert not {"augmentation", "averaging"} & config.keys()
