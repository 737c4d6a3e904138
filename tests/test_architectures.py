"""Architectures of the libraries that people use: every one trains, exactly (docs/models.md)."""

import pytest

from dpexp.cli import CONF
from dpexp.cli.models import BEGIN, END, architectures, examine

PAGE = (CONF.parent / "docs" / "models.md").read_text(encoding="utf-8")
PAGE = PAGE.partition(BEGIN)[2].partition(END)[0]
ALL = architectures()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ALL, ids=lambda one: one.name)
def test_every_examples_gradient_is_autograds(architecture):
    found = examine(architecture)
    assert max(found.full, found.low_rank) < 1e-8
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| {architecture.name} |"))
    assert row.endswith(f"| {', '.join(found.by_torch_func) or 'none'} |")


def test_the_page_lists_no_others():
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    assert len(rows) == len(ALL) + 2 >= 32
