"""Twin runs: private examples of their own, the same releases, and all that comes of them."""

import copy
import json
from dataclasses import replace

import numpy as np
import torch

from dpexp import cli, records
from dpexp.attacks.noiseless import Injected
from dpexp.cli.instantiate import loop_of
from dpexp.records import without_diagnostics
from dpexp.training import checkpoint
from tests.runs import ALONE


def others(examples):
    """Return as many examples of the same kind, none like the one in its place, one not finite."""
    order = torch.arange(len(examples) - 1, -1, -1)
    if hasattr(examples, "encoded"):  # texts: others' lengths, too
        return replace(examples.take(order), targets=examples.targets)
    inputs = examples.inputs[order].clone()
    if inputs.is_floating_point():
        inputs = inputs.flip(-1).mul_(30.0)
        inputs[7].view(-1)[0] = float("nan")  # drawn at some steps, and not at others
    targets = examples.targets
    targets = -targets if targets.is_floating_point() else targets.flip(0).roll(1)
    return replace(examples, inputs=inputs, targets=targets)


def twin(task, is_other, **_):
    """Return a task or, for the other of two twins, one of the same public and test examples."""
    if not is_other:
        return task
    test = task.test
    train = others(task.train)
    return replace(
        task, train=train, test=train if test is task.train else test, fingerprint="other"
    )


def build(config, is_other):
    """Build a run's parts as `run` does, with either twin's private examples from the start."""
    task = {"_target_": f"{__name__}.twin", "is_other": is_other, "task": config["task"]}
    return cli.build_parts({**config, "task": {**config["task"], **task}}, ALONE.device)


class Recorded(Injected):
    """Notes what is prepared before every step, and with which random numbers to come."""

    def __init__(self, method):
        super().__init__(method)
        self.prepared = []

    def prepare(self, model, state, public, gen):
        draws = gen.get_state(), torch.get_rng_state()
        state = self.inner.prepare(model, state, public, gen)
        self.prepared.append(copy.deepcopy((*draws, state)))
        return state


def easy(task, model):
    """Return a task on whose targets a model is right, whatever it says.

    Where releases are injected a model goes the same way on any data; on such data its loss falls.
    """
    with torch.no_grad():
        said = model.eval()(task.train.batch(torch.arange(len(task.train))).inputs)
    numbers = task.train.targets.is_floating_point()
    train = replace(task.train, targets=said.flatten() if numbers else said.argmax(1))
    test = train if task.test is task.train else task.test
    return replace(task, train=train, test=test, fingerprint="easy")


def trained(config, results, is_other, said_by=None):
    """Train one of three twins; give everything that must not depend on which of them it was.

    Args:
        config: of the run.
        results: the folder to put it in.
        is_other: whether on other private examples.
        said_by: a model that says the private examples' targets.

    Returns:
        By name: the weights, gradients, rates and optimizer's state at every step, what was
        prepared for it, its checkpoint, and the run's files, less the declared diagnostics.
    """
    config = {**config, "results": str(results)}
    parts, directory = build(config, is_other), records.locate(results, config)
    if said_by is not None:
        parts = replace(parts, task=easy(parts.task, said_by))
    method, told = Recorded(parts.method), {"start": at_start(parts), "steps": []}

    def make_optimizer(weights):
        optimizer = parts.make_optimizer(weights)

        def note(which, *_):
            saved = checkpoint.load(directory / "checkpoint.pt") or {}
            given = [
                (group["lr"], [w.grad for w in group["params"]]) for group in which.param_groups
            ]
            told["steps"].append(
                copy.deepcopy(
                    {
                        "checkpoint": without_diagnostics("checkpoint.pt", saved),
                        "rates and gradients": given,
                        "optimizer": which.state_dict(),
                        "weights": parts.model.state_dict(),
                    }
                )
            )

        optimizer.register_step_post_hook(note)
        return optimizer

    loop_of(config).train(
        config, replace(parts, method=method, make_optimizer=make_optimizer), ALONE
    )
    prepared = method.prepared[-len(told["steps"]) :]  # trials of a micro-batch come before
    told |= {"prepared": prepared, "end": copy.deepcopy(parts.model.state_dict())}
    return told | {"files": files(directory), "private": private(directory), "model": parts.model}


def at_start(parts):
    """Return all that a run has before its first step but the private examples."""
    sets = {"test": parts.task.test, "public": parts.task.public}
    if parts.task.test is parts.task.train:
        sets.pop("test")
    told = {name: some.tensors() for name, some in sets.items() if some is not None}
    model = parts.model.state_dict()
    return copy.deepcopy({**told, "weights": model, "random": torch.get_rng_state()})


def files(directory):
    """Read a run's files, less the declared diagnostics."""
    read = {}
    for path in sorted(directory.iterdir()):
        if path.name == "config.yaml":  # which names the results folder
            continue
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                read[path.name] = {name: arrays[name].tolist() for name in arrays}
            continue
        text = path.read_text()
        lines = text.splitlines() if path.suffix == ".jsonl" else [text]
        documents = [json.loads(line) for line in lines]
        read[path.name] = [without_diagnostics(path.name, one) for one in documents]
    return read


def private(directory):
    """Read some of the diagnostics, in which twins should differ."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["train_loss"] for line in lines]
