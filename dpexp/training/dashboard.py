"""Calls into wandb, which may fail or hang without affecting the run."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

NAMED = ("profile", "method", "model", "task")
"""Config groups whose names become tags."""

UPLOAD = 300.0
"""Seconds that wandb has at the end to send what is left (ours); the rest stays on disk, for `wandb
sync`."""

GIVE_UP = 5.0
"""Seconds to clean up after wandb has failed (ours)."""


class NoAnswer(Exception):
    """A call did not return in time."""


def start(config: Mapping[str, Any], directory: Path, kind: str) -> Any:
    """Start a dashboard's run, and return it.

    Args:
        config: the run's.
        directory: the run's, named by its id; wandb writes its own files below it.
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
    """Return a call's result, or raise its error.

    Raises:
        NoAnswer: it did not return; it remains in a thread that ends with the process.
    """
    given: list[Any] = []
    raised: list[BaseException] = []

    def work() -> None:
        try:
            given.append(call())
        except BaseException as error:  # also SystemExit, which would end this thread silently
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
    """Clean up after wandb, so that it fails neither at the end nor in the next run.

    Its service is one process for all runs of this process. If wandb itself rejects a run, the
    service works, and stays.
    """
    wandb = sys.modules.get("wandb")
    if wandb is None or isinstance(error, ValueError | getattr(wandb, "Error", ValueError)):
        return
    with suppress(Exception):  # wandb has no public access to its service's process
        sys.modules["wandb.sdk.wandb_setup"]._singleton._connection._proc._process.kill()
    with suppress(Exception):
        within(GIVE_UP, wandb.teardown)
