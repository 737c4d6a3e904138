"""PATE's own loop: every stage of a run, in order."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from dpexp.data.task import fingerprint
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.methods.selection import all_parameters
from dpexp.pate.settings import PATE
from dpexp.pate.stages import EVALUATIONS, Answers, ask, teach, vote
from dpexp.pate.votes import NoisyVotes, build_votes
from dpexp.privacy import PrivacyError, verify
from dpexp.privacy.certificate import TEST_HALF, UNRELEASED, UNSAID
from dpexp.privacy.seeds import generator
from dpexp.records import NONFINITE, Ledger, Mark, Run, describe, read_mark
from dpexp.training import checkpoint
from dpexp.training.judging import evaluate, scores
from dpexp.training.ledger import OTHER_DATA, difference, read_ledger, surroundings_of
from dpexp.training.tracking import Progress, Tracker
from dpexp.training.train import Parts
from dpexp.types import ConfigError

log = logging.getLogger("dpexp")

TIMED_STEPS = 3
"""Of the student, in an estimate (ours)."""

NOT_BEGUN = -1
"""Step before the student's first evaluation."""


def train(config: dict, parts: Parts, ranks: Ranks) -> None:
    """Train teachers, ask them, train the student, and write the run's record.

    Answers are released once: they are kept, and a run that was killed goes on with its student.

    Args:
        config: the run's plain config.
        parts: built from it; `parts.method` is a PATE, `parts.model` the student.
        ranks: a single one.

    Raises:
        ConfigError: for a mistake in the config.
        PrivacyError: if the finished run does not hold what it claims.
    """
    memory.reset_peak(ranks.device)
    began = time.monotonic()
    pate = parts.method
    mechanism, queries, task = make_mechanism(config, parts, ranks)
    run = Run.open(config["results"], config)
    words = [config[group]["name"] for group in ("method", "model", "task")]
    sizes = {name: weight.numel() for name, weight in parts.model.named_parameters()}
    learnt = all_parameters(parts.model)
    trainable = {name: sizes[name] for name in learnt}
    frozen = {name: size for name, size in sizes.items() if name not in trainable}
    announce(mechanism, pate, trainable)
    with (
        Tracker(config, run.directory) as tracker,
        Progress(pate.teachers + pate.student_steps, " ".join(words)) as progress,
    ):

        def report(line: dict[str, Any]) -> None:
            line |= {"epsilon": mechanism.epsilon()["rdp"], "clip_fraction": None, "nonfinite": 0}
            run.log(line)
            tracker.log(line)
            progress.report(line)

        surroundings = surroundings_of(config, task.fingerprint, parts.model, ranks)
        votes, answers = released_once(
            run, pate, mechanism, task, queries, surroundings, ranks, progress
        )
        lessons = replace(queries.take(answers.answered), targets=answers.labels)
        unsaid = pate.teachers * len(votes) - int(votes.sum())
        log.info("%d queries asked, %d answered", answers.asked, len(lessons))
        last = teach(
            replace(parts, task=task),
            lessons,
            config["seed"],
            ranks.device,
            progress.advance,
            report,
        )
        certificate = mechanism.certificate(
            asked=votes[: answers.asked].numpy(),
            answered=votes[answers.answered].numpy(),
            draws=answers.draws,
            trainable=trainable,
            frozen=frozen,
            public=asked_of(config, parts),
            remarks=[
                UNRELEASED,
                *([UNSAID] * (unsaid > 0)),
                *([TEST_HALF] if pate.public == "test-half" else []),
            ],
        )
        verify(certificate)
        wall = time.monotonic() - began
        examples = pate.teachers * pate.teacher_steps * pate.teacher_batch
        examples += last["step"] * pate.student_batch
        said = {
            **{name: last[name] for name in (task.metric, NONFINITE)},
            "epochs": last["epoch"],
            "steps": last["step"],
            "weights_sha256": checkpoint.digest(parts.model.state_dict()),
            **judged(votes, answers, queries.targets),
            **({"pretrained_sha256": parts.pretrained} if parts.pretrained else {}),
            **({"unsaid_votes": unsaid} if unsaid else {}),
        }
        peak_mb = memory.peak_mb(ranks.device)
        result = describe(config, task, mechanism, ranks, said, wall, examples, peak_mb)
        each = scores(parts.model, task.test, ranks.device, task.score).each
        run.finish(result, certificate, right={task.metric: each.numpy() > 0})
        tracker.conclude(result)


def released_once(
    run: Run,
    pate: PATE,
    mechanism: NoisyVotes,
    task: Any,
    queries: Any,
    surroundings: dict[str, Any] | None,
    ranks: Ranks,
    progress: Progress,
) -> tuple[Tensor, Answers]:
    """Let teachers vote and answer, or read what they answered before the run was killed.

    Raises:
        ConfigError: if the data are not those of the answers.
        PrivacyError: if teachers have answered already, and their answers can neither be read nor
            be given again to the last bit.
    """
    of = {"run": run.id, **mechanism.identity()}
    saved = checkpoint.load(run.checkpoint_path) if run.status == "resume" else None
    if saved is not None:
        checkpoint.require(run.checkpoint_path, saved, of)
    if mechanism.noise == "secret":
        surroundings = None
    if saved is None:
        if mechanism.noise:
            refuse_other_answers(run, task.fingerprint, surroundings)
        if run.status == "resume":
            run.restart()
        votes = vote(pate, mechanism, task, queries, ranks.device, progress.advance)
        answers = ask(votes, mechanism)
        saved = {"of": of, "data": task.fingerprint, "votes": votes, "answers": vars(answers)}
        checkpoint.save(run.checkpoint_path, saved)
    elif saved["data"] != task.fingerprint:
        raise ConfigError(OTHER_DATA)
    else:
        surroundings = None  # what a ledger that was lost said of them is not known
        run.truncate_metrics(NOT_BEGUN)
        progress.start_from(pate.teachers)
        log.info("resumed with what the teachers had answered")
    if mechanism.noise and read_mark(run.directory) is None:
        asked = saved["answers"]["asked"]
        mark = Mark(task.fingerprint, asked, surroundings=surroundings, run=run.id)
        Ledger(run.directory, mark, is_durable=True).close()
    return saved["votes"], Answers(**saved["answers"])


