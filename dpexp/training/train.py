"""The training loop: every stage of a run, in order."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.data.task import fingerprint
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample.freezing import trains
from dpexp.grad_sample.hooking import hooked_layers, mark_untried
from dpexp.grad_sample.reading import is_read
from dpexp.models.mode import in_mode
from dpexp.privacy import Mechanism, build, num_steps, require_room, size_of_release, verify
from dpexp.privacy.certificate import (
    JUDGED_ON_TRAINING,
    held_out,
    is_judged_on_training,
    learnt_from_data,
)
from dpexp.privacy.clipping import require_groups
from dpexp.privacy.correlation import Banded
from dpexp.privacy.privatize import FLAT, require_full_precision, require_norms
from dpexp.records import ANALYSIS, SCORES, Run
from dpexp.training.averaging import Averaged
from dpexp.training.callbacks import call_back
from dpexp.training.gradient import PrivateGradient
from dpexp.training.judging import judge
from dpexp.training.ledger import open_ledger
from dpexp.training.lifecycle import Lifecycle, OwnCode, Resumed
from dpexp.training.micro_batch import MicroBatch
from dpexp.training.numbers import check_checkpoint, check_numbers
from dpexp.training.observation import Observers
from dpexp.training.optimizers import check_optimizer, check_size, set_rates
from dpexp.training.parts import Findings, Parts
from dpexp.training.probing import check_examples, check_loss, check_model, check_rule, check_views
from dpexp.training.returned import checked_declaration, checked_shapes, checked_state
from dpexp.training.run_logger import announce, metrics_line
from dpexp.training.schedules import require_rates
from dpexp.training.train_state import TrainState
from dpexp.training.uncompiled import spare_tracer, take_step
from dpexp.types import ConfigError, Method, State, first_weight
from dpexp.warned import told_if_long

log = logging.getLogger("dpexp")

BY_MODEL = "requires_grad=False, by the model or by method.freeze"
"""Why what its author froze stays frozen."""


def train(config: dict, parts: Parts, ranks: Ranks) -> None:
    """Train a model within its budget and write the run's record.

    Args:
        config: the run's plain config (conf/config.yaml).
        parts: built from it.
        ranks: that share the run; only rank 0 writes.

    Raises:
        ConfigError: for a mistake in the config.
        PrivacyError: if the finished run does not have the privacy that it claims.
    """
    check_checkpoint(config["checkpoint"])
    spare_tracer()
    memory.reset_peak(ranks.device)
    attack = parts.attack
    if attack is not None:
        parts = attack.stage(parts, config["seed"])
    model, method, task = parts.model, parts.method, parts.task
    unchecked = first_look(parts, ranks.device)  # report first what cannot be trained
    start = checked_state(method.start(model), "start")
    mechanism = make_mechanism(config, task.dataset_size, method, start, ranks, parts.correlation)
    begin = getattr(attack, "begin", None)
    if mechanism.correlation is not None and begin is not None:
        begin(parts, mechanism)
        start = method.start(model)
    require_full_precision(model)
    require_room(mechanism, first_weight(model).dtype, config)
    require_norms(parts.clipping, mechanism.releases)
    if parts.clipping != FLAT:
        by_name = {release.name: release for release in mechanism.releases}
        shapes = checked_shapes(method.release_shapes(start))
        require_groups(parts.clipping, shapes, by_name)
    trainable, frozen = named_parameters(model, method)
    weights = [parameter for name, parameter in model.named_parameters() if name in trainable]
    optimizer = parts.make_optimizer(weights)
    check_optimizer(optimizer, weights=weights)
    check_size(optimizer, size_of_release(mechanism), first_weight(model).dtype)
    rates = [group["lr"] for group in optimizer.param_groups]
    steps = mechanism.num_steps
    multiplier = require_rates(rates, parts.schedule, steps)
    averaged = None
    if parts.averaging is not None:
        averaged = Averaged(model, parts.averaging, steps)
    state = TrainState(model, optimizer, start, task.fingerprint, averaged)
    spent = mechanism.epsilon
    with Lifecycle(config, mechanism, state, ranks, steps, spent, parts.pretrained) as run:
        if ranks.is_first:
            announce(mechanism, trainable, frozen, why_frozen(model, method, frozen))
        examples = on_device(task.train, ranks.device)
        sizes = MicroBatch(config, parts, start, mechanism, ranks)

        def settle(
            directory: Run, before: Mapping, surroundings: dict | None, own_code: OwnCode
        ) -> Resumed:
            size = sizes.settle(before.get("micro_batch", 0), examples)
            if surroundings is not None:
                surroundings = {**surroundings, "micro_batch": size}
            saved = before.get("step"), state.data, surroundings, own_code, before.get("starts", "")
            return Resumed(*open_ledger(directory, mechanism, *saved), size)

        run.resume(settle)
        due = evaluations(config, mechanism)
        with PrivateGradient(
            model,
            method,
            mechanism,
            ranks,
            state.micro_batch,
            task.public,
            task.loss,
            parts.augmentation,
            parts.clipping,
        ) as gradient:
            observers = Observers(
                parts.analyses, task, model, method, examples, gradient, mechanism, ranks
            )
            if state.step == 0:
                observers.observe(state)
                run.after_evaluation()

            def evaluate_if_due() -> None:
                if state.step in due and state.judged_at < state.step:
                    values, right = judge(
                        state.final_model, task, ranks.device, is_last=state.step == steps
                    )
                    line = metrics_line(state, mechanism, values)
                    run.log_evaluation(line, values, right)
                    observers.observe(state)
                    run.after_evaluation()
                    if ranks.is_first:
                        call_back(parts, state, line)

            evaluate_if_due()  # lost steps did not change the weights
            while state.step < steps:
                set_rates(optimizer, rates, multiplier(state.step))
                run.note(state.step + 1)
                outcome = gradient(
                    state.method_state,
                    examples,
                    state.step,
                    run.is_asked_to_stop,
                    run.rule_out_repeating,
                    run.show_part,
                    state.past_noise,
                    run.note_release,
                )
                run.before_update()
                update(model, optimizer, outcome.gradients)
                if averaged is not None:
                    averaged.add(model, state.step)
                if outcome.has_halved:
                    sizes.lower(outcome.micro_batch)
                run.after_step(outcome)
                evaluate_if_due()
                # Needed if killed before the record is complete, by runs that cannot repeat steps.
                is_last = state.step == steps
                run.save_if_due(is_needed=is_last and not run.can_repeat)
            run.stop_if_asked()
            run.end_steps()
        deviations = [word for word, holds in learnt_from_data(config).items() if holds]
        if is_judged_on_training(config) or task.test is task.train:  # as a task of one's own may
            deviations += [JUDGED_ON_TRAINING]
        deviations += ([] if unchecked is None else [unchecked]) + observers.deviations
        findings = Findings({}, {})
        if attack is not None:
            deviations.append(attack.deviation)
            parts = replace(parts, model=state.final_model)
            findings = attack.report(parts, state.method_state, mechanism, ranks.device)
        certificate = certify(config, parts, mechanism, state, deviations)
        numbers = {**findings.numbers, **observers.numbers(state), "micro_batch": state.micro_batch}
        started = {"pretrained_sha256": parts.pretrained, "model_as_run": parts.notes}
        numbers |= {key: value for key, value in started.items() if value}
        numbers |= {"epochs": config["epochs"], "steps": state.step}
        files = {SCORES: findings.arrays, ANALYSIS: observers.arrays(state)}
        final = method.merged(state.final_model)
        run.finish(task, certificate, numbers, files, final)
        if parts.takes_model is not None:
            parts.takes_model(final)


def evaluations(config: dict, mechanism: Mechanism) -> set[int]:
    """Return the steps after which the model is evaluated, the last one included."""
    per_epoch = mechanism.dataset_size / mechanism.batch_size
    every = max(1, round(config["eval_every"] * per_epoch))
    return {*range(every, mechanism.num_steps, every), mechanism.num_steps}


def first_look(parts: Parts, device: torch.device) -> str | None:
    """Check model, loss, augmentation and clipping rule before the first step, on made-up examples.

    Examples themselves are read where their set is of anyone's own making.

    Returns:
        A deviation for the certificate if the model cannot be checked; otherwise None.

    Raises:
        ConfigError: naming a layer that cannot be trained, or what mixes examples.
    """
    require_full_precision(parts.model)  # what is complex or half has no gradients to compare
    trained = parts.method.trainable(parts.model)
    check_examples(parts.task.train)
    check_loss(parts.task, parts.model, device)
    unchecked = None
    # Steps leave a model in its mode, which may be eval; losses alone are taken in eval mode.
    mode = parts.model.training
    for is_training in dict.fromkeys((mode, mode and not parts.method.is_forward_only)):
        with in_mode(parts.model, is_training=is_training):
            with told_if_long("trying the network on made-up examples, before the first step"):
                found = check_model(
                    parts.model,
                    trained,
                    parts.task,
                    device,
                    is_forward_only=parts.method.is_forward_only,
                )
                unchecked = found or unchecked
    if unchecked is not None:
        mark_untried(parts.model)
    for name, hooked in hooked_layers(parts.model, trained).items():
        is_known = hooked.has_rule or is_read(hooked.module)
        if not (is_known or parts.method.is_forward_only):
            log.info(
                "%s: no rule for a %s; its per-example gradients are taken by torch.func, as exact "
                "and slower",
                name or "the model itself",
                type(hooked.module).__name__,
            )
    if not type(parts.clipping).__module__.startswith("dpexp."):  # the suite's own are tested
        check_rule(parts.clipping)
    if parts.augmentation is not None:
        check_views(parts.augmentation, parts.task, parts.model, device)
    memory.reset_peak(device)  # the check does not count
    return unchecked


def certify(
    config: dict, parts: Parts, mechanism: Mechanism, state: TrainState, deviations: Sequence[str]
) -> dict[str, Any]:
    """Return a finished run's certificate, after verifying it.

    Args:
        config: the run's.
        parts: as trained.
        mechanism: of the run.
        state: after the last step.
        deviations: further deviations from the claim.

    Raises:
        PrivacyError: if the run does not have the privacy that it claims.
    """
    trainable, frozen = named_parameters(parts.model, parts.method)
    certificate = mechanism.certificate(
        steps=state.step,
        noise_draws=state.noise_draws,
        lost_steps=state.lost_steps,
        trainable=trainable,
        frozen=frozen,
        deviations=deviations,
    )
    if why := why_frozen(parts.model, parts.method, frozen):
        certificate["why_frozen"] = why
    if not state.lost_steps:  # remarks need every step's state
        certificate |= parts.method.remarks(state.method_state, mechanism.epsilon_at)
    if parts.task.public is not None:
        certificate["public"] = describe_public(config, parts.task.public)
    if parts.task.holdout is not None:
        certificate["holdout"] = held_out(parts.task, config)
    verify(certificate)
    return certificate


def make_mechanism(
    config: dict,
    size: int,
    method: Method,
    state: State,
    ranks: Ranks,
    correlation: Banded | None = None,
) -> Mechanism:
    """Return the frozen mechanism for a config and the releases of its method.

    Args:
        config: the run's.
        size: the declared N of its training set.
        method: declares the releases.
        state: before the first step.
        ranks: that share the run.
        correlation: of its noise across steps; None: it is fresh at every step.

    Raises:
        ConfigError: for an invalid budget, size or name.
    """
    if correlation is not None and not method.is_in_fixed_coordinates:
        raise ConfigError(
            "Expected a method whose releases mean the same at every step beside noise=correlated; "
            f"those of method={config['method']['name']} are in bases or masks that move. Set "
            "method=dpsgd or dp_lora, or leave noise out."
        )
    privacy, batch = config["privacy"], config["batch_size"]
    check_numbers(config)
    mechanism = None
    if ranks.is_first:  # calibrated once, and with one secret
        mechanism = build(
            privacy,
            dataset_size=size,
            batch_size=batch,
            num_steps=num_steps(config["epochs"], size, batch, privacy["sampling"]),
            releases=checked_declaration(method.releases(state, privacy["clip_norm"])),
            seed=config["seed"],
            correlation=correlation,
        )
    return ranks.from_first(mechanism)


def named_parameters(model: nn.Module, method: Method) -> tuple[dict[str, int], dict[str, int]]:
    """Return the trainable and the frozen parameters, as name to number of entries."""
    wanted = set(method.trainable(model))
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    trainable = {name: size for name, size in sizes.items() if name in wanted}
    frozen = {name: size for name, size in sizes.items() if name not in wanted}
    return trainable, frozen


def why_frozen(model: nn.Module, method: Method, frozen: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of frozen parameters by why they are frozen.

    Args:
        model: as the method trains it.
        method: of the run.
        frozen: names, as `named_parameters` gives them.
    """
    found: dict[str, list[str]] = {}
    for name in frozen:
        is_ours = trains(model.get_parameter(name))
        found.setdefault(method.why_frozen(model, name) if is_ours else BY_MODEL, []).append(name)
    return found


def update(
    model: nn.Module, optimizer: torch.optim.Optimizer, gradients: dict[str, Tensor]
) -> None:
    """Take the optimizer's step along reconstructed gradients, and empty `gradients`.

    They are as large as the model, and the next step's activations need the memory.
    """
    parameters = dict(model.named_parameters())
    while gradients:
        name, gradient = gradients.popitem()
        parameters[name].grad = gradient
    take_step(optimizer)
    optimizer.zero_grad()


def describe_public(config: dict, examples: Any) -> dict[str, Any]:
    """Return a description of the public examples that method, analysis or warm start used."""
    return {
        "name": config["public"]["name"],
        "examples": len(examples),
        "fingerprint": fingerprint(*examples.tensors()),
    }


def on_device(examples: Any, device: torch.device) -> Any:
    """Return a training set on the model's device if it fits in half of the free memory."""
    if device.type != "cuda":
        return examples
    free, _ = torch.cuda.mem_get_info(device)
    return examples.to(device) if examples.nbytes < free / 2 else examples
