"""Build a config's parts: task, model, method, optimizer, schedule, attack and analyses."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from dpexp.cli import begun, holdout
from dpexp.cli.building import build_model, is_of_door, make_method, with_head
from dpexp.cli.instantiate import loop_of, make, said

TRIED = ("task", "model", "method", "public", "holdout", "features", "augmentation", "clipping",
         "averaging", "denoise", "correlation", "prompts", "warm_start", "attack", "audit",
         "analysis")  # fmt: skip
"""What decides whether a run can begin, of which a config may lack some."""


def build_parts(config: dict[str, Any], device: Any, task: Any = None) -> Any:
    """Return the run's parts; the seed determines the model's initial weights.

    Args:
        config: of the run.
        device: that it runs on.
        task: its data, where they are loaded already; None: load them.
    """
    import torch

    from dpexp.cli import fingerprints
    from dpexp.models.notes import notes_of
    from dpexp.models.vocabulary import require_vocabulary
    from dpexp.privacy.seeds import generator
    from dpexp.training.probing.fits import require_fit

    method, analyses = _takers(config)
    task = task or build_task(config, device, method, analyses)
    torch.manual_seed(generator(config["seed"], "init", 0).initial_seed())
    model, head = build_model(config, task)
    require_vocabulary(model, task.train)
    if is_of_door(config["model"]):
        require_fit(model, task, config["model"]["name"], head)
        config = with_head(config, head)
        method, analyses = _takers(config)
    model = model.to(device)
    if "prompts" in config:
        make("prompts", config["prompts"], given=(model, task.num_classes))
    if warm_start := config.get("warm_start"):
        make("warm_start", warm_start, given=(model, task))
    parts = around(config, task, adapted(model, method, config["seed"]), method)
    pretrained = fingerprints.pretrained(config)
    begun.require_named(config, fingerprints.weight_files(config))
    return replace(parts, analyses=analyses, pretrained=pretrained, notes=notes_of(model))


def require_begin(configs: Iterable[dict[str, Any]]) -> None:
    """Refuse what a run of one of these configs would refuse as it begins, before any is run.

    A run's parts are built and tried on made-up examples, once where several configs have the same
    settings of them; nothing is trained. A loop of its own says itself what it
    would refuse, by its `require_begin(config, parts)`, if it has one.

    Raises:
        ConfigError: such as for a method that has nothing to train in the model.
    """
    from dpexp.cli import validate

    configs = [*configs]
    for config in configs:
        validate.check_values(config)
    import torch

    from dpexp.training.train import first_look

    begun_with: list[Any] = []
    for config in configs:
        if "loop" in config:
            if (look := getattr(loop_of(config), "require_begin", None)) is not None:
                look(config, build_parts(copy.deepcopy(config), torch.device("cpu")))
            continue
        chosen = [config.get(group) for group in TRIED]  # as whole: a rank, too, may not fit
        if chosen in begun_with:
            continue
        begun_with.append(chosen)
        parts = build_parts(copy.deepcopy(config), torch.device("cpu"))
        first_look(parts, torch.device("cpu"))
        parts.method.start(parts.model)


def adapted(model: Any, method: Any, seed: int) -> Any:
    """Return the model that a method trains; the seed determines what it puts into it."""
    import torch

    from dpexp.privacy.seeds import generator

    if not hasattr(method, "adapt"):  # a method of a loop of its own
        return model
    torch.manual_seed(generator(seed, "init", 1).initial_seed())
    return method.adapt(model)


def around(config: dict[str, Any], task: Any, model: Any, method: Any) -> Any:
    """Return a run's parts, those around task, model and method built from its config."""
    from dpexp.methods.adaptive import AdaptiveClipping
    from dpexp.privacy.clipping import Adaptive
    from dpexp.privacy.privatize import FLAT
    from dpexp.training.parts import Parts

    clipping = _optional("clipping", config) or FLAT
    if isinstance(clipping, Adaptive):
        clip_norm = float(config["privacy"]["clip_norm"])
        method = AdaptiveClipping(method, clipping, clip_norm, config["batch_size"])
    if denoise := config.get("denoise"):
        method = make("denoise", denoise, ("name",), given=(method,))

    def make_optimizer(weights: list[Any]) -> Any:
        return make("optimizer", said(config["optimizer"]), params=weights)

    return Parts(
        task,
        model,
        method,
        make_optimizer,
        make("schedule", said(config["schedule"])),
        _attack(config),
        averaging=_optional("averaging", config),
        augmentation=_optional("augmentation", config),
        clipping=clipping,
        correlation=_optional("correlation", config),
    )


def _optional(group: str, config: dict[str, Any]) -> Any:
    """Instantiate what a group names; return None if nothing was chosen."""
    return make(group, config[group], without=("name",)) if group in config else None


def build_task(
    config: dict[str, Any], device: Any, method: Any = None, analyses: Any = None
) -> Any:
    """Load a run's data: its task, its public set if one is used, and its features.

    Args:
        config: of the run, or the part that decides its data; without a method no public set is
            used.
        device: where features are computed.
        method: built from the config; None: build it and the analyses here.
        analyses: built from the config, by name.
    """
    if method is None and "method" in config:
        method, analyses = _takers(config)
    public_size = 0 if method is None else max(t.public_size for t in (method, *analyses.values()))
    if config.get("warm_start"):
        public_size = max(public_size, config["warm_start"]["examples"])
    from dpexp.data.task import as_declared

    node = holdout.whole(config)
    task = make("task", node)
    if not node["_target_"].startswith("dpexp."):
        task = as_declared(task, node.get("dataset_size"), node.get("delta"))
    task = _with_public(task, public_size, config)
    if "features" in config:
        task = make("features", config["features"], given=(task, device))
    return holdout.left_out(task, config)


def _takers(config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Instantiate what may use public examples: the method, and the analyses by name."""
    kind = "method of a loop" if "loop" in config else "method"
    return make_method(config, kind), analyses_of(config)


def analyses_of(config: dict[str, Any]) -> dict[str, Any]:
    """Instantiate a run's analyses, by name."""
    chosen = config.get("analysis", {})
    return {name: make(f"analysis.{name}", node) for name, node in chosen.items()}


def _attack(config: dict[str, Any]) -> Any:
    """Instantiate the run's attack or audit; return None if it has neither."""
    from dpexp.types import ConfigError

    chosen = [group for group in ("attack", "audit") if group in config]
    if len(chosen) > 1:
        raise ConfigError("Expected an attack or an audit; got both. Leave one out.")
    return make(chosen[0], config[chosen[0]], without=("name",)) if chosen else None


def _with_public(task: Any, size: int, config: dict[str, Any]) -> Any:
    """Add the chosen public set to the task if `size` public examples are used."""
    if not size:
        return task
    from dpexp.data.public import require  # the import takes two seconds

    if "public" in config:
        task = make("public", config["public"], given=(task,))
    require(task, size)
    return task
