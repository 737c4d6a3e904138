"""Whole private runs, from process start to exit, beside what peers would run: `--only run`."""

from scripts.bench.runs.cases import CASES, Sizes
from scripts.bench.runs.measure import measure
from scripts.bench.runs.page import page

__all__ = ["CASES", "Sizes", "measure", "page"]
