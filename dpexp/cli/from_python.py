"""Run dpexp from Python: `dpexp.run` and `dpexp.train`."""

from __future__ import annotations

import os
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dpexp import records
from dpexp.cli import begun, errors, folders, holdout, idle, own_methods, validate
from dpexp.cli.building import make_method, prepare, require_sizes, with_head
from dpexp.cli.command_line import require_once
from dpexp.cli.composition import compose
from dpexp.cli.execution import execute, failing_model, with_weights
from dpexp.cli.handed_words import simplified, words_of
from dpexp.cli.instantiate import admit, loop_of
from dpexp.cli.lookup import finished, read_anew
from dpexp.cli.outputs import outputs_of
from dpexp.cli.own_data import COUNT, delta_for
from dpexp.cli.parts import adapted, analyses_of, around
from dpexp.cli.python_words import (
    ARGUMENTS,
    HANDED,
    in_arguments,
    one_by_one,
    require_no_options,
    split,
)
from dpexp.cli.quoting import readable
from dpexp.cli.trained import TrainedRun, load
from dpexp.data import Task, overlap
from dpexp.data.given import examples_of, task_of
from dpexp.data.text import Texts
from dpexp.distributed import memory
from dpexp.distributed.ranks import Ranks, choose_device
from dpexp.models.architecture import code_digest
from dpexp.models.classifier import AUTO
from dpexp.models.copies import copied
from dpexp.models.libraries import TEXTS, reads_texts
from dpexp.models.mode import parts_in_eval, warn_without_dropout
from dpexp.models.notes import notes_of
from dpexp.models.unwrapped import require_module, unwrapped
from dpexp.records.keeping import WEIGHTS
from dpexp.records.keyed import keyed
from dpexp.records.weights import digest
from dpexp.training.probing.stage import chance_kept
from dpexp.types import ConfigError
from dpexp.warned import warn_caller

GIVEN = "dpexp.data.given.examples_of"
"""What a record names as the source of data that were handed over in memory."""

ONE_RUN = threading.RLock()
"""Held by the thread that uses torch's generators or Hydra, which a process has one of each; that
thread may take it again, as in a callback that starts a run."""

NO_PUBLIC = "dpexp.train cannot tell whether any of them is private"

BEFOREHAND = ("features", "prompts", "warm_start")
"""Choices of run.py that change its inputs or its model before the training begins."""


@torch.inference_mode(False)  # which a caller may be in
def run(words: Sequence[str]) -> TrainedRun:
    """Train a run, or look it up; see `dpexp.run`."""
    spoken = split(words)
    require_once(spoken)
    taken = folders.taken(spoken)
    require_no_options(taken)
    overrides = readable(taken)
    with one_by_one():
        config = with_weights(_composed(overrides))
    validate.check_values(config)
    idle.warn(config, overrides)
    # GPUs that nothing has used yet are left alone: ranks have them to themselves.
    with _own_random_numbers(
        range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []
    ):
        read_anew()
        before = finished(config)  # refuses a run of other data or weights
        if before is not None and before[1]:
            warn_caller(f"The finished run {before[0].directory} is looked up, and {before[1]}.")
        return TrainedRun.read(execute(config))


