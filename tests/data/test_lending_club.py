"""The two regressions: what is read from loans of both formats, and how both are judged."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from dpexp import cli
from dpexp.cli import lookup
from dpexp.data.lending_club import lending_club
from dpexp.data.regression import regression
from dpexp.training.judging import evaluate
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


# How cells are written


BOUND = [
    ("emp_length", "6 months", "years such as 3 years"),
    ("emp_length", "860xx", "years such as"),
    ("term", "3 years", "months such as 36 months"),
    ("term", "36.5", "months such as"),
    ("annual_inc", "123xx", "a number, such as"),
    ("annual_inc", "36 months", "a number, such as"),
    ("annual_inc", "1e39", "a number, .*below 1e38"),
    ("loan_amnt", "Dec-2011", "a number, such as"),
    ("int_rate", "5 years", "a percentage such as"),
    ("int_rate", "1e308", "a percentage such as"),
    ("zip_code", "86001", "three digits of a zip code"),
    ("zip_code", "36 months", "three digits of a zip code"),
    ("revol_util", "10+ years", "a percentage such as"),
    ("issue_d", "2011-13", "a date such as"),
    ("issue_d", "Xyz-2011", "a date such as"),
    ("issue_d", "201112", "a date such as"),
    ("issue_d", "11", "a date such as"),
]


@pytest.mark.parametrize(("column", "text", "expected"), BOUND)
def test_a_form_of_another_column_is_refused_by_line_and_column(column, text, expected, loans):
    columns = {**KAGGLE, column: [KAGGLE[column][0], text, KAGGLE[column][2]]}
    with pytest.raises(ConfigError, match=f"{expected}") as raised:
        loans(columns, target_unit="percent")
    said = str(raised.value)
    assert f"in column {column} of" in said and f"line 3 holds {text!r}" in said


@pytest.mark.parametrize("text", ["1e308", "1e39", "5 years", "Dec-2011", "123xx"])
def test_a_rate_under_fraction_is_a_number_that_float32_holds(text, loans):
    with pytest.raises(ConfigError, match=f"column int_rate .*line 3 holds '{text}'"):
        loans({**EXTRACT, "int.rate": [0.1, text, 0.2]})


def test_a_range_that_begins_late_does_not_make_dates_of_numbers(conf, tmp_path):
    columns, settings = {**EXTRACT, "annual_inc": [2000, 3000, 12000]}, conf("lending_club")
    path = tmp_path / "loans.csv"
    pd.DataFrame(columns).to_csv(path, index=False)
    settings |= {"csv": str(path), "dataset_size": 3, "columns": {"annual_inc": [2000, 12000]}}
    task = lending_club(**settings)
    assert task.train.inputs[:, 0].tolist() == pytest.approx([0, 0.1, 1])


AMBIGUOUS = """28,854|0,1189|1,234,567|1.234.567|1.234,5|28 854|28\u00a0854|28\u202f854|28'854|1_000
$5000|2011-12-01|Dec-2011|5000$|5000 USD|€5|(500)|1/2|inf|-inf|Infinity|1e400|0x1F|1d3
\u0661\u0662|\u22125|Dec-11|12/1/2011|01-Dec-2011|high|1 2|--5|1e|e5|.|5,%|12,5%|true|36 mois"""


@pytest.mark.parametrize("text", AMBIGUOUS.replace("\n", "|").split("|"))
@pytest.mark.parametrize("column", ["int.rate", "installment"])
def test_what_can_be_read_in_two_ways_is_refused_by_line_and_column(text, column, loans):
    columns = {**EXTRACT, column: [*EXTRACT[column][:2], text]}
    with pytest.raises(ConfigError) as raised:
        loans(columns)
    said = str(raised.value)
    assert f"in column {column.replace('.', '_')} of" in said and f"line 4 holds {text!r}" in said


@pytest.mark.parametrize("nothing", ["", " ", "NA", "n/a", "NaN", "null", "None", "#N/A"])
def test_what_is_missing_is_not_refused(nothing, loans):
    task = loans({**EXTRACT, "installment": [750.0, nothing, 3000.0]})
    assert task.fingerprint == loans({**EXTRACT, "installment": [750.0, None, 3000.0]}).fingerprint


def test_a_per_cent_sign_is_taken_where_a_column_is_per_cent(loans):
    rates = {**EXTRACT, "int.rate": ["11.89%", "10.71%", "21.64%"]}
    read = loans(rates, target_unit="percent").train.targets
    assert read.tolist() == pytest.approx(EXTRACT["int.rate"])
    with pytest.raises(ConfigError, match="without a per cent sign in column int_rate .*line 2"):
        loans(rates)
    with pytest.raises(ConfigError, match="without a per cent sign in column fico .*line 3"):
        loans({**EXTRACT, "fico": [300, "75%", 850]})


def test_a_rate_that_is_no_number_is_refused_where_the_loan_has_other_columns(loans):
    with pytest.raises(ConfigError, match="column int_rate .*line 3 holds 'unknown'"):
        loans({**EXTRACT, "int.rate": [0.1, "unknown", 0.2]})


HEADER = "int.rate,fico,dti\n"
ROWS = "0.1,700,5\n0.2,650,7\n"


@pytest.fixture
def written(conf, tmp_path):
    """Loads a table written as bytes."""

    def load(content, **changes):
        path = tmp_path / "loans.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return lending_club(**{**conf("lending_club", csv=str(path), dataset_size=2), **changes})

    return load


@pytest.mark.parametrize(
    "content",
    [
        b"\xef\xbb\xbf" + (HEADER + ROWS).encode(),
        (HEADER + ROWS).replace("\n", "\r\n"),
        (HEADER + ROWS).rstrip("\n"),
        (HEADER + ROWS).replace("\n", "\n\n"),
        '"int.rate","fico","dti"\n"0.1","700"," 5 "\n0.2,650,7\n',
        HEADER + ROWS + "Total amount funded in policy code 1: 460296150\n",
        HEADER + ROWS + '"Loans that do not meet, the credit policy",,\n',
        " int_rate ,fico,dti\n" + ROWS,
        'fico,int.rate,dti,url\n700,0.1,5,a\n650,0.2,7,"b, c"\n',
    ],
)
def test_one_table_is_written_in_many_ways(content, written):
    assert written(content).fingerprint == written(HEADER + ROWS).fingerprint


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("int.rate,int_rate,fico\n0.1,0.1,700\n", "one column int_rate .*got int.rate, int_rate"),
        ("int.rate,fico,fico\n0.1,700,700\n", "one column fico .*got fico, fico"),
        ("int.rate;fico\n0,1;700\n", "with commas between them; got int.rate;fico"),
        ("int.rate\tfico\n0.1\t700\n", "with commas between them"),
        ("int.rate,fico\n0,1189,700\n", "after line 2 .it has 3 cells, the header 2"),
        (HEADER + "0.1,700\n" + ROWS, "after line 2 .it has 2 cells, the header 3"),
        (HEADER + ROWS + "0.1", "after line 4 .it has 1 cell, the header 3"),
        (HEADER + ROWS + '0.1,"700,5\n', "after line 3 .unexpected end of data"),
        ((HEADER + ROWS).encode("utf-16"), "table in UTF-8"),
        ((HEADER + "0.1,700,5 \u20ac\n").encode("cp1252"), "table in UTF-8"),
        (b"PK\x03\x04\x14\xff\xfe", "table in UTF-8.*unpack"),
        ("", "got none"),
    ],
)
def test_a_table_that_can_be_read_in_two_ways_is_refused(content, expected, written):
    with pytest.raises(ConfigError, match=expected) as raised:
        written(content)
    assert "\n" not in str(raised.value) and "loans.csv" in str(raised.value)


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


def test_a_look_up_reads_the_columns_in_the_order_of_the_run(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "loans.csv"
    path.write_text("int.rate,installment,fico\n0.1,750,300\n0.2,100,575\n0.3,3000,850\n")
    words = ["method=dpsgd", "task=lending_club", f"task.csv={path}", "task.dataset_size=3"]
    config = cli.compose(words)
    trained = cli.build_task(config, torch.device("cpu")).fingerprint
    assert lookup.compare(config, {"data_fingerprint": trained}).other == ""