def refuse_other_answers(run: Run, data: str, surroundings: dict[str, Any] | None) -> None:
    """Let teachers answer a second time only where they give the same answers to the last bit.

    Args:
        run: with noise, and without answers that can be read.
        data: fingerprint of the task's examples.
        surroundings: in which teachers would be trained; None if nothing can be repeated in them.

    Raises:
        ConfigError: if the data are not those of the answers.
        PrivacyError: if they have answered in other surroundings, or nobody knows whether.
    """
    mark = read_ledger(run, data, is_needed=False)
    if mark is not None and mark.taken_up(0, surroundings) != mark:
        why = difference(mark.surroundings, surroundings)
        raise PrivacyError(
            f"Expected budget left for {run.directory}; its teachers have answered, and their "
            f"answers can neither be read nor given again exactly ({why}). Set seed to begin "
            "another run, with another budget."
        )


def make_mechanism(config: dict, parts: Parts, ranks: Ranks) -> tuple[NoisyVotes, Any, Any]:
    """Freeze the mechanism, and choose what is asked.

    Returns:
        The mechanism, the queries in the order in which they are asked, and the task with the test
        set that is left.

    Raises:
        ConfigError: for what PATE cannot do, or a size that does not fit.
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
            "got one. Leave it out; python -m scripts.audit methods=pate audits it in two worlds."
        )
    if parts.analyses:
        raise ConfigError(
            "Expected no analysis with method=pate, which releases votes and no gradients; got "
            f"{', '.join(parts.analyses)}. Leave analysis out."
        )
    if ranks.size > 1:
        raise ConfigError(
            f"Expected one process with method=pate, which trains one teacher after the other; got "
            f"{ranks.size}. Set ranks=1."
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
    """Give the public examples, and the task with the test examples that are not among them.

    Raises:
        ConfigError: where PATE's teachers cannot learn the task, or it has no public set.
    """
    if len(task.input_shape) != 3 or task.train.targets.is_floating_point():
        raise ConfigError(
            f"Expected a task of images and classes with method=pate; got task={task.name}. "
            "Set another task or method."
        )
    if source == "task":
        return task.public, task
    # The same half for every run, so that all are judged by the same examples.
    order = torch.randperm(len(task.test), generator=generator(0, "test-half", 0))
    half = len(order) // 2
    return task.test.take(order[:half]), replace(task, test=task.test.take(order[half:]))


def asked_of(config: dict, parts: Parts) -> dict[str, Any]:
    """Name the public examples, of which the first queries are asked, and count them."""
    is_half = parts.method.public == "test-half"
    public, _ = split_public(parts.task, parts.method.public)
    return {
        "name": "test-half" if is_half else config["public"]["name"],
        "examples": len(public),
        "fingerprint": fingerprint(*public.tensors()),
    }


def announce(mechanism: NoisyVotes, pate: PATE, trainable: dict[str, int]) -> None:
    """Print what trains and what will be asked of whom, before the first teacher."""
    log.info("student, of public inputs alone: %s numbers", f"{sum(trainable.values()):,}")
    for name, size in trainable.items():
        log.info("  %-40s %12s", name, f"{size:,}")
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
    """Say how right teachers and answers were, in percent; diagnostics that no guarantee covers."""
    said = {"asked": answers.asked, "answered": len(answers.labels)}
    if (truth < 0).any():  # a public set without the task's labels
        return said
    right = votes.gather(1, truth[:, None]).sum() / votes.sum().clamp(min=1)
    said["teacher_accuracy"] = round(100 * float(right), 2)
    if len(answers.labels):
        answered = (answers.labels == truth[answers.answered]).double().mean()
        said["label_accuracy"] = round(100 * float(answered), 2)
    return said


def estimate(config: dict, parts: Parts, ranks: Ranks) -> tuple[float, float]:
    """Time one teacher, a few of the student's steps and an evaluation, and scale them to the run.

    Returns:
        Seconds for the run, and the peak memory in MB.
    """
    memory.reset_peak(ranks.device)
    pate, device = parts.method, ranks.device
    mechanism, queries, task = make_mechanism(config, parts, ranks)
    lessons = replace(queries, targets=torch.zeros_like(queries.targets))
    one = replace(parts, task=task, method=replace(pate, student_steps=TIMED_STEPS))
    vote(pate, mechanism, task, queries, device, lambda _: None, only=1)  # the first also waits
    times = [time.perf_counter()]
    vote(pate, mechanism, task, queries, device, lambda _: None, only=1)
    times.append(time.perf_counter())
    teach(one, lessons, 0, device, lambda _: None, lambda _: None, evaluations=1)
    times.append(time.perf_counter())
    evaluate(parts.model, task.test, device, task.score)
    times.append(time.perf_counter())
    teacher, student, evaluation = (b - a for a, b in pairwise(times))
    steps = max(0.0, student - evaluation) * pate.student_steps / TIMED_STEPS
    seconds = teacher * pate.teachers + steps + evaluation * EVALUATIONS
    return seconds, memory.peak_mb(device)