@in_arguments
@torch.inference_mode(False)
def train(
    model: nn.Module,
    train: Any,
    test: Any,
    *,
    method: str,
    eps: float | None,
    delta: float | None,
    epochs: float,
    batch_size: int,
    lr: float,
    optimizer: str | None,
    clip_norm: float,
    seed: int,
    dataset_size: int | None,
    results: str | Path,
    device: str,
    settings: Mapping[str, Any],
    callbacks: Sequence[Callable[[dict[str, Any]], Any]],
) -> TrainedRun:
    """Train a model on examples in memory; see `dpexp.train`.

    Raises:
        ConfigError: as there.
    """
    require_module(model)
    numbers = {"eps": eps, "delta": delta, "epochs": epochs, "batch_size": batch_size, "lr": lr}
    numbers |= {"clip_norm": clip_norm, "seed": seed, "dataset_size": dataset_size}
    for name, value in numbers.items():
        if isinstance(value, str):  # "8" would be shown as 8 by whoever refuses it
            raise ConfigError(
                f"Expected {name} to be a number; got the text {value!r:.80}. Set {name}."
            )
    if not isinstance(settings, Mapping):
        raise ConfigError(
            f"Expected settings to be a dict, such as {{'micro_batch': 64}}; got "
            f"{reprlib.repr(settings)}. Set settings."
        )
    require_once([f"{key}={value}" for key, value in settings.items()])
    for key, value in settings.items():
        if argument := ARGUMENTS.get(str(key).lstrip("+")):
            raise ConfigError(
                f"Expected {argument} as an argument of dpexp.train; got settings['{key}']. "
                f"Set {argument}."
            )
        if key in HANDED:
            raise ConfigError(
                f"Expected {HANDED[key]} as an argument of dpexp.train; got settings['{key}'], a "
                f"choice of run.py. Leave it out, or use dpexp.run."
            )
        if str(key).lstrip("+").partition(".")[0] in BEFOREHAND and str(value) != "none":
            raise ConfigError(
                f"Expected model and inputs as the training begins with them; got "
                f"settings['{key}'], by which run.py changes them first. Leave it out, or use "
                "dpexp.run."
            )
    delta, dataset_size, settings = (simplified(each) for each in (delta, dataset_size, settings))
    results = _folder(results)
    if not isinstance(method, str):
        raise ConfigError(
            f"Expected method to be a word, such as 'rgp'; got {reprlib.repr(method)}. Set method."
        )
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise ConfigError(
            f"Expected callbacks to be a list of functions; got {reprlib.repr(callbacks)}. Set "
            "callbacks."
        )
    require_sizes(model)  # before a look at values that are not there yet
    model = unwrapped(copied(model))
    warn_without_dropout(model)
    examples, tests = examples_of(train, "train"), examples_of(test, "test")
    code = None
    if isinstance(examples, Texts):
        code = code_digest(model)  # before the hook, whose number differs from call to call
        reads_texts(model)
    held = settings.get("holdout.size") if settings.get("holdout") else 0
    task = _task(model, examples, tests, delta, dataset_size, held if type(held) is int else 0)
    plain = task.fingerprint
    is_of_training = overlap.is_of_training(train, test, examples, tests)
    weights = digest(model.state_dict())
    before = begun.from_weights(weights, results)
    ids = [*before]
    values = {
        "eps": eps,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer.lr": lr,
        "privacy.clip_norm": clip_norm,
        "seed": seed,
        "results": results,
        "device": str(device),
        "++task._target_": GIVEN,
        "++task.name": task.name,
        "++task.dataset_size": task.dataset_size,
        "++task.delta": task.delta,
        "++task.num_classes": task.num_classes,
        "++task.fingerprint": plain,
        "model._target_": _dotted(type(model)),
        "model.name": f"python:{type(model).__name__}",
        "++model.head": AUTO,
        **({"++model.reads": TEXTS} if isinstance(examples, Texts) else {}),
        "++model.initial_weights": weights,
        **({"++model.trained_in": ids if ids[1:] else ids[0]} if ids else {}),
        **({"++model.in_eval": parts} if (parts := parts_in_eval(model)) else {}),
        "++model.code": code or code_digest(model),
        **({"+dataset_size": COUNT} if dataset_size is None else {}),
        **settings,
        **({"++task.judged_on_training": True} if is_of_training else {}),
    }
    words = [f"method={method}"]
    words += [] if own_methods.chooses(method, "schedule") else ["schedule=constant"]
    words += [] if optimizer is None else [f"optimizer={optimizer}"]
    if "public" not in settings and own_methods.chooses(method, "public"):
        words.append("public=none")  # else the task's own, which is none of conf/task
    if eps is None:
        words += ["noise=false", "clip=false"]
    config = with_weights(_composed([*words, *words_of(simplified(values))]))
    _require_private(config, eps)
    _warn_of_idle(config, delta, clip_norm, settings)
    if "loop" in config:
        raise ConfigError(
            f"Expected a method of the common training loop; method={method} has its own. Use "
            "dpexp.run."
        )
    if config.get("public", {}).get("name", "none") != "none":
        raise ConfigError(
            f"Expected no public set: {NO_PUBLIC}; got public={config['public']['name']} in "
            "settings. Leave it out."
        )
    if before:
        begun.require_other_noise(config, before)
    task = holdout.left_out(task, config)
    with _own_random_numbers():
        head = prepare(model, config, task.num_classes).head
        config, made = with_head(config, head), list[nn.Module]()
        if not records.locate(results, config).exists():  # else a run from before ids had a key
            config = {**config, "task": {**config["task"], "fingerprint": keyed(results, plain)}}
        directory = _trained(config, model, task, callbacks, made.append)
    if (directory / WEIGHTS).exists():
        return TrainedRun.read(directory, load(directory, model).module)
    # weights=discard: the model is in memory alone, and after a look-up nowhere
    return TrainedRun.read(directory, made[0].cpu().eval() if made else None)


