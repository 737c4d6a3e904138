"""Load the model that a run has kept, and use it on new inputs."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from dpexp import records
from dpexp.cli.building import build_model, prepare
from dpexp.cli.instantiate import parameters
from dpexp.cli.parameter_names import is_plain, shape_of
from dpexp.data import Preprocessing, kept, preprocessing
from dpexp.data.examples import Examples
from dpexp.data.given import texts_of
from dpexp.data.handed import inputs_of
from dpexp.models import fixing, libraries
from dpexp.models.adapting import logits_of
from dpexp.models.unwrapped import require_module, unwrapped
from dpexp.privacy.stated import is_ours
from dpexp.records import weights
from dpexp.records.keeping import WEIGHTS, changed
from dpexp.types import ConfigError, one_line

BATCH = 256
"""Inputs at once (ours); changes results by rounding alone."""


class Guess(NamedTuple):
    """A model's answer to one input.

    Attributes:
        label: the most probable class's name, or its index where it has none; the output itself in
            a regression.
        probability: of that class, in [0, 1]; None in a regression.
    """

    label: Any
    probability: float | None


@dataclass(frozen=True)
class TrainedModel:
    """A model that a run has kept.

    Attributes:
        module: in eval mode.
        preprocessing: makes its inputs of raw images or texts; None where the run kept none.
        record: of the run: config, result and certificate.
    """

    module: nn.Module
    preprocessing: Preprocessing | None
    record: records.Record

    @property
    def classes(self) -> tuple[str, ...]:
        """Return the names of the classes by index; empty where they have none."""
        return () if self.preprocessing is None else self.preprocessing.classes

    def outputs(self, raw: Any) -> Tensor:
        """Return the model's outputs for raw inputs, [n, outputs] on the CPU.

        Args:
            raw: paths, pictures or tensors of images; texts, or pairs of texts; without
                preprocessing a tensor or array [n, ...], as `dpexp.train` takes it, or a list of n
                such inputs.

        Raises:
            ConfigError: naming an input that the model cannot take.
        """
        batches = self._batches(raw)
        device = next(iter(self.module.parameters())).device
        try:
            with torch.no_grad():
                parts = [logits_of(self.module(batch.to(device))).cpu() for batch in batches]
        except (RuntimeError, ValueError, IndexError, TypeError) as error:
            if self.preprocessing is not None or isinstance(error, torch.OutOfMemoryError):
                raise
            raise ConfigError(
                "Expected inputs [n, ...] as the model takes them; it fails on these "
                f"({type(error).__name__}: {one_line(error)[:200]}). Pass a batch as in training."
            ) from error
        if any(part.ndim != 2 for part in parts):
            raise ConfigError(
                "Expected a batch of inputs [n, ...]; the model gives outputs of shape "
                f"{list(parts[0].shape)}. Pass one input as input[None]."
            )
        return torch.cat(parts) if parts else torch.empty(0, self.record.result["num_classes"])

    def predict(self, raw: Any) -> list[Guess]:
        """Return the most probable class of each raw input; see `outputs`.

        An output that is not finite gives the label None.
        """
        outputs = self.outputs(raw)
        if outputs.shape[1] == 1:
            low, high = getattr(self.preprocessing, "target_range", None) or (0.0, 1.0)
            return [Guess(low + (high - low) * float(value), None) for value in outputs[:, 0]]
        shares, best = outputs.float().softmax(1).max(1)
        names = self.classes or range(outputs.shape[1])
        is_finite = outputs.isfinite().all(1)
        return [
            Guess(names[int(index)], float(share)) if good else Guess(None, None)
            for index, share, good in zip(best, shares, is_finite, strict=True)
        ]

    def _batches(self, raw: Any) -> list[Tensor]:
        if self.preprocessing is not None:
            if isinstance(raw, str | bytes | Mapping) or not isinstance(raw, Iterable):
                raise ConfigError(
                    f"Expected a list of inputs; got a single {type(raw).__name__}. Put it into a "
                    "list."
                )
            examples = self.preprocessing.examples(cast(Sequence[Any], raw))
            rows = torch.arange(len(examples)).split(BATCH) if len(examples) else ()
            return [examples.batch(indices).inputs for indices in rows]
        if isinstance(raw, Mapping) and self.record.config["model"].get("reads") == libraries.TEXTS:
            texts = texts_of(raw, None, "the")
            rows = torch.arange(len(texts)).split(BATCH)
            return [texts.batch(indices).inputs for indices in rows]
        inputs = inputs_of(raw)
        examples = Examples(inputs, torch.zeros(len(inputs)))
        rows = torch.arange(len(inputs)).split(BATCH) if len(inputs) else ()
        return [examples.batch(indices).inputs for indices in rows]


@dataclass(frozen=True)
class TrainedRun(records.Record):
    """A finished run: its record, and the model if it was kept.

    Attributes:
        trained: the model, where it is in memory.
    """

    trained: nn.Module | None = field(default=None, compare=False, repr=False)

    @classmethod
    def read(cls, directory: str | Path, trained: nn.Module | None = None) -> TrainedRun:
        """Read a finished run's directory."""
        record = records.read(directory)
        if record is None:
            raise records.RecordError(f"Expected a finished run in {directory}.")
        return cls(**vars(record), trained=trained)

    @property
    def accuracy(self) -> float | None:
        """Return the task's metric of the final model: for classes, accuracy in percent."""
        return self.result[self.result["metric"]]

    @property
    def epsilon(self) -> float | None:
        """Return the epsilon that was spent; None if no privacy is claimed."""
        return next((v for v in self.privacy["epsilon"].values() if v is not None), None)

    @property
    def certificate(self) -> dict[str, Any]:
        """Return the privacy certificate, as in privacy.json."""
        return self.privacy

    @property
    def model(self) -> nn.Module:
        """Return the trained model in eval mode.

        Raises:
            ConfigError: if the run has not kept it, or its model is not dpexp's (`dpexp.load`).
        """
        if self.trained is not None:
            return self.trained
        return load(self.directory, trust=True).module  # what it calls was asked for here


