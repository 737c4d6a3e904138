"""What every peer's script has: its words, its phases, and the JSON line that it ends with."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset


class Clock:
    """Seconds since the last phase ended; the first began when Python reached the script."""

    def __init__(self, began: float) -> None:
        """Start at a reading of time.perf_counter."""
        self._last = began
        self.seconds: dict[str, float] = {}

    def end(self, phase: str) -> None:
        """Say that a phase is over."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now


def words(about: str) -> argparse.Namespace:
    """Read the words that every peer's script takes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--data", type=Path, required=True, help="a folder of parquet files")
    parser.add_argument("--model", type=Path, help="a pretrained encoder's folder")
    parser.add_argument("--out", type=Path, required=True, help="where weights go")
    parser.add_argument("--batch", type=int, required=True, help="examples a step, expected")
    parser.add_argument("--physical", type=int, required=True, help="examples in memory at once")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--eps", type=float, help="of a private run")
    parser.add_argument("--delta", type=float, default=1e-5)
    parser.add_argument("--clip-norm", type=float, default=1.0)
    parser.add_argument("--mode", choices=["hooks", "ghost"], default="hooks")
    parser.add_argument("--channels-last", action="store_true", help="the layout of images")
    parser.add_argument("--depth", type=int, default=16, help="of the wide ResNet")
    parser.add_argument("--width", type=int, default=4, help="of the wide ResNet")
    parser.add_argument("--stem-stride", type=int, default=1, help="of its first convolution")
    parser.add_argument("--by-length", action="store_true", help="parts of like sentences")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def report(clock: Clock, model: nn.Module, **numbers: Any) -> None:
    """Print the line: phases, and what shows that the model trained."""
    sizes = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    line = {f"{phase}_seconds": seconds for phase, seconds in clock.seconds.items()}
    line |= {"parameters": sum(size for size, _ in sizes)}
    line |= {"trained_parameters": sum(size for size, trains in sizes if trains)}
    line |= {"threads": torch.get_num_threads()}
    print(json.dumps(line | numbers), flush=True)


def keep(model: nn.Module, optimizer: torch.optim.Optimizer, folder: Path) -> None:
    """Save a checkpoint."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, folder / "checkpoint.pt")


def finish(
    clock: Clock,
    model: nn.Module,
    test: Dataset,
    evaluate: Callable[[nn.Module, Dataset], float],
    privacy: Callable[[], dict[str, Any]] = dict,
    **numbers: Any,
) -> None:
    """End the training, evaluate once, and print the line.

    Args:
        clock: whose phase "train" ends now.
        model: the trained one.
        test: examples.
        evaluate: returns the percentage of right ones.
        privacy: returns what is said of a private run; asked for after the phases.
        numbers: of the training.
    """
    clock.end("train")
    accuracy = evaluate(model, test)
    clock.end("evaluate")
    report(clock, model, accuracy=accuracy, tested=len(test), **numbers, **privacy())
