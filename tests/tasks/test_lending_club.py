"""The two regressions: what is read from loans of both formats, and how both are judged."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dpexp.tasks.lending_club import lending_club
from dpexp.tasks.regression import regression
from dpexp.train import evaluate
from dpexp.types import ConfigError, MissingData

FINGERPRINT = "785e3aa067bd591e4b862817285fa528eebef22378f780d173dd0e19ee409e9d"

EXTRACT = {
    "credit.policy": [1, 0, 1],
    "purpose": ["debt_consolidation", "all_other", "credit_card"],
    "int.rate": [0.1189, 0.1071, 0.2164],
    "installment": [750.0, 0.0, 3000.0],
    "fico": [300, 575, 850],
    "not.fully.paid": [0, 0, 1],
}
KAGGLE = {
    "id": [1077501, 1077430, 1077175],
    "loan_amnt": [5000.0, 40000.0, np.nan],
    "term": [" 36 months", " 60 months", " 36 months"],
    "int_rate": [10.65, 15.27, 28.99],
    "sub_grade": ["A1", "G5", "D3"],
    "emp_title": ["Ryder", None, "with, a comma"],
    "emp_length": ["10+ years", "< 1 year", "n/a"],
    "home_ownership": ["OWN", "RENT", "A HOUSEBOAT"],
    "annual_inc": [24000.0, 600000.0, 0.0],
    "issue_d": ["Dec-2011", "Jan-2007", "Jun-2015"],
    "pymnt_plan": ["n", "y", "n"],
    "url": ["https://example.org/1"] * 3,
    "zip_code": ["860xx", "309xx", "000xx"],
    "addr_state": ["AK", "WY", "CA"],
    "revol_util": ["83.7%", "9.4%", None],
}


@pytest.fixture
def loans(conf, tmp_path):
    """Writes a table and loads it."""

    def load(columns, **changes):
        path = tmp_path / "loans.csv"
        pd.DataFrame(columns).to_csv(path, index=False)
        settings = conf(
            "lending_club", csv=str(path), dataset_size=len(columns[next(iter(columns))])
        )
        return lending_club(**settings | changes)

    return load


def columns_of(task, *names, conf):
    """Look columns up by name: they come in the order of the configuration."""
    order = [name for name in conf("lending_club")["columns"] if name in names]
    return {name: task.train.inputs[:, k].tolist() for k, name in enumerate(order)}


def test_the_extract_is_read_by_its_ranges(loans, conf):
    task = loans(EXTRACT)
    assert task.input_shape == (5,) and task.num_classes == 1
    assert task.train.targets.tolist() == pytest.approx([0.1189, 0.1071, 0.2164])
    names = [name.replace(".", "_") for name in EXTRACT if name != "int.rate"]
    read = columns_of(task, *names, conf=conf)
    assert read["credit_policy"] == [1, 0, 1] and read["not_fully_paid"] == [0, 0, 1]
    assert read["installment"] == [0.5, 0, 1]  # clamped to 1,500
    assert read["fico"] == [0, 0.5, 1]
    assert read["purpose"] == pytest.approx([0, 1, 1 / 14])


def test_kaggles_table_is_read_by_its_ranges(loans, conf):
    task = loans(KAGGLE, target_unit="percent")
    assert task.train.targets.tolist() == pytest.approx([0.1065, 0.1527, 0.2899])
    names = [name for name in KAGGLE if name not in ("id", "url", "emp_title", "int_rate")]
    assert task.input_shape == (len(names),)
    read = columns_of(task, *names, conf=conf)
    expected = {
        "loan_amnt": [0.125, 1, 0],  # what is missing becomes 0
        "term": [0, 1, 0],
        "sub_grade": [0, 1, 17 / 34],
        "emp_length": [1, 0.1, 0],
        "home_ownership": [0, 0.4, 1],  # a word of no list goes with the last
        "annual_inc": [0.08, 1, 0],
        "issue_d": [4 / 12, 0, 8 / 12],
        "pymnt_plan": [0, 1, 0],
        "zip_code": [860 / 999, 309 / 999, 0],
        "addr_state": [0, 1, 4 / 50],
        "revol_util": [0.837, 0.094, 0],
    }
    assert read.keys() == expected.keys()
    for name, values in expected.items():
        assert read[name] == pytest.approx(values, abs=1e-6), name


@pytest.mark.parametrize("rate", [None, "unknown"])
def test_lines_without_a_rate_are_no_loans(loans, rate):
    longer = {name: [*values, None] for name, values in EXTRACT.items()}
    longer["int.rate"][-1] = rate
    assert loans(longer, dataset_size=3).fingerprint == loans(EXTRACT).fingerprint


def test_one_loan_changes_no_other(loans):
    """What a neighbour's columns look like decides nothing about how a row is read."""
    odd = {"int.rate": 13.0, "fico": "-1e2", "purpose": 7, "installment": "n/a"}
    more = {name: [*values, odd.get(name, "")] for name, values in EXTRACT.items()}
    alone, together = loans(EXTRACT), loans(more)
    assert torch.equal(together.train.inputs[:-1], alone.train.inputs)
    assert torch.equal(together.train.targets[:-1], alone.train.targets)