def load(
    directory: str | Path, model: nn.Module | None = None, *, trust: bool = False
) -> TrainedModel:
    """Load the model of a finished run; see `dpexp.load`.

    Raises:
        ConfigError: as there.
    """
    if not isinstance(directory, str | os.PathLike):
        way = "its .directory" if isinstance(directory, TrainedRun) else "its path"
        raise ConfigError(
            f"Expected the folder of a run; got a {type(directory).__name__}. Set {way}."
        )
    if model is not None:
        require_module(model)
    directory = Path(directory)
    record = records.finished(directory)
    path = directory / WEIGHTS
    if not path.exists():
        raise ConfigError(
            f"Expected a run that kept its model; {directory} holds none. Train it with "
            "weights=keep and another results folder (from dpexp.train: without 'weights' in "
            "settings)."
        )
    state = weights.read(path)
    if weights.digest(state) != record.result.get("weights_sha256"):
        raise ConfigError(
            f"Expected the weights in {path} to be those of the run; they do not match "
            "weights_sha256 in its result.json. Fetch the folder again."
        )
    if differing := changed(directory, record.result):
        raise ConfigError(
            f"Expected the model's files in {directory} to be those of the run; "
            f"{'; '.join(differing)}. Fetch the folder again."
        )
    module = _built(record, trust) if model is None else _changed(model, record)
    _fill(module, state, path)
    made = None
    if (directory / preprocessing.FILE).exists():
        made = kept.load(directory)
    return TrainedModel(module.eval(), made, record)


def _built(record: records.Record, trust: bool) -> nn.Module:
    """Build a record's model, with weights that are replaced."""
    node = dict(record.config["model"])
    target = str(node.get("_target_"))
    of_library = libraries.built(target, record.directory)
    if of_library is not None:
        if node.get("reads") == libraries.TEXTS:
            libraries.reads_texts(of_library)
        return prepare(of_library, record.config, record.result["num_classes"]).model
    if "initial_weights" in node:  # `dpexp.train`: its config names a class and nothing to build it
        raise ConfigError(
            f"Expected the model beside {record.directory}, whose config does not say how to build "
            "it, as dpexp.train was given it in memory. Pass one of the same architecture, from "
            "Python: dpexp.load(directory, model)."
        )
    is_own = is_ours(target) and target.startswith("dpexp.models.") and is_plain(node)
    if not trust and not is_own:
        raise ConfigError(
            f"Expected a model of dpexp in {record.directory}; its config calls {target}. If you "
            "trust the folder, set trust=True (trust=true in the shell), or pass the model: "
            "dpexp.load(directory, model=MyModel())."
        )
    if {"repo", "model_root"} <= node.keys() and (record.directory / "config.json").exists():
        # The folder has all that was pretrained.
        directory = record.directory.absolute()
        node |= {"repo": directory.name, "model_root": str(directory.parent)}
    if "is_bare" in parameters("model", node):
        node["is_bare"] = True
    config = {**record.config, "model": node}
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        warnings.simplefilter("ignore")  # of what it was pretrained on; said when it was trained
        return build_model(config, shape_of(record.config, record.result), is_kept=True).model


def _changed(model: nn.Module, record: records.Record) -> nn.Module:
    """Change a model that was passed as the run changed its own, where that is not done yet."""
    model, node = unwrapped(model), record.config["model"]
    if node.get("weight_standardization"):
        from dpexp.models.standardized import StandardizedConv2d, standardize

        if not any(isinstance(each, StandardizedConv2d) for each in model.modules()):
            standardize(model)
    if node.get("reads") == libraries.TEXTS and not model._forward_pre_hooks:
        libraries.reads_texts(model)
    norms = fixing.BATCH_NORMS + fixing.INSTANCE_NORMS
    if node.get("fix") and any(isinstance(module, norms) for module in model.modules()):
        fixing.fix(model, node["fix"])
    return model


def _fill(module: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Put weights into a model, all of them and no others."""
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        reason = one_line(error)[:300].rstrip(".")
        raise ConfigError(
            f"Expected the model that {path} is of; {reason}. Pass one of the same architecture: "
            "dpexp.load(directory, model)."
        ) from error
