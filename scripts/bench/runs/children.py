"""Run a contender in a process of its own, and read what it says and leaves."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from dpexp.records.ledger import LEDGER
from dpexp.records.predictions import unpacked
from dpexp.types import ConfigError
from scripts.bench.runs.cases import DELTA, EPS, ROOT, Contender, Sizes

LEFT = ("result.json", "privacy.json", "metrics.jsonl", "predictions.npz", "model.safetensors")
"""What a run of dpexp must leave in its folder, a private one its budget ledger besides."""

EVERY = 0.1
"""Seconds between two looks for a checkpoint."""


def run(
    name: str, contender: Contender, sizes: Sizes, folder: Path, cache: Path | None = None
) -> dict[str, Any]:
    """Run a contender once and return what came of it.

    Args:
        name: for errors.
        contender: to run.
        sizes: that it must have trained with.
        folder: an empty one, for what it writes.
        cache: dpexp's, with what runs before left there; None for an empty one.

    Returns:
        seconds of the whole process, cpu_seconds, megabytes at its peak, loop_seconds by its own
        clock, steps, parameters, trained_parameters, accuracy, and of a private run epsilon and
        sampling.

    Raises:
        ConfigError: if it failed, or did not do all of the work.
    """
    out = folder / "out"
    out.mkdir(parents=True)
    words = [f"results={out}"] if contender.is_ours else ["--out", str(out)]
    command = [sys.executable, *contender.command, *words]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    surroundings = {**os.environ, "PYTHONPATH": path, "DPEXP_CACHE": str(cache or folder / "cache")}
    surroundings |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    weight = folder / "weight.json"
    weighed = [sys.executable, "-I", "-S", str(Path(__file__).with_name("weighed.py")), str(weight)]
    with Watch(out) as checkpoints:
        child = subprocess.run(
            [*weighed, *command], capture_output=True, text=True, cwd=ROOT, env=surroundings
        )
    if child.returncode:
        complaint = child.stderr.strip().split("\n")[-1]
        raise ConfigError(
            f"Expected {name} to run; got exit code {child.returncode}, and {complaint!r}."
        )
    *_, last = filter(None, child.stdout.split("\n"))
    found = of_record(Path(last)) if contender.is_ours else of_line(last)
    if not checkpoints.seen:
        raise ConfigError(f"Expected {name} to write a checkpoint in {out}; found none.")
    require_work(name, found, sizes, is_private="without privacy" not in name)
    return json.loads(weight.read_text("utf-8")) | found


class Watch:
    """Sees whether a checkpoint is written: a run of dpexp deletes its own once it is finished."""

    def __init__(self, folder: Path) -> None:
        """Look below a folder."""
        self.seen = False
        self._folder, self._over = folder, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        """Begin."""
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Look once more, and end."""
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self.seen:
            is_over = self._over.wait(EVERY)
            self.seen = any(self._folder.rglob("checkpoint.pt"))
            if is_over:
                return


def of_line(line: str) -> dict[str, Any]:
    """Return what a peer's last line says."""
    told = json.loads(line)
    return told | {"loop_seconds": told["train_seconds"] + told["evaluate_seconds"]}


def of_record(record: Path) -> dict[str, Any]:
    """Return what a run's record says, in a peer's words.

    Raises:
        ConfigError: if record, certificate, ledger or weights are missing.
    """
    missing = [name for name in LEFT if not (record / name).is_file()]
    if missing:
        raise ConfigError(f"Expected {', '.join(missing)} in {record}; found none.")
    result, certificate = (
        json.loads((record / name).read_text("utf-8")) for name in ("result.json", "privacy.json")
    )
    trained, frozen = (sum(certificate[key].values()) for key in ("trainable", "frozen"))
    found = {
        "loop_seconds": result["wall_s"],
        "steps": result["steps"],
        "parameters": trained + frozen,
        "trained_parameters": trained,
        "accuracy": result[result["metric"]],
        "tested": len(unpacked(record)[1][result["metric"]]),
    }
    if certificate["target_epsilon"] is not None:
        if not (record / LEDGER).is_file():
            raise ConfigError(f"Expected {LEDGER} in {record}; found none.")
        found |= {"epsilon": certificate["epsilon"]["prv"], "delta": certificate["delta"]}
        found |= {"sampling": certificate["sampling"]}
        found |= {"noise_multiplier": certificate["noise_multiplier"]}
    return found


def require_work(name: str, found: dict[str, Any], sizes: Sizes, is_private: bool) -> None:
    """Raise ConfigError if a contender took other steps, tests or privacy than it was to."""
    wanted: dict[str, Any] = {"steps": sizes.steps, "tested": sizes.test}
    if is_private:
        wanted |= {"delta": DELTA, "sampling": "poisson"}
        if not 0.9 * EPS < found["epsilon"] <= 1.01 * EPS:
            raise ConfigError(f"Expected {name} to spend eps = {EPS}; got {found['epsilon']}.")
    for key, value in wanted.items():
        if found[key] != value:
            raise ConfigError(f"Expected {key} = {value} of {name}; got {found[key]}.")
