"""Runs what a config asks for, or looks it up where it is done."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from dpexp.cli.building import is_of_door
from dpexp.cli.instantiate import admit, loop_of
from dpexp.cli.named_folders import require_named
from dpexp.cli.parts import build_parts
from dpexp.warned import warn_caller


def execute(config: dict[str, Any]) -> Path:
    """Run what a config asks for, or look it up where it is done; return the run's directory.

    Raises:
        ConfigError: for a folder of data or models that does not exist.
        records.Busy: another process is doing it.
    """
    require_named(config)
    from dpexp import records
    from dpexp.distributed import processes

    admit(config["method"]["_target_"])  # a finished run is looked up, and may be verified
    results = config["results"]
    if processes.is_torchrun():
        processes.launch(_work_as_first_says, config)
    elif records.find(results, config) is None:
        with records.held(results, config):
            if records.find(results, config) is None:
                processes.launch(_work, config)
    return records.locate(results, config)


def saying(do: Callable[[Any], Any], task: Any) -> Any:
    """Do a task in a process of its own: a warning is a line there too."""
    from dpexp.cli import errors

    warnings.showwarning = errors.show_warning  # type: ignore[assignment]
    return do(task)


def with_weights(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config of a run that is no table's: it keeps its model unless told not to."""
    from dpexp.records.keeping import AUTO, KEEP

    return {**config, "weights": KEEP} if config["weights"] == AUTO else config


@contextmanager
def failing_model(config: Mapping[str, Any]) -> Iterator[None]:
    """Say in one line that a model of the user's own fails on an example.

    Raises:
        ConfigError: if an error comes from within such a model; other errors pass.
    """
    from dpexp.distributed.memory import ran_out
    from dpexp.types import ConfigError, one_line

    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        if ran_out(error) or not (is_of_door(config["model"]) and _is_of_a_module(error)):
            raise
        raise ConfigError(
            "Expected a model that takes every example of the training and test sets; "
            f"{config['model']['name']} fails on some ({type(error).__name__}: "
            f"{one_line(error)[:300]}). Set model, or mend the data."
        ) from error


def _is_of_a_module(error: Exception) -> bool:
    """Return whether an error was raised in a module that dpexp called, and not by dpexp within it.

    A model that the user's own code calls, as a callback may, is not the one that is trained.
    """
    import torch

    own, of_torch = Path(__file__).resolve().parents[1], Path(torch.__file__).parent
    is_ours = is_within = False
    for frame in traceback.extract_tb(error.__traceback__):
        path = Path(frame.filename)
        if path.is_relative_to(own):
            is_ours, is_within = True, False
        elif path.is_relative_to(of_torch):
            is_within |= is_ours and frame.name == "_call_impl"
        else:
            is_ours = False
    return is_within


def _work_as_first_says(ranks: Any, config: dict[str, Any]) -> None:
    """Do what one of torchrun's ranks has to; the others may not see the first one's disk."""
    from dpexp import records

    results = config["results"]
    with records.held(results, config) if ranks.is_first else nullcontext():
        if ranks.from_first(ranks.is_first and records.find(results, config) is None):
            _work(ranks, config)


def _work(ranks: Any, config: dict[str, Any]) -> None:
    from dpexp import kernels
    from dpexp.cli import idle, validate
    from dpexp.distributed import memory
    from dpexp.methods.wrapped import innermost

    memory.keep_pages()
    is_of_images = not config["task"].get("max_length")
    if ranks.device.type == "cpu" and is_of_images and config["model"].get("channels_last"):
        kernels.prepare()
    with memory.in_one_line("the run", memory.SMALLER):
        parts = build_parts(config, ranks.device)
        # Devices of different kinds round differently.
        if "warm_start" in config and ranks.size > 1:
            parts.model.load_state_dict(ranks.from_first(parts.model.state_dict()))
        if ranks.is_first and (line := validate.unscaled(config)):
            warn_caller(line)
        if ranks.is_first and "public" in config and not idle.knows_public(config):
            takes_public = "public_size" in vars(innermost(parts.method))  # it may be 0
            if parts.task.public is None and not takes_public:
                warn_caller(
                    f"public={config['public']['name']} has no effect: "
                    f"method={config['method']['name']} takes no public examples as it is set."
                )
        with failing_model(config):
            loop_of(config).train(config, parts, ranks)
