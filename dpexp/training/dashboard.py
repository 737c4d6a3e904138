"""Calls into wandb, which may fail or hang without affecting the run."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

log = logging.getLogger("dpexp")

NAMED = ("profile", "method", "model", "task")
"""Config groups whose names become tags."""

UPLOAD = 300.0
"""Seconds that wandb has at the end to send what is left (ours); the rest stays on disk, for `wandb
sync`."""

GIVE_UP = 5.0
"""Seconds to clean up after wandb has failed (ours)."""


class NoAnswer(Exception):
    """A call did not return in time."""


class Wandb:
    """A run of wandb's.

    It has the id of the record; as name method, model, task, epsilon and seed; as group the
    artifact, `PAPER/NAME`; as tags paper, profile, method, model and task; as job type what it is
    for.

    Args:
        config: the run's; its `wandb` section has mode, project and, where known, entity, group
            (the artifact) and paper.
        directory: the run's, named by its id; wandb writes its own files below it.
        kind: the job type.
        name: shown by the dashboard.
    """

    def __init__(self, config: Mapping[str, Any], directory: Path, kind: str, name: str) -> None:
        settings = config["wandb"]
        named = [config.get(group, {}).get("name") for group in NAMED]
        self._run = _init(
            settings,
            kind,
            name,
            directory,
            tags=list(dict.fromkeys(word for word in (settings.get("paper"), *named) if word)),
            id=directory.name,
            resume="allow",
            config=dict(config),
        )
        self._folder = Path(self._run.dir).parent
        self._run.define_metric("*", step_metric="step")
        self._run.define_metric("score/*", step_metric="eps")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Send numbers of one step."""
        self._run.log({"step": step, **values}, step=step)

    def conclude(self, result: Mapping[str, Any], certificate: Mapping[str, Any]) -> None:
        """Send the run's summary, the certificate, and one point of score over target epsilon.

        The score is the task's metric under one name whatever the metric, so that one chart can
        show every run of a task. A run without a target epsilon has no point.
        """
        score = {score_of(result["task"]): result[result["metric"]]}
        if result["eps"] is not None:
            self._run.log({"eps": result["eps"], **score}, step=result["steps"])
        flat = {
            key: value
            for key, value in result.items()
            if value is not None and not isinstance(value, Mapping)
        }
        self._run.summary.update({**flat, **score, "score": result[result["metric"]]})
        self._send_certificate(certificate)

    def _send_certificate(self, certificate: Mapping[str, Any]) -> None:
        import wandb

        path = self._folder / "privacy.json"
        path.write_text(json.dumps(certificate, indent=2, default=str) + "\n", encoding="utf-8")
        artifact = wandb.Artifact(f"certificate-{self._run.id}", type="certificate")
        # Immutable: wandb makes no copy in the user's home.
        artifact.add_file(str(path), policy="immutable")
        self._run.log_artifact(artifact)

    def finish(self, exit_code: int) -> None:
        """Finish the run; say how an offline one is sent later."""
        if line := _finish(self._run, exit_code):
            log.info(line)


def send_files(
    settings: Mapping[str, Any], name: str, kind: str, paths: Sequence[Path], folder: Path
) -> str:
    """Send files as a wandb artifact, in a run of their own.

    Args:
        settings: the `wandb` section of a config.
        name: of the run and of the artifact.
        kind: the artifact's type, and the run's job type.
        paths: of the files.
        folder: for wandb's own files.

    Returns:
        How to send them later, if wandb is offline; else "".
    """
    run = _init(settings, kind, name, folder)
    import wandb

    artifact = wandb.Artifact(name, type=kind)
    for path in paths:
        artifact.add_file(str(path), policy="immutable")
    run.log_artifact(artifact)
    return _finish(run, 0)


def _init(settings: Mapping[str, Any], kind: str, name: str, folder: Path, **more: Any) -> Any:
    """Start a run of wandb's; its group is the artifact that the settings name."""
    import wandb  # takes a second, and starts a service

    return wandb.init(
        name=name,
        mode=settings["mode"],
        project=settings["project"],
        entity=settings.get("entity"),
        group="/".join(w for w in (settings.get("paper"), settings.get("group")) if w) or None,
        job_type=kind,
        dir=folder,
        settings=wandb.Settings(silent=True, console="off", finish_timeout=UPLOAD),
        **more,
    )


def _finish(run: Any, exit_code: int) -> str:
    """Finish a run of wandb's; return how an offline one is sent later, else ""."""
    folder, is_offline = Path(run.dir).parent, run.offline
    run.finish(exit_code=exit_code)
    if not is_offline:
        return ""
    return f"wandb kept this here; `wandb sync {shlex.quote(str(folder))}` sends it"


def score_of(task: str) -> str:
    """Return the dashboard's key for a task's final metric."""
    return f"score/{task}"


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
