"""Provenance of a result: versions, commit, device."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpexp.records.record import profile_of

if TYPE_CHECKING:
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
"""Paths of the code that a result depends on, from the repository's root."""


@cache
def _installed() -> tuple[tuple[str, str], ...]:
    import torch  # takes a second, and records are read without it

    installed = [("python", platform.python_version())]
    for package in PACKAGES:
        try:
            # The metadata of torch lack the CUDA version that it was built for.
            version = torch.__version__ if package == "torch" else metadata.version(package)
            installed.append((package, str(version)))
        except metadata.PackageNotFoundError:
            installed.append((package, "not installed"))
    return tuple(installed)


def versions() -> dict[str, str]:
    """Return the versions of Python and the packages a result depends on."""
    return dict(_installed())


def git_commit(folder: str | Path | None = None) -> str | None:
    """Return the code's commit, with "+dirty" if it was changed since; None outside git."""
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
    # Changed results or data do not make the code dirty.
    return commit + ("+dirty" if git("status", "--porcelain", "--", *CODE) else "")


@cache
def code_sha256() -> str:
    """Hash the package's Python and YAML files, which may change without a change of version."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted([*package.rglob("*.py"), *package.rglob("*.yaml")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def describe_device(device: str | torch.device) -> str:
    """Return the name of a run's GPU, or its processor and number of threads."""
    import torch

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
    outcome: dict[str, Any],
    wall: float,
    examples: int,
    peak_mb: float,
) -> dict[str, Any]:
    """Return the contents of result.json: the run's settings, outcome and provenance.

    Args:
        config: the run's.
        task: that it trained on.
        mechanism: gives target epsilon and delta.
        ranks: give device and number of ranks.
        outcome: metric, epochs, steps and further entries of the loop.
        wall: seconds, > 0.
        examples: number of gradients computed in that time.
        peak_mb: peak memory of the rank that used most.
    """
    return {
        "method": config["method"]["name"],
        "model": config["model"]["name"],
        "task": task.name,
        "profile": profile_of(config),
        "seed": config["seed"],
        "eps": mechanism.target_epsilon,
        "delta": mechanism.delta,
        "metric": task.metric,
        **outcome,
        "wall_s": round(wall, 3),
        "examples_per_s": round(examples / wall, 1),
        "peak_memory_mb": round(peak_mb, 1),
        "device": describe_device(ranks.device),
        "ranks": ranks.size,
        "versions": versions(),
        "data_fingerprint": task.fingerprint,
        "test_fingerprint": task.test_fingerprint,
        **({"holdout_fingerprint": task.holdout_fingerprint} if task.holdout is not None else {}),
        "input_shape": list(task.input_shape),
        "num_classes": task.num_classes,
        "longest": getattr(task.train, "longest", None),
        "git_commit": git_commit(),
    }
