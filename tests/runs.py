"""What several tests do with runs and methods."""

import json

import pytest
import torch
from torch import Tensor

import run
from dpexp.types import Carrier


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Sums depend on how many threads share them; runs compared to the last bit share one."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def execute(results, *words):
    return run.execute(run.compose([*words, f"results={results}"]))


def of(directory):
    """Read a finished run's files as anyone would."""
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    result = json.loads((directory / "result.json").read_text())
    privacy = json.loads((directory / "privacy.json").read_text())
    return [json.loads(line) for line in lines], result, privacy


class Watched:
    """A method that remembers what was released to it, and in what state."""

    def __init__(self, method):
        self.method = method

    def __getattr__(self, name):
        return getattr(self.method, name)

    def reconstruct(self, state, noisy):
        self.given, self.released = state, dict(noisy)
        return self.method.reconstruct(state, noisy)


def total_of(carrier: Carrier, weights: Tensor | None) -> Tensor:
    """Sum a carrier's per-example blocks, each times its weight [n] (None: all ones)."""
    total = torch.zeros_like(carrier.each()[0], memory_format=torch.contiguous_format)
    carrier.add_to(total, weights)
    return total