def test_some_of_the_loans_are_drawn_alike_for_every_run(loans):
    many = {name: [*values] * 5 for name, values in EXTRACT.items()}
    first, again = (loans(many, train_size=6, dataset_size=6) for _ in range(2))
    assert len(first.train) == 6 and first.fingerprint == again.fingerprint
    other = loans(many, train_size=6, dataset_size=6, subset_seed=1)
    assert other.fingerprint != first.fingerprint
    with pytest.raises(ConfigError, match=r"task.dataset_size=15"):
        loans(many, train_size=6)


def test_the_loss_is_relative_to_that_of_the_best_linear_model(loans):
    rng = np.random.default_rng(0)
    table = {
        "int_rate": rng.uniform(5, 25, 60),
        "dti": rng.uniform(0, 40, 60),
        "fico": rng.uniform(600, 800, 60),
    }
    task = loans(table)
    x, y = task.train.inputs.double(), task.train.targets.double()
    best = torch.linalg.lstsq(x, y[:, None]).solution.T
    model = nn.Linear(2, 1, bias=False)
    for theta, least in ((best, 0.0), (2 * best, 0.1), (torch.zeros(1, 2), 0.1)):
        model.weight.data = theta.float()
        loss = ((x @ theta.double().T)[:, 0] - y).square()
        expected = float(loss.mean() / ((x @ best.T)[:, 0] - y).square().mean() - 1)
        got = evaluate(model, task.test, torch.device("cpu"), task.score)
        assert got == pytest.approx(expected, abs=1e-5) and got >= least - 1e-5
        outputs = model(task.train.inputs).detach()
        assert float(task.loss(outputs, task.train.targets)) == pytest.approx(float(loss.sum()))
    assert task.metric == "relative_loss" and task.test is task.train


# Files that are not there, or not what they should be


def test_no_file_is_one_line_that_says_what_to_put_where(conf, tmp_path):
    with pytest.raises(MissingData) as raised:
        lending_club(**conf("lending_club", csv=str(tmp_path / "none.csv")))
    message = str(raised.value)
    assert str(tmp_path / "none.csv") in message and "set task.csv" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "content", ["", "a,b\n1,2\n", "int_rate,x\n0.1,2\n", 'dti,fico\n1,"2\n', "dti,fico\n1,2\n"]
)
def test_a_file_that_is_no_such_table_is_named_in_one_line(conf, tmp_path, content):
    path = tmp_path / "loans.csv"
    path.write_text(content)
    with pytest.raises(ConfigError, match="Expected") as raised:
        lending_club(**conf("lending_club", csv=str(path)))
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_another_size_than_declared_is_refused(loans):
    with pytest.raises(ConfigError, match="task.dataset_size=9578 .* got 3"):
        loans(EXTRACT, dataset_size=9578)


def test_the_real_extract_is_whole(conf, real_data_root):
    path = real_data_root / "lending-club" / "loan_data.csv"
    if not path.is_file():
        pytest.skip(f"no {path}")
    task = lending_club(**conf("lending_club", csv=str(path)))
    assert task.train.inputs.shape == (9578, 13)
    assert 0 <= task.train.inputs.min() and task.train.inputs.max() <= 1
    assert 0.12 < task.train.targets.mean() < 0.125
    for column in task.train.inputs.T:  # none is constant, or beyond its range for many loans
        assert column.std() > 0.01
        assert len(column.unique()) < 10 or (column == 1).float().mean() < 0.03


# The generated regression


def test_the_generated_regression_is_the_same_everywhere(conf):
    task = regression(**conf("regression"))
    assert task.train.inputs.shape == (2000, 50) and task.train.targets.shape == (2000,)
    assert task.fingerprint == FINGERPRINT
    assert regression(**conf("regression", data_seed=1)).fingerprint != FINGERPRINT
    x, y = task.train.inputs.double(), task.train.targets.double()
    theta = torch.linalg.lstsq(x, y[:, None]).solution[:, 0]
    signs = torch.tensor([1.0, -1.0]).repeat(25)
    torch.testing.assert_close(theta, signs.double() / torch.arange(1, 51), atol=0.05, rtol=0)
    assert 0.09 < (x @ theta - y).std() < 0.11
