"""The stages: teachers vote, noisy votes answer queries, a student learns the answers."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data import are_finite
from dpexp.distributed import memory
from dpexp.grad_sample.freezing import trains
from dpexp.pate.settings import PATE
from dpexp.pate.votes import CHECK, VOTES, NoisyVotes
from dpexp.privacy.privatize import add_noise_
from dpexp.privacy.seeds import generator, seed_default
from dpexp.training.judging import EVAL_BATCH, judge
from dpexp.training.optimizers import check_optimizer
from dpexp.training.schedules import require_rates
from dpexp.training.train import Parts, set_rates
from dpexp.types import ConfigError, Key, one_line

EVALUATIONS = 5
"""Of the student, evenly spread (ours)."""

Advance = Callable[[int], None]
"""Told how many examples went through a model."""


@dataclass(frozen=True)
class Answers:
    """What left the private data.

    Attributes:
        asked: how many queries were checked, the first ones.
        answered: which of them were answered, [m].
        labels: what was answered, [m].
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


def vote(
    pate: PATE,
    mechanism: NoisyVotes,
    task: Any,
    queries: Any,
    device: torch.device,
    advance: Advance,
    only: int | None = None,
) -> Tensor:
    """Train one teacher after the other and count what they say, [queries, classes]; private.

    A teacher that diverged says nothing, which moves a histogram by no more than another vote.

    Args:
        pate: the settings.
        mechanism: its root seeds what meets private data.
        task: its training examples are the private ones.
        queries: public examples.
        device: where teachers are trained.
        advance: told after each teacher how many examples went through it.
        only: so many of the teachers; None: all.
    """
    owner = assign(len(task.train), pate.teachers, mechanism.root)
    inputs = queries.batch(torch.arange(len(queries))).inputs.to(device)
    votes = torch.zeros(len(queries), task.num_classes, dtype=torch.float64)
    for number in range(pate.teachers if only is None else only):
        part = task.train.take(torch.nonzero(owner == number).flatten())
        teacher = train_teacher(pate, task, part, number, mechanism.root, device)
        said = predict(teacher, inputs).cpu()
        speaks = said >= 0
        votes[torch.nonzero(speaks).flatten(), said[speaks]] += 1
        advance(pate.teacher_steps * pate.teacher_batch)
    return votes


def train_teacher(
    pate: PATE, task: Any, part: Any, number: int, root: int, device: torch.device
) -> nn.Module:
    """Train one teacher on its part alone; without examples it stays as it was made."""
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
        descend(teacher, optimizer, task.loss, batch.inputs, batch.targets)
    return teacher


def _made(setting: str, maker: Any, kind: type, **given: Any) -> Any:
    """Make a teacher's part; what its settings are refused with is the user's to mend.

    Raises:
        ConfigError: if they are refused, or it is of another kind.
    """
    try:
        made = maker(**given)
    except (Exception, SystemExit) as error:  # as many ways as there are networks and optimizers
        if isinstance(error, ConfigError) or memory.ran_out(error):
            raise
        reason = f"{type(error).__name__}: {one_line(error)}"
        raise ConfigError(f"method.{setting} refuses its settings: {reason}") from error
    if not isinstance(made, kind):
        raise ConfigError(
            f"Expected method.{setting} to make a torch {kind.__name__}; it makes one of "
            f"type {type(made).__name__}. Set method.{setting}._target_."
        )
    return made


def descend(
    model: nn.Module, optimizer: Any, loss: Callable, inputs: Tensor, targets: Tensor
) -> float:
    """Take one ordinary step on a batch; give its mean loss."""
    optimizer.zero_grad()
    mean = loss(model(inputs), targets) / len(targets)
    mean.backward()
    optimizer.step()
    return float(mean.detach())


@torch.no_grad()
def predict(model: nn.Module, inputs: Tensor) -> Tensor:
    """Give each input's class, [n], in eval mode; -1 where the output is not finite."""
    model.eval()

    def chosen(outputs: Tensor) -> Tensor:
        return torch.where(are_finite(outputs), outputs.argmax(1), -1)

    def said(size: int) -> Tensor:
        return torch.cat([chosen(model(some)) for some in inputs.split(size)])

    return memory.halving(said, EVAL_BATCH, "queries at once")[0]


def ask(votes: Tensor, mechanism: NoisyVotes) -> Answers:
    """Check and answer one query after the other, until either cap is reached (Algorithm 1).

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

    asked, answered, labels = 0, [], []
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


def teach(
    parts: Parts,
    lessons: Any,
    seed: int,
    device: torch.device,
    advance: Advance,
    report: Callable[[dict[str, Any]], None],
    evaluations: int = EVALUATIONS,
) -> dict[str, Any]:
    """Train the student on the labelled public inputs; give its last evaluation.

    Args:
        parts: task, model, optimizer and schedule.
        lessons: public inputs with the labels that were answered; none leave the student as it is.
        seed: of the run.
        device: the student's.
        advance: told after each step how many examples went through the student.
        report: takes every evaluation.
        evaluations: how many, evenly spread.
    """
    model, task, pate = parts.model, parts.task, parts.method
    seed_default(seed, "student/masks", 0)
    optimizer = parts.make_optimizer([weight for weight in model.parameters() if trains(weight)])
    check_optimizer(optimizer)
    rates = [group["lr"] for group in optimizer.param_groups]
    steps = pate.student_steps if len(lessons) else 0
    require_rates(rates, parts.schedule, steps)
    due = {math.ceil(steps * k / evaluations) for k in range(1, evaluations + 1)}
    line: dict[str, Any] = {}
    losses: list[float] = []
    for step in range(steps + 1):
        if step in due:
            line = {
                "step": step,
                "epoch": step * pate.student_batch / max(1, len(lessons)),
                "train_loss": sum(losses) / len(losses) if losses else None,
                **judge(model, task, device)[0],
            }
            losses = []
            report(line)
        if step < steps:
            set_rates(optimizer, rates, parts.schedule(step, steps))
            gen = generator(seed, "student", step)
            some = torch.randint(len(lessons), (pate.student_batch,), generator=gen)
            batch = lessons.batch(some).to(device)
            losses.append(descend(model, optimizer, task.loss, batch.inputs, batch.targets))
            advance(len(batch))
    return line
