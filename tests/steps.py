"""Single private steps that tests take: a composed setting's, or a small random network's."""

from copy import deepcopy
from dataclasses import replace
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

from dpexp import cli
from dpexp.cli import folders
from dpexp.data import Examples
from dpexp.distributed.ranks import Ranks
from dpexp.methods.rgp import RGP
from dpexp.privacy import whole_batch
from dpexp.training.gradient import PrivateGradient
from dpexp.training.train import make_mechanism
from dpexp.types import Batch
from tests.contract.cases import FOLDERS, case
from tests.runs import Watched

CPU = torch.device("cpu")
ALONE = Ranks(0, 1, CPU)
PRIVATE = ["noise=true", "clip=true", "eps=8"]


def composed(method, *words):
    """Return a config of one's own; a setting that many tests take is composed once for all."""
    base = ["task=digits", "profile=embedded", "batch_size=40", *PRIVATE]
    own = folders.searchpath(FOLDERS)
    return deepcopy(_composed((*own, f"method={method}", *base, *case(method).few, *words)))


@cache
def _composed(words):
    return cli.compose(words)


class Wide:
    """Examples in float64."""

    def __init__(self, examples):
        self.examples = examples

    def __len__(self):
        return len(self.examples)

    def batch(self, indices):
        batch = self.examples.batch(indices)
        return Batch(batch.inputs.double(), batch.targets)

    def micro_batches(self, indices, size):
        return self.examples.micro_batches(indices, size)


class Setting:
    """A composed config's parts, and steps with them."""

    def __init__(self, config, dtype=torch.float32):
        self.parts = cli.build_parts(config, CPU)
        self.model = self.parts.model.to(dtype)
        self.method = Watched(self.parts.method)
        self.state = self.method.start(self.model)
        self.mechanism = make_mechanism(
            config, self.parts.task.dataset_size, self.method, self.state, ALONE
        )
        train, public = self.parts.task.train, self.parts.task.public
        self.examples = train if dtype == torch.float32 else Wide(train)
        self.public = public if public is None or dtype == torch.float32 else Wide(public)

    def step(self, step=0, micro_batch=40, state=None, **changes):
        mechanism = replace(self.mechanism, **changes)
        with PrivateGradient(
            self.model, self.method, mechanism, ALONE, micro_batch, self.public
        ) as gradient:
            return gradient(self.state if state is None else state, self.examples, step)

    def find_step(self, fits):
        return next(step for step in range(5000) if fits(len(self.mechanism.sample(step))))


def cramp(model, most, *, at_end=True):
    """Let a model run out of memory above so many examples: in forward, or where backward ends."""

    def ask(num):
        if num > most:
            raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {num} B. GPU 0")

    def hook(layer, args, output):
        if at_end and torch.is_grad_enabled():
            output.requires_grad_()  # as the tape does where nothing before is trained
            output.register_hook(lambda gradient: ask(len(gradient)))
        else:
            ask(len(output))

    first = next(layer for layer in model.modules() if not list(layer.children()))
    return first.register_forward_hook(hook)


def flat(blocks):
    return torch.cat([block.flatten() for block in blocks.values()])


def distance(a, b):
    return float(torch.linalg.vector_norm(flat(a) - flat(b)) / torch.linalg.vector_norm(flat(b)))


class RandomNet(nn.Module):
    """A convolution, perhaps grouped, a hidden layer with bias, and a head."""

    def __init__(self, channels, groups, hidden, classes):
        super().__init__()
        self.conv = nn.Conv2d(channels, 2 * groups, 3, padding=1, groups=groups)
        self.norm = nn.GroupNorm(groups, 2 * groups)
        self.hidden = nn.Linear(2 * groups * 16, hidden)
        self.head = nn.Linear(hidden, classes)
        self.double()

    def forward(self, x):
        return self.head(F.relu(self.hidden(F.relu(self.norm(self.conv(x))).flatten(1))))


def rgp(rank, **options):
    defaults = {"carriers": "both", "power_iterations": 1, "warm_up_steps": 0, "residual": True}
    defaults["decompose"] = "update"
    return RGP(rank, **{**defaults, "head_factor": 0.01, "head": "head", **options})


def sums_of(model, method, x, y, clip_norm, micro_batch, public=None):
    """Release the clipped sums over all the given examples, in the model's precision, no noise."""
    state = method.start(model)
    watched = Watched(method)
    mechanism = whole_batch(len(y), method.releases(state, clip_norm))
    public = None if public is None else Wide(public)
    examples = Examples(x, y)
    if next(model.parameters()).dtype == torch.float64:
        examples = Wide(examples)
    with PrivateGradient(model, watched, mechanism, ALONE, micro_batch, public) as gradient:
        outcome = gradient(state, examples, 0)
    assert outcome.examples == len(y)
    return {key: block * len(y) for key, block in watched.released.items()}, outcome