def _folder(results: Any) -> str:
    """Return the folder of the records."""
    if not isinstance(results, str | os.PathLike):
        raise ConfigError(
            f"Expected results to be a folder's name or path; got {reprlib.repr(results)}. Set "
            "results."
        )
    return os.fspath(results)


def _require_private(config: Mapping[str, Any], eps: float | None) -> None:
    """Refuse a budget for a run that spends none: whoever names one means to train privately."""
    off = [name for name in ("noise", "clip") if config["privacy"][name] is False]
    if eps is None or not off:
        return
    lacks = " and ".join({"noise": "noise", "clip": "clipping"}[name] for name in off)
    private = ", ".join(f"'{name}': True" for name in off)
    raise ConfigError(
        f"Expected a run with {lacks} beside eps={eps}; method={config['method']['name']} as it is "
        f"set has none, and so no epsilon. Set settings={{{private}}}, or eps=None for a run "
        "without privacy."
    )


def _warn_of_idle(
    config: Mapping[str, Any], delta: float | None, clip_norm: float, settings: Mapping[str, Any]
) -> None:
    """Warn of arguments that this run does not read, by the names that they have here."""
    typed = {str(key).lstrip("+"): f"settings['{key}']={each!r}" for key, each in settings.items()}
    if delta is not None:
        typed["privacy.delta"] = f"delta={delta}"
    if clip_norm != 1:  # which is what it is without a word
        typed["privacy.clip_norm"] = f"clip_norm={clip_norm}"
    idle.warn_of(config, typed)


def _require_no_public(settings: Mapping[str, Any], size: int, analyses: Mapping[str, Any]) -> None:
    for name, analysis in analyses.items():
        if analysis.public_size:
            raise ConfigError(
                f"Expected an analysis without public examples: {NO_PUBLIC}; analysis={name} takes "
                f"{analysis.public_size}. Leave it out, or use dpexp.run with a task and a public "
                "set."
            )
    if size:
        basis = "settings={'method.basis': 'random'}, " if "basis" in settings else ""
        raise ConfigError(
            f"Expected a method without public examples: {NO_PUBLIC}; method={settings['name']} "
            f"takes {size}. Set {basis}another method, or use dpexp.run with a task and a public "
            "set."
        )


def _trained(
    config: dict[str, Any],
    model: nn.Module,
    task: Task,
    callbacks: Sequence[Callable[[dict[str, Any]], Any]],
    takes_model: Callable[[nn.Module], Any],
) -> Any:
    """Train a config's parts in this process unless it is done; return the run's directory."""
    results = config["results"]
    admit(config["method"]["_target_"])
    if records.find(results, config) is None:
        with records.held(results, config):
            if records.find(results, config) is None:
                at = choose_device(config["device"])
                made = make_method(config, kind="method")
                analyses = analyses_of(config)
                _require_no_public(config["method"], made.public_size, analyses)
                with memory.in_one_line("the run", memory.SMALLER):
                    trained = adapted(copied(model).to(at), made, config["seed"])
                    parts = around(config, task, trained, made)
                    parts = replace(parts, callbacks=callbacks, notes=notes_of(model))
                    parts = replace(parts, analyses=analyses, takes_model=takes_model)
                    with failing_model(config):
                        loop_of(config).train(config, parts, Ranks(0, 1, at))
    return records.locate(results, config)


def _composed(words: Sequence[str]) -> dict[str, Any]:
    try:
        with ONE_RUN:
            return compose(words)
    except Exception as error:
        line = errors.mistake(error)
        if line is None:
            raise
        raise ConfigError(line) from error


def _task(
    model: nn.Module,
    train: Any,
    test: Any,
    delta: float | None,
    size: int | None,
    held_out: int,
) -> Task:
    """Return the task; the model's architecture, which is public, says how many classes it has."""
    outputs, size = outputs_of(model, train), len(train) if size is None else size
    if delta is None and type(size) is int:
        delta = delta_for(size - held_out if held_out < size else size)
    if delta is None:
        raise ConfigError(
            f"Expected dataset_size to be a whole number >= 1; got {size}. Set dataset_size."
        )
    return task_of(train, test, num_classes=outputs, delta=delta, dataset_size=size)


def _dotted(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@contextmanager
def _own_random_numbers(gpus: Iterable[int] | None = None) -> Iterator[None]:
    """Leave the caller's random numbers as they are, on the CPU and on GPUs; None: on all.

    Threads take turns: they share all generators, and would draw each other's numbers.
    """
    with ONE_RUN, chance_kept(gpus):
        yield
