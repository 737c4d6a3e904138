"""Compare a certificate's parameters with those of the model that its config builds."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from dpexp.records import Record

SHAPE = ("input_shape", "num_classes", "longest")
"""Entries of result.json that give the task's shape; older records lack them."""


def compare(record: Record) -> list[str] | None:
    """Build a record's model on the meta device, and compare parameter names and sizes.

    Returns:
        What differs, one sentence each; None if the model cannot be built from its record: an
        older record, pretrained weights, or parts that are not dpexp's. Such parts are never
        called, because anyone may have written the record.
    """
    try:
        expected = _parameters(record)
    except Exception:  # a hostile config may raise anything
        return None
    if expected is None:
        return None
    findings = []
    for word, sizes in expected.items():
        stated = record.privacy[word]
        if stated != sizes:
            wrong = sorted({*stated.items()} ^ {*sizes.items()})
            names = list(dict.fromkeys(name for name, _ in wrong))
            findings.append(f"{word}: not those of the model that config.yaml builds ({names[0]})")
    return findings


def _parameters(record: Record) -> Mapping[str, Mapping[str, int]] | None:
    import torch

    from dpexp.cli.building import build_model, make_method
    from dpexp.cli.fingerprints import reads_weights
    from dpexp.privacy.stated import is_ours, statement_of
    from dpexp.training.train import named_parameters

    config, result = record.config, record.result
    target, stated = config["model"]["_target_"], statement_of(config)
    is_known = is_ours(target) and target.startswith("dpexp.models.")
    is_known = is_known and is_ours(config["method"]["_target_"]) and stated.is_known
    is_vote = stated.votes is not None
    built = ("model",) if is_vote else ("model", "method")
    is_known = is_known and all(is_plain(config[part]) for part in built)
    if not is_known or reads_weights(config) or not all(key in result for key in SHAPE):
        return None
    with torch.device("meta"):
        model, _ = build_model(config, shape_of(config, result), is_kept=True)
    if is_vote:
        return {"trainable": {n: p.numel() for n, p in model.named_parameters()}, "frozen": {}}
    made = make_method(config)
    named = named_parameters(made.adapt(model), made)
    return dict(zip(("trainable", "frozen"), named, strict=True))


def shape_of(config: Mapping[str, Any], result: Mapping[str, Any]) -> Any:
    """Return what a model must know of its task, from a record alone."""
    return SimpleNamespace(
        name=config["task"]["name"],
        input_shape=tuple(result["input_shape"]),
        num_classes=result["num_classes"],
        train=SimpleNamespace(longest=result["longest"]),
    )


def is_plain(node: Mapping[str, Any]) -> bool:
    """Return whether Hydra would call nothing for these settings but their own `_target_`."""
    pending: list[Any] = [value for key, value in node.items() if key != "_target_"]
    if any(str(key).startswith("_") for key in {*node} - {"_target_"}):
        return False
    while pending:
        value = pending.pop()
        if isinstance(value, Mapping):
            if any(str(key).startswith("_") for key in value):
                return False
            pending += value.values()
        elif isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, str) and "${" in value:
            return False
    return True
