"""Release the teachers' answers once, however often the run is killed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from dpexp.pate.settings import settings_of
from dpexp.pate.stages import Answers, ask, ballots
from dpexp.pate.votes import NoisyVotes
from dpexp.privacy import PrivacyError
from dpexp.records import DiffersError, Ledger, Mark, Run, read_mark
from dpexp.training.ledger import difference, read_ledger
from dpexp.training.lifecycle import Lifecycle, OwnCode, Resumed
from dpexp.training.parts import Parts
from dpexp.training.states import mapped
from dpexp.training.train_state import TrainState


def open_ledger(
    mechanism: NoisyVotes,
    data: str,
    run: Run,
    position: Mapping[str, Any],
    surroundings: dict[str, Any] | None,
    own_code: OwnCode,
) -> Resumed:
    """Open the run's budget ledger, which counts queries asked.

    Teachers answer a second time only if their answers are the same bit for bit.

    Args:
        mechanism: what it claims.
        data: fingerprint of the task's examples.
        run: begun, or to be gone on with.
        position: of its checkpoint; {} without one.
        surroundings: in which teachers would be trained; None if nothing can be repeated in them.
        own_code: hashes of the user's code that is to run.

    Raises:
        ConfigError: if the data or the user's code are not those of the answers.
        PrivacyError: if they have answered, and their answers can neither be read nor given again.
    """
    step = position.get("step", 0)
    if not mechanism.noise:
        return Resumed(None, step)
    if mechanism.noise == "secret":
        surroundings = None
    if "answers" in position.get("state", {}):
        # A lost ledger's surroundings are unknown.
        told = read_mark(run.directory) or Mark(data, 0, run=run.id, own_code=own_code)
        return Resumed(Ledger(run.directory, told, is_durable=True), step)
    mark = read_ledger(run, data, own_code, is_needed=False)
    if mark is None or not mark.steps:
        mark = Mark(data, 0, surroundings=surroundings, run=run.id, own_code=own_code)
    elif mark.resumed(0, surroundings) != mark:
        why = difference(mark.surroundings, surroundings)
        raise PrivacyError(
            f"Expected budget left for {run.directory}; its teachers have answered, and their "
            f"answers can neither be read nor given again exactly ({why}). Set seed to begin "
            "another run, with another budget."
        )
    return Resumed(Ledger(run.directory, mark, is_durable=True), step)


def answered_once(
    run: Lifecycle,
    state: TrainState,
    parts: Parts,
    mechanism: NoisyVotes,
    queries: Any,
    device: torch.device,
) -> tuple[Tensor, Answers]:
    """Return the teachers' votes and answers, new or saved before the run was killed.

    Returns:
        The votes, which are private, and the answers.
    """
    pate, kept = settings_of(parts), mapped(_on_cpu, state.method_state)
    if "answers" in kept:
        answers = Answers(**kept["answers"])
        run.note(answers.asked)
        run.start_from(pate.teachers + state.step)
        return kept["votes"], answers
    # In other surroundings, or with another secret, an example could get a second teacher.
    here = None if mechanism.noise == "secret" else run.surroundings
    if here is None or kept.get("surroundings") != here:
        kept = {"votes": torch.zeros(len(queries), parts.task.num_classes, dtype=torch.float64)}
        kept |= {"teachers": 0, "surroundings": here}
        state.examples = 0
    run.start_from(kept["teachers"])
    numbers = range(kept["teachers"], pate.teachers)
    examples = pate.teacher_steps * pate.teacher_batch
    for ballot in ballots(pate, mechanism, parts.task, queries, device, numbers):
        kept = {**kept, "votes": kept["votes"] + ballot, "teachers": kept["teachers"] + 1}
        state.method_state = kept
        state.examples += examples
        state.snapshot()
        run.count(examples)
        run.save_if_due()
    answers = ask(kept["votes"], mechanism)
    try:
        run.note_release([answers.answered, answers.labels])
    except DiffersError:
        raise PrivacyError(
            "The teachers answered before the run was killed, and now answer otherwise: their "
            "network, the loss or other code reads something that differs, or the machine adds in "
            "another order. Nothing was answered again. Set seed to begin another run, with "
            "another budget."
        ) from None
    state.method_state = {**kept, "answers": vars(answers)}
    state.noise_draws = sum(answers.draws.values())
    state.snapshot()
    run.save()  # before anything of them leaves
    run.note(answers.asked)
    return kept["votes"], answers


def _on_cpu(leaf: Any) -> Any:
    return leaf.cpu() if isinstance(leaf, Tensor) else leaf
