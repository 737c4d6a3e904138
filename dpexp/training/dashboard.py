"""Calls into wandb, which may fail or not come back; what becomes of the run is not theirs."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMED = ("profile", "method", "model", "task")
"""Parts of a config whose names are tags."""

UPLOAD = 300.0
"""Seconds that wandb may take to send, at the end, what it still has (ours); the rest stays on
disk, for `wandb sync`."""

GIVE_UP = 5.0
"""Seconds for wandb to clear up what is left of it once it has failed (ours)."""


class NoAnswer(Exception):
    """A call did not come back in time."""


def start(config: Mapping[str, Any], directory: Path, kind: str) -> Any:
    """Start a dashboard's run, and give it.

    Args:
        config: the run's.
        directory: the run's, whose name is its id; wandb's own files go below it.
        kind: the job type.
    """
    import wandb  # takes a second, and starts a service

    settings = config["wandb"]
    named = [config.get(group, {}).get("name") for group in NAMED]
    paper, artifact = settings.get("paper"), settings.get("group")
    run = wandb.init(
        mode=settings["mode"],
        project=settings["project"],
        entity=settings.get("entity"),
        group="/".join(word for word in (paper, artifact) if word) or None,
        tags=list(dict.fromkeys(word for word in (paper, *named) if word)),
        job_type=kind,
        id=directory.name,
        resume="allow",
        dir=directory,
        config=dict(config),
        settings=wandb.Settings(silent=True, console="off", finish_timeout=UPLOAD),
    )
    run.define_metric("*", step_metric="step")
    run.define_metric("score/*", step_metric="eps")
    return run


def within(seconds: float, call: Callable[[], Any]) -> Any:
    """Return what a call gives, or raise what it raises.

    Raises:
        NoAnswer: it has not come back; it is left waiting in a thread that ends with the process.
    """
    given: list[Any] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            given.append(call())
        except BaseException as error:  # also SystemExit, which would end this thread unheard
            raised.append(error)

    thread = threading.Thread(target=work, daemon=True, name="dashboard")
    thread.start()
    thread.join(seconds)
    if raised:
        error = raised[0]
        raise error if isinstance(error, Exception) else RuntimeError(f"it ended by {error!r}")
    if not given:
        raise NoAnswer(f"no answer within {seconds:g} seconds")
    return given[0]


def abandon(error: Exception) -> None:
    """Clear up what is left of wandb, so that it fails neither at the end nor for the next run.

    Its service is one process for all runs of this one. Where wandb itself refuses a run the
    service is well, and stays.
    """
    wandb = sys.modules.get("wandb")
    if wandb is None or isinstance(error, ValueError | getattr(wandb, "Error", ValueError)):
        return
    with suppress(Exception):  # wandb has no public way to its service's process
        sys.modules["wandb.sdk.wandb_setup"]._singleton._connection._proc._process.kill()
    with suppress(Exception):
        within(GIVE_UP, wandb.teardown)
