"""PATE's loop: every stage of a run, in order."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpexp.data.examples import in_tensors
from dpexp.data.public import refuse_private
from dpexp.data.task import fingerprint
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample.freezing import trains
from dpexp.methods.selection import all_parameters
from dpexp.pate.answering import answered_once, open_ledger
from dpexp.pate.settings import PATE, settings_of
from dpexp.pate.stages import Answers, learn
from dpexp.pate.votes import NoisyVotes, build_votes
from dpexp.privacy import verify
from dpexp.privacy.certificate import (
    TEST_HALF,
    UNRELEASED,
    UNSAID,
    held_out,
    learnt_from_data,
)
from dpexp.privacy.seeds import generator
from dpexp.training.judging import judge
from dpexp.training.lifecycle import Lifecycle
from dpexp.training.numbers import check_checkpoint
from dpexp.training.optimizers import check_optimizer, set_rates
from dpexp.training.parts import Parts
from dpexp.training.run_logger import list_parameters
from dpexp.training.schedules import require_rates
from dpexp.training.train_state import TrainState
from dpexp.training.uncompiled import spare_tracer
from dpexp.types import ConfigError

log = logging.getLogger("dpexp")

EVALUATIONS = 5
"""Of the student, evenly spread (ours)."""


def train(config: dict, parts: Parts, ranks: Ranks) -> None:
    """Train teachers, ask them, train the student, and write the run's record.

    Answers are released once. They are saved, and a killed run continues with its student.

    Args:
        config: the run's plain config.
        parts: built from it; `parts.method` is a PATE, `parts.model` the student.
        ranks: a single one.

    Raises:
        ConfigError: for a mistake in the config.
        PrivacyError: if the finished run does not have the privacy that it claims.
    """
    check_checkpoint(config["checkpoint"])
    spare_tracer()
    memory.reset_peak(ranks.device)
    pate, model = settings_of(parts), parts.model
    mechanism, queries, task = make_mechanism(config, parts, ranks)
    given, parts = parts, replace(parts, task=task)
    sizes = {name: weight.numel() for name, weight in model.named_parameters()}
    trainable = {name: sizes[name] for name in all_parameters(model)}
    frozen = {name: size for name, size in sizes.items() if name not in trainable}
    weights = [weight for weight in model.parameters() if trains(weight)]
    optimizer = parts.make_optimizer(weights)
    check_optimizer(optimizer, weights=weights)
    rates = [group["lr"] for group in optimizer.param_groups]
    state = TrainState(model, optimizer, {}, task.fingerprint)
    steps = pate.teachers + pate.student_steps
    with Lifecycle(config, mechanism, state, ranks, steps, None, parts.pretrained) as run:
        announce(mechanism, pate, trainable)
        run.resume(partial(open_ledger, mechanism, task.fingerprint))
        votes, answers = answered_once(run, state, parts, mechanism, queries, ranks.device)
        log.info("%d queries asked, %d answered", answers.asked, len(answers.labels))
        lessons = replace(queries.take(answers.answered), targets=answers.labels)
        teach(run, state, parts, mechanism, lessons, rates, config["seed"], ranks.device)
        run.stop_if_asked()
        run.end_steps()
        unsaid = pate.teachers * len(votes) - int(votes.sum())
        certificate = mechanism.certificate(
            asked=votes[: answers.asked].numpy(),
            answered=votes[answers.answered].numpy(),
            draws=answers.draws,
            trainable=trainable,
            frozen=frozen,
            public=asked_of(config, given),
            remarks=[
                UNRELEASED,
                *([UNSAID] * (unsaid > 0)),
                *(word for word, holds in learnt_from_data(config).items() if holds),
                *([TEST_HALF] if pate.public == "test-half" else []),
            ],
        )
        if task.holdout is not None:
            certificate["holdout"] = held_out(task, config)
        verify(certificate)
        numbers = {
            "epochs": state.metrics[-1]["epoch"],
            "steps": state.step,
            **judged(votes, answers, queries.targets),
            **({"pretrained_sha256": parts.pretrained} if parts.pretrained else {}),
            **({"model_as_run": parts.notes} if parts.notes else {}),
            **({"unsaid_votes": unsaid} if unsaid else {}),
        }
        run.finish(task, certificate, numbers)


def teach(
    run: Lifecycle,
    state: TrainState,
    parts: Parts,
    mechanism: NoisyVotes,
    lessons: Any,
    rates: list[float],
    seed: int,
    device: torch.device,
) -> None:
    """Train the student on the labelled public inputs, from its current step.

    Args:
        run: records steps and evaluations.
        state: of the student.
        parts: task, model, settings and schedule.
        mechanism: its budget is stated beside every evaluation.
        lessons: public inputs with their released labels; without any the student stays untrained.
        rates: the optimizer's initial ones.
        seed: of the run.
        device: the student's.
    """
    pate = settings_of(parts)
    steps = pate.student_steps if len(lessons) else 0
    multiplier = require_rates(rates, parts.schedule, steps)
    due = {math.ceil(steps * k / EVALUATIONS) for k in range(1, EVALUATIONS + 1)}

    def evaluate_if_due() -> None:
        if state.step not in due or (state.metrics and state.judged_at == state.step):
            return
        values, right = judge(parts.model, parts.task, device, is_last=state.step == steps)
        line = {
            "step": state.step,
            "epoch": state.step * pate.student_batch / max(1, len(lessons)),
            "train_loss": state.loss / state.drawn if state.drawn else None,
            **values,
            "epsilon": mechanism.epsilon()["rdp"],
            "clip_fraction": None,
            "nonfinite": 0,
        }
        run.log_evaluation(line, values, right)
        run.after_evaluation()

    evaluate_if_due()
    while state.step < steps:
        set_rates(state.optimizer, rates, multiplier(state.step))
        state.loss += learn(
            parts, state.optimizer, lessons, seed, state.step, device, run.before_update
        )
        state.step += 1
        state.drawn += 1  # a batch, whose mean loss was added
        state.examples += pate.student_batch
        state.snapshot()
        run.count(pate.student_batch)
        evaluate_if_due()
        run.save_if_due()


def require_begin(config: dict, parts: Parts) -> None:
    """Refuse what a run would refuse as it begins; nothing is trained.

    Args:
        config: of the run.
        parts: built from it.

    Raises:
        ConfigError: for a mistake in the config.
    """
    settings_of(parts)
    make_mechanism(config, parts, Ranks(0, 1, torch.device("cpu")))


def make_mechanism(config: dict, parts: Parts, ranks: Ranks) -> tuple[NoisyVotes, Any, Any]:
    """Return the frozen mechanism, and the queries.

    Returns:
        The mechanism, the queries in order, and the task with the rest of the test set.

    Raises:
        ConfigError: for settings that PATE does not support, or a size out of range.
    """
    pate, privacy = parts.method, config["privacy"]
    if not isinstance(pate, PATE):
        raise ConfigError(
            f"Expected method=pate with loop=dpexp.pate; got method={config['method']['name']}. "
            "Leave loop out, or set method."
        )
    if parts.attack is not None:
        raise ConfigError(
            "Expected no attack or audit with method=pate, which releases votes and no gradients; "
            "got one. Leave it out; python -m scripts.audit methods=pate audits its votes."
        )
    if parts.analyses:
        raise ConfigError(
            "Expected no analysis with method=pate, which releases votes and no gradients; got "
            f"{', '.join(parts.analyses)}. Leave analysis out."
        )
    if ranks.size > 1:
        raise ConfigError(
            f"Expected one process with method=pate, which trains one teacher after the other; got "
            f"{ranks.size}. Set ranks=1, and start it without torchrun."
        )
    for name, only in (("clip", True), ("sampling", "poisson")):
        if privacy["noise"] and privacy[name] != only:
            raise ConfigError(
                f"Expected {name}={only} with method=pate, which clips and samples nothing; got "
                f"{name}={privacy[name]}. Leave {name} out."
            )
    if pate.teachers > config["task"]["dataset_size"]:
        raise ConfigError(
            f"Expected at most one teacher an example, {config['task']['dataset_size']}; got "
            f"method.teachers={pate.teachers}. Set method.teachers."
        )
    public, task = split_public(parts.task, pate.public)
    _refuse_private(public, task, pate.public)
    asked = min(pate.queries, len(public))
    mechanism = build_votes(
        privacy,
        dataset_size=config["task"]["dataset_size"],
        num_classes=task.num_classes,
        threshold=pate.threshold * pate.teachers,
        check_ratio=pate.check_ratio,
        max_checks=asked,
        max_answers=min(pate.answers, asked),
        seed=config["seed"],
    )
    order = torch.randperm(len(public), generator=generator(config["seed"], "queries", 0))
    return mechanism, public.take(order[:asked]), task


def split_public(task: Any, source: str) -> tuple[Any, Any]:
    """Return the public examples, and the task with the test examples that are not among them.

    Raises:
        ConfigError: if PATE's teachers cannot learn the task, or it has no public set.
    """
    if len(task.input_shape) != 3 or task.train.targets.is_floating_point():
        raise ConfigError(
            f"Expected a task of images and classes with method=pate; got task={task.name}. "
            "Set another task or method."
        )
    if source == "task":
        return task.public, task
    # The same half for every run, so that all are evaluated on the same examples.
    order = torch.randperm(len(task.test), generator=generator(0, "test-half", 0))
    half = len(order) // 2
    return task.test.take(order[:half]), replace(task, test=task.test.take(order[half:]))


def _refuse_private(public: Any, task: Any, source: str) -> None:
    """Refuse public examples that are training ones: teachers alone may see these.

    Raises:
        ConfigError: one of them is.
    """
    is_half = source == "test-half"
    refuse_private(
        task,
        in_tensors(public).inputs.cpu(),
        "the test set's public half" if is_half else "the task's public set",
        "Remove them from the test set, or set method.public=task and public to another set."
        if is_half
        else "Set public to another set.",
    )


def asked_of(config: dict, parts: Parts) -> dict[str, Any]:
    """Return a description of the public examples; the first ones are the queries."""
    source = settings_of(parts).public
    is_half = source == "test-half"
    public, _ = split_public(parts.task, source)
    return {
        "name": "test-half" if is_half else config["public"]["name"],
        "examples": len(public),
        "fingerprint": fingerprint(*public.tensors()),
    }


def announce(mechanism: NoisyVotes, pate: PATE, trainable: dict[str, int]) -> None:
    """Log the student, the teachers and the queries, before the first teacher."""
    list_parameters({"of the student, which learns from public inputs alone": trainable})
    log.info(
        "%d teachers; at most %d queries asked and %d answered; noise in votes: %.4g on answers, "
        "%.4g on checks against %.4g (%s)",
        pate.teachers,
        mechanism.max_checks,
        mechanism.max_answers,
        mechanism.noise_multiplier,
        mechanism.check_std,
        mechanism.threshold,
        "; ".join(mechanism.deviations) or "calibrated by rdp, whatever the votes",
    )


def judged(votes: Tensor, answers: Answers, truth: Tensor) -> dict[str, Any]:
    """Return the accuracy of teachers and answers in percent; not covered by the guarantee."""
    said: dict[str, Any] = {"asked": answers.asked, "answered": len(answers.labels)}
    if (truth < 0).any():  # a public set without the task's labels
        return said
    right = votes.gather(1, truth[:, None]).sum() / votes.sum().clamp(min=1)
    said["teacher_accuracy"] = round(100 * float(right), 2)
    if len(answers.labels):
        answered = (answers.labels == truth[answers.answered]).double().mean()
        said["label_accuracy"] = round(100 * float(answered), 2)
    return said
