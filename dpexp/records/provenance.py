"""What a result rests on: versions, commit, device."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

PACKAGES = (
    "torch",
    "torchvision",
    "transformers",
    "opacus",
    "dp-accounting",
    "numpy",
    "dpexp",
)

CODE = (":/dpexp", ":/conf", ":/run.py", ":/scripts")
"""What a result depends on, as git names it from the repository's root."""


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    found = [("python", platform.python_version())]
    for package in PACKAGES:
        try:
            # What is installed says nothing of the CUDA that a build of torch is for.
            known = torch.__version__ if package == "torch" else metadata.version(package)
            found.append((package, str(known)))
        except metadata.PackageNotFoundError:
            found.append((package, "not installed"))
    return tuple(found)


def versions() -> dict[str, str]:
    """Name the versions of what a result rests on."""
    return dict(_installed())


def git_commit(folder: str | Path | None = None) -> str | None:
    """Name the commit of the code, with "+dirty" if it was changed since; None outside git."""
    folder = Path(folder) if folder else Path(__file__).resolve().parent

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if not commit:
        return None
    # Results and data beside the code are not the code.
    return commit + ("+dirty" if git("status", "--porcelain", "--", *CODE) else "")


@cache
def code_sha256() -> str:
    """Hash the package's source and words: no version names them while they are worked on."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def describe_device(device: str | torch.device) -> str:
    """Describe where a run ran: the processor or GPU by its name."""
    device = torch.device(device)
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)}"
    return f"{_processor()}, {torch.get_num_threads()} threads"


@cache
def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def describe(
    config: dict,
    task: Any,
    mechanism: Any,
    ranks: Any,
    said: dict[str, Any],
    wall: float,
    examples: int,
    peak_mb: float,
) -> dict[str, Any]:
    """Return result.json: what was run, what came out, and what it rests on.

    Args:
        config: the run's.
        task: what it trained on.
        mechanism: its target epsilon and delta.
        ranks: who shared it.
        said: metric, epochs, steps, and what else the loop has to say.
        wall: seconds, > 0.
        examples: how many gradients were taken in that time.
        peak_mb: memory of the rank that took most.
    """
    return {
        "method": config["method"]["name"],
        "model": config["model"]["name"],
        "task": task.name,
        "profile": config["profile"]["name"],
        "seed": config["seed"],
        "eps": mechanism.target_epsilon,
        "delta": mechanism.delta,
        "metric": task.metric,
        **said,
        "wall_s": round(wall, 3),
        "examples_per_s": round(examples / wall, 1),
        "peak_memory_mb": round(peak_mb, 1),
        "device": describe_device(ranks.device),
        "ranks": ranks.size,
        "versions": versions(),
        "data_fingerprint": task.fingerprint,
        "test_fingerprint": task.test_fingerprint,
        "input_shape": list(task.input_shape),
        "num_classes": task.num_classes,
        "longest": getattr(task.train, "longest", None),
        "git_commit": git_commit(),
    }
