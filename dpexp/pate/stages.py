"""The stages: teachers vote, noisy votes answer queries, a student learns the answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data import are_finite
from dpexp.distributed import memory
from dpexp.kernels import fast_kernels
from dpexp.pate.settings import PATE, settings_of
from dpexp.pate.votes import CHECK, VOTES, NoisyVotes
from dpexp.privacy.noise import add_noise_
from dpexp.privacy.seeds import generator, seed_default
from dpexp.training.judging import EVAL_BATCH
from dpexp.training.optimizers import check_optimizer
from dpexp.training.parts import Parts
from dpexp.training.uncompiled import take_step
from dpexp.types import Batch, ConfigError, Key, one_line


@dataclass(frozen=True)
class Answers:
    """The released answers.

    Attributes:
        asked: number of queries checked, from the first on.
        answered: indices of the answered queries, [m].
        labels: their answers, [m].
        draws: how often noise was drawn, by release.
    """

    asked: int
    answered: Tensor
    labels: Tensor
    draws: dict[str, int]


def assign(num_examples: int, teachers: int, root: int) -> Tensor:
    """Draw each example's teacher, [n], independently of all other examples."""
    gen = generator(root, "teachers", 0)
    return torch.randint(teachers, (num_examples,), generator=gen)


def ballots(
    pate: PATE,
    mechanism: NoisyVotes,
    task: Any,
    queries: Any,
    device: torch.device,
    numbers: Iterable[int],
) -> Iterator[Tensor]:
    """Train one teacher after the other and yield its ballot, [queries, classes]; not private.

    A ballot has a one for each query, in the class that the teacher predicts. A diverged teacher
    casts no vote, which changes a histogram by no more than another vote.

    Args:
        pate: the settings.
        mechanism: its root seeds what meets private data.
        task: its training examples are the private ones.
        queries: public examples.
        device: where teachers are trained.
        numbers: which teachers, each in [0, pate.teachers).
    """
    owner = assign(len(task.train), pate.teachers, mechanism.root)
    inputs = queries.batch(torch.arange(len(queries))).inputs.to(device)
    for number in numbers:
        part = task.train.take(torch.nonzero(owner == number).flatten())
        teacher = train_teacher(pate, task, part, number, mechanism.root, device)
        said = predict(teacher, inputs).cpu()
        ballot = torch.zeros(len(queries), task.num_classes, dtype=torch.float64)
        speaks = said >= 0
        ballot[torch.nonzero(speaks).flatten(), said[speaks]] = 1
        yield ballot


def train_teacher(
    pate: PATE, task: Any, part: Any, number: int, root: int, device: torch.device
) -> nn.Module:
    """Train one teacher on its part alone; without examples it stays untrained."""
    seed_default(root, "teacher/weights", number)  # and masks
    channels, *size = task.input_shape
    fitted = {"in_channels": channels, "num_classes": task.num_classes, "image_size": size}
    teacher = _made("teacher", pate.teacher, nn.Module, **fitted).to(device)
    of = torch.optim.Optimizer
    optimizer = _made("teacher_optimizer", pate.teacher_optimizer, of, params=teacher.parameters())
    check_optimizer(optimizer, "method.teacher_optimizer")
    gen = generator(root, "teacher", number)
    for _ in range(pate.teacher_steps if len(part) else 0):
        some = torch.randint(len(part), (pate.teacher_batch,), generator=gen)
        batch = part.batch(some).to(device)
        descend(teacher, optimizer, task.loss, batch)
    return teacher


def _made(setting: str, maker: Any, kind: type, **given: Any) -> Any:
    """Return a teacher's network or optimizer.

    Raises:
        ConfigError: if its constructor fails, or returns another type.
    """
    try:
        made = maker(**given)
    except (Exception, SystemExit) as error:  # any constructor may fail in its own way
        if memory.ran_out(error):
            raise
        if isinstance(error, ConfigError):  # which names the settings of a run's own network
            own = re.sub(r"\bmodel\.(?=\w)", f"method.{setting}.", str(error))
            raise ConfigError(own) from error
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f"method.{setting} refuses its settings: {reason}") from error
    if not isinstance(made, kind):
        raise ConfigError(
            f"Expected method.{setting} to make a torch {kind.__name__}; it makes one of "
            f"type {type(made).__name__}. Set method.{setting}._target_."
        )
    return made


@fast_kernels()
def descend(
    model: nn.Module,
    optimizer: Any,
    loss: Callable,
    batch: Batch,
    before_update: Callable[[], None] = lambda: None,
) -> float:
    """Take one ordinary step on a batch and return its mean loss."""
    optimizer.zero_grad()
    mean = loss(model(batch.inputs), batch.targets) / len(batch)
    mean.backward()
    before_update()
    take_step(optimizer)
    return float(mean.detach())


@torch.no_grad()
@fast_kernels()
def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    """Return each input's predicted class, [n], in eval mode; -1 if the output is not finite."""
    model.eval()

    def chosen(outputs: Tensor) -> Tensor:
        return torch.where(are_finite(outputs), outputs.argmax(1), -1)

    def said(size: int) -> Tensor:
        return torch.cat([chosen(model(some)) for some in inputs.split(size)])

    return memory.halving(said, EVAL_BATCH, "queries at once")[0]


def ask(votes: Tensor, mechanism: NoisyVotes) -> Answers:
    """Return the noisy answers, query by query until either cap is reached (Algorithm 1).

    Args:
        votes: histograms [queries, classes], float64.
        mechanism: its caps, threshold and noise.
    """
    draws = {CHECK: 0, VOTES: 0}

    def noisy(release: str, values: Tensor, query: int) -> Tensor:
        if not mechanism.noise:
            return values
        draws[release] += 1
        told, gen = values.clone(), mechanism.noise_generator(release, query)
        sums = {Key(release, "query"): told}
        add_noise_(sums, mechanism.releases, mechanism.noise_multiplier, gen)
        return told

    asked = 0
    answered: list[int] = []
    labels: list[int] = []
    for query, histogram in enumerate(votes[: mechanism.max_checks]):
        if len(answered) == mechanism.max_answers:
            break
        asked += 1
        if float(noisy(CHECK, histogram.max(), query)) < mechanism.threshold:
            continue
        answered.append(query)
        labels.append(int(noisy(VOTES, histogram, query).argmax()))
    chosen, given = (torch.tensor(column, dtype=torch.int64) for column in (answered, labels))
    return Answers(asked, chosen, given, draws)


def learn(
    parts: Parts,
    optimizer: torch.optim.Optimizer,
    lessons: Any,
    seed: int,
    step: int,
    device: torch.device,
    before_update: Callable[[], None] = lambda: None,
) -> float:
    """Take one of the student's steps on labelled public inputs and return its mean loss.

    Args:
        parts: task, model and settings.
        optimizer: of the model.
        lessons: public inputs with their released labels, one or more.
        seed: of the run.
        step: from 0; its examples and masks depend on nothing else.
        device: the student's.
        before_update: called before weights change.
    """
    seed_default(seed, "student/masks", step)
    gen = generator(seed, "student", step)
    some = torch.randint(len(lessons), (settings_of(parts).student_batch,), generator=gen)
    batch = lessons.batch(some).to(device)
    return descend(parts.model, optimizer, parts.task.loss, batch, before_update)
