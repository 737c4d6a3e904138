"""Architectures of the libraries that people use: every one trains, exactly (docs/models.md)."""

import pytest
import torch

from dpexp.cli import CONF
from dpexp.cli import models_page as page
from dpexp.cli.architectures import Architecture, architectures
from dpexp.cli.models_page import BEGIN, END, TRAINS, examine, refusals
from dpexp.cli.trainability import METHODS, built, refusal
from tests.marks import few, long

PAGE = (CONF.parent / "docs" / "models.md").read_text(encoding="utf-8")
PAGE = PAGE.partition(BEGIN)[2].partition(END)[0]
ALL = architectures()
BY_NAME = {each.name: each for each in ALL}
KIN = {
    "Bert": ("Roberta", "DistilBert", "Electra", "MobileBert", "SqueezeBert"),
    "Deberta": ("DebertaV2",),
    "Llama": ("Mistral", "Qwen2"),
    "ViT": ("DeiT", "Beit", "Dinov2"),
    "ConvNext": ("ConvNextV2", "PoolFormer"),
    "Swin": ("Pvt",),
}
"""Architectures that are built much as another one is."""
OTHERS = [name for name in BY_NAME if name not in {each for kin in KIN.values() for each in kin}]
EXACT, BY_METHOD = PAGE.split("By method, ")


def cells(table, name):
    """Return an architecture's cells in a table; a note may stand beside its name."""
    lines = (line for line in table.splitlines() if line.startswith("| "))
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    (row,) = (row for row in rows if row[0].partition(" [")[0] == name)
    return row[1:]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", few(BY_NAME, OTHERS))
def test_every_examples_gradient_is_autograds(name):
    found = examine(BY_NAME[name])
    assert max(found.full, found.low_rank) < 1e-8
    assert cells(EXACT, name)[-1] == (", ".join(found.by_torch_func) or "none")


def test_the_page_lists_no_others():
    for table in (EXACT, BY_METHOD):
        rows = [line for line in table.splitlines() if line.startswith("| ")]
        assert len(rows) == len(ALL) + 2 >= 32


def test_the_page_has_every_architecture_by_every_method_and_says_why_not():
    (head,) = (line for line in BY_METHOD.splitlines() if line.startswith("| architecture"))
    assert head == f"| architecture | {' | '.join(METHODS)} |"
    notes = [line.split()[1] for line in BY_METHOD.splitlines() if line.startswith("- [")]
    trained = 0
    for name in BY_NAME:
        row = cells(BY_METHOD, name)
        assert len(row) == len(METHODS) and {*row} <= {TRAINS, *notes}
        trained += row.count(TRAINS)
    assert BY_METHOD.startswith(f"{trained} of {len(ALL) * len(METHODS)} train")


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("LSTM", "rgp"),
        long("GPT2", "dp_lora"),
        long("WRN-10-1 (dpexp)", "gep"),
        (
            "ModernBert",
            "dpsgd",
        ),  # float64's least number is no number in the float32 of its softmax
    ],
)
def test_a_cell_is_what_a_run_gives(name, method):
    why = refusal(built(BY_NAME[name]), method)
    assert (why is None) == (cells(BY_METHOD, name)[list(METHODS).index(method)] == TRAINS)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ALL, ids=lambda one: one.name)
def test_every_cell_is_what_a_run_gives(architecture):
    trains = [why is None for why in refusals(architecture).values()]
    assert trains == [cell == TRAINS for cell in cells(BY_METHOD, architecture.name)]


class Mixing(torch.nn.Module):
    """Centres a batch, so that no example is by itself."""

    def __init__(self):
        super().__init__()
        self.inner, self.out = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)

    def forward(self, x):
        h = self.inner(x.flatten(1))
        return self.out(h - h.mean(0))


class Images(Architecture):
    """Of six numbers each."""

    def inputs(self, num_examples):
        return torch.randn(num_examples, 1, 2, 3)


def test_a_cell_without_a_tick_says_why():
    why = refusal(built(Images("odd", Mixing, is_text=False)), "dpsgd")
    assert "keep examples apart" in why and "\n" not in why


def test_reasons_stand_below_the_table_once_each():
    text = page._of_methods({"A": {"x": None, "y": "no y."}, "B": {"x": "no y.", "y": None}}, {})
    assert "2 of 4 train" in text and "| A | ✓ | [1] |" in text and "| B | [1] | ✓ |" in text
    assert text.endswith("- [1] no y.") and "[2]" not in text
    noted = page._of_methods({"A": {"x": None}}, {"A": "texts of one length"})
    assert "| A [1] | ✓ |" in noted and noted.endswith("- [1] texts of one length.")
