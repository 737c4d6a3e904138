"""Tables of one's own: numbers and words by what is declared of them, and by nothing else."""

import re
from decimal import Decimal

import pytest
import torch

from tests.own_data import refusal, save_csv, save_lines, save_parquet, task_of

COLUMNS = "task.columns={heating:[gas,oil,none],age:[0,100]}"  # read in the order of their names
HEADER = ["age", "heating", "price", "sold"]
ROWS = [[50, "gas", 100, "yes"], [0, "oil", 300.5, "no"], [120, "none", -50, "yes"]]


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def words(tmp_path):
    save_csv(tmp_path / "train.csv", [HEADER, *ROWS])
    save_csv(tmp_path / "test.csv", [HEADER, *ROWS[:2]])
    return ["task=table", f"data={tmp_path}", "dataset_size=3", "task.target=price", COLUMNS]


RANGE = "task.target_range=[0,200]"


def test_columns_are_mapped_by_what_is_declared_and_others_are_not_read(words, caplog):
    with caplog.at_level("INFO"):
        task = task_of(*words, RANGE)
    ones = [[0.5, 1, 0, 0, 1], [0, 0, 1, 0, 1], [1, 0, 0, 1, 1]]  # the last stands for a constant
    assert torch.equal(task.train.inputs, torch.tensor(ones))
    assert torch.equal(task.train.targets, torch.tensor([0.5, 1.5025, -0.25]))  # scaled, not cut
    assert "not read: sold" in caplog.text and "declared range: age 1" in caplog.text
    outputs = torch.tensor([[0.5], [1.0]])
    assert task.metric == "test_absolute_error"
    assert task.score(outputs, task.test.targets).tolist() == pytest.approx([0, 100.5])  # in price


def test_one_row_changes_no_other(words, tmp_path):
    before = task_of(*words, RANGE).train.inputs
    save_csv(tmp_path / "train.csv", [HEADER, *ROWS[:2], [-1e30, "oil", 1e30, "no"]])
    assert torch.equal(task_of(*words, RANGE).train.inputs[:2], before[:2])


def test_a_class_may_be_predicted(words):
    words[3] = "task.target=sold"
    task = task_of(*words, "task.classes=['no','yes']")
    assert (task.num_classes, task.train.targets.tolist()) == (2, [1, 0, 1])
    assert task.metric == "test_accuracy" and task.train.targets.dtype == torch.int64
    assert "task.target_range=[LOWEST,HIGHEST]" in refusal(*words)
    assert "got both" in refusal(*words, "task.num_classes=2", RANGE)


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "tsv"])
def test_every_format_gives_the_same_examples(words, tmp_path, kind):
    expected = task_of(*words, RANGE)
    for split, rows in (("train", ROWS), ("test", ROWS[:2])):
        path = tmp_path / f"set/{split}.{kind}"
        path.parent.mkdir(exist_ok=True)
        if kind == "tsv":
            save_csv(path, [HEADER, *rows], delimiter="\t")
        elif kind == "jsonl":
            save_lines(path, [dict(zip(HEADER, row, strict=True)) for row in rows])
        else:
            columns = dict(zip(HEADER, map(list, zip(*rows, strict=True)), strict=True))
            save_parquet(path, columns | {"price": [Decimal(str(v)) for v in columns["price"]]})
    words[1] = f"data={tmp_path}/set"
    assert task_of(*words, RANGE).fingerprint == expected.fingerprint


@pytest.mark.parametrize("lacks", [0, 1])
def test_a_line_of_jsonl_that_lacks_a_key_is_to_write_null(words, tmp_path, lacks):
    lines = [dict(zip(HEADER, row, strict=True)) for row in ROWS]
    (tmp_path / "set").mkdir()
    save_lines(tmp_path / "set/test.jsonl", lines)
    words = ["task=table", f"data={tmp_path}/set", *words[2:], RANGE, "task.missing=flag"]
    del lines[lacks]["age"]
    save_lines(tmp_path / "set/train.jsonl", lines)
    assert re.search("rite null (there )?for a missing value", refusal(*words))
    lines[lacks]["age"] = None
    save_lines(tmp_path / "set/train.jsonl", lines)
    assert task_of(*words).train.inputs[lacks].isfinite().all()


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("28,854", "column age, line 2"),
        ("1.234.5", "column age, line 2"),
        ("$5", "column age, line 2"),
        ("5%", "column age, line 2"),
        ("1e39", "column age, line 2"),
        ("inf", "column age, line 2"),
        ("0x10", "column age, line 2"),
        ("٥", "column age, line 2"),
        ("five", "column age, line 2"),
        ("", "line 2.*it is missing.*task.missing=flag"),
        ("NaN", "line 2.*it is missing"),
    ],
)
def test_a_cell_that_is_no_number_is_refused_by_line_and_column(words, tmp_path, cell, said):
    save_csv(tmp_path / "train.csv", [HEADER, [cell, *ROWS[0][1:]], *ROWS[1:]])
    line = refusal(*words, RANGE)
    assert re.search(said, line) and "train.csv" in line, line


def test_missing_cells_may_be_flagged_and_a_missing_target_may_not(words, tmp_path):
    save_csv(tmp_path / "train.csv", [HEADER, ["", "gas", 1, ""], [10, "NA", 2, ""], *ROWS[2:]])
    task = task_of(*words, RANGE, "task.missing=flag")
    assert task.train.inputs[:2].tolist() == [
        [0, 1, 1, 0, 0, 1],
        [pytest.approx(0.1), 0, 0, 0, 0, 1],
    ]
    save_csv(tmp_path / "train.csv", [HEADER, *ROWS[:2], [1, "gas", "", ""]])
    assert "task.target in column price, line 4" in refusal(*words, RANGE, "task.missing=flag")
    assert "Did you mean flag?" in refusal(*words, RANGE, "task.missing=flags")


def test_a_word_that_is_not_declared_is_refused(words, tmp_path):
    save_csv(tmp_path / "train.csv", [HEADER, *ROWS[:2], [1, "Gas", 1, ""]])
    assert "column heating, line 4" in refusal(*words, RANGE)


@pytest.mark.parametrize(
    ("said", "wrong"),
    [
        ("column age", "{age:[100,0]}"),
        ("column age", "{age:[0]}"),
        ("column age", "{age:[0,1,2]}"),
        ("column age", "{age:5}"),
        ("column age", "{age:null}"),
        ("column heating", "{heating:[gas]}"),
        ("column heating", "{heating:[gas,gas]}"),
        ("got ages", "{ages:[0,1]}"),
        ("leave out task.target", "{price:[0,1]}"),
        ("to declare the columns to read", "null"),
        ("to declare the columns to read", "{}"),
        ("to declare the columns to read", "[age,heating]"),
        ("No such file", "age"),
    ],
)
def test_what_is_declared_of_columns_must_be_meant(words, said, wrong):
    line = refusal(*words[:-1], RANGE, f"task.columns={wrong}")
    assert said in line and "Set task.columns" in line


@pytest.mark.parametrize("wrong", ["[1,1]", "[2,1]", "[a,b]", "5", "[0,nan]", "{a:1}"])
def test_what_is_declared_of_the_target_must_be_meant(words, wrong):
    assert "task.target_range" in refusal(*words, f"task.target_range={wrong}")


def test_the_target_is_asked_for_with_the_columns_that_there_are(words):
    line = refusal(*(word for word in words if not word.startswith("task.target")))
    assert "Expected task.target, " in line and "age, heating, price, sold" in line
    assert "Did you mean price?" in refusal(*words, "task.target=prices")


def test_columns_may_have_any_name(tmp_path):
    names = ["int.rate", "a b", "größe", "2019", "class"]
    save_csv(tmp_path / "x.csv", [names, *([index, 1, 2, 3, index % 2] for index in range(6))])
    save_parquet(tmp_path / "x.parquet", {name: [0, 1, 0, 1, 0, 1] for name in names})
    for path in (tmp_path / "x.csv", tmp_path / "x.parquet"):
        columns = "{int.rate: [0,9], a b: [0,9], größe: [0,9], 2019: [0,9]}"
        words = ["task=table", f"data={path}", "dataset_size=4", "task.test_size=2"]
        words += ["task.target=class", "task.num_classes=2", f"task.columns={columns}"]
        assert task_of(*words).train.inputs.shape == (4, 5)


def test_columns_may_be_declared_in_a_file(words, tmp_path):
    expected = task_of(*words, RANGE)
    said = tmp_path / "columns.yaml"
    said.write_text("age: [0, 100]\nheating: [gas, oil, none]\n")
    assert task_of(*words[:-1], RANGE, f"task.columns={said}").fingerprint == expected.fingerprint
    said.write_text("sold: [no, yes]\n")  # which are words, not truth values
    assert task_of(*words[:-1], RANGE, f"task.columns={said}").train.inputs.shape == (3, 3)
    for wrong in ("age: [0", "- age", "", "age"):
        said.write_text(wrong)
        assert "task.columns" in refusal(*words[:-1], RANGE, f"task.columns={said}")
    assert "(No such file or directory)" in refusal(*words[:-1], RANGE, "task.columns=none.yaml")
    said.write_text("age: [0, 100]\nage: [0, 9]\n")  # of which YAML would keep the last
    again = refusal(*words[:-1], RANGE, f"task.columns={said}")
    assert (
        "Expected 'age' once; line 2 has it again. Leave one of them out of task.columns." in again
    )


@pytest.mark.parametrize("yes", ["True", "TRUE", "true"])
def test_truth_values_are_told_apart_however_text_spells_them(tmp_path, yes):
    no = {"True": "False", "TRUE": "FALSE", "true": "false"}[yes]
    lines = [f"{[no, yes][i % 3 == 0]},{[no, yes][i % 2]}" for i in range(6)]
    for split in ("train", "test"):
        text = "\n".join(["a,sold", *lines, f"{yes},{[no, yes][split == 'test']}"])
        (tmp_path / f"{split}.csv").write_text(text)
    words = [f"data={tmp_path}", "task=table", "task.target=sold", "task.classes=[false,true]"]
    task = task_of(*words, "dataset_size=7", "task.columns={a:[False,True]}")
    assert task.train.targets.tolist() == [0, 1, 0, 1, 0, 1, 0]
    assert task.train.inputs[:, 1].tolist() == [1, 0, 0, 1, 0, 0, 1]


def test_truth_values_are_words_or_numbers(tmp_path):
    columns = {"a": [True, False, True, False], "b": [True, True, False, False], "y": [0, 1, 0, 1]}
    path = save_parquet(tmp_path / "x.parquet", columns)
    words = ["task=table", f"data={path}", "dataset_size=3", "task.test_size=1", "task.target=y"]
    task = task_of(*words, "task.num_classes=2", "task.columns={a:[false,true],b:[0,1]}")
    assert task.train.inputs.shape == (3, 4)


def test_a_file_without_rows_is_refused_as_what_it_is(tmp_path):
    path = tmp_path / "empty.csv"
    path.write_text("x,y\n")
    words = ["task=table", f"data={path}", "dataset_size=4", "task.test_size=2", "task.target=y"]
    line = refusal(*words, "task.target_range=[0,1]", "task.columns={x:[0,1]}")
    assert "Expected examples to train on and to test on" in line and "the data have 0." in line


ODD_TABLES = [
    ("a,y|1,no|2,yes|3,|4,no", "task.classes=[no,yes]", "column y, line 4 of", "missing. Rem"),
    ("a,y|1,no|2,yes|3,|4,no", "task.classes=read", "column y, line 4 of", "it is missing. Remove"),
    ("a, y|1,no|2,yes|3,no|4,no", "task.classes=read", "has a, ' y'; got y. Did you mean ' y'?",
     "or quote twice: 'task.target=\" y\"'."),
    ("a,y|1,no|2,yes|3,no|4,no", "task.classes=[no,sir,yes,sir]", "with sir twice",
     "quoted within the word: 'task.classes=[\"yes, often\",no]'."),
    ("a,y|1,no|2,yes", "task.classes=[no,yes]", "Expected task.test_size below 2, the number of",
     "Set task.test_size."),
    ("a,y|1,no", "task.classes=[no,yes]", "beside task.test_size=2; ", "holds 1. Set data"),
]  # fmt: skip


@pytest.mark.parametrize(("lines", "classes", "says", "way"), ODD_TABLES)
def test_an_odd_table_is_refused_by_what_is_odd(lines, classes, says, way, tmp_path):
    """A missing label was asked to be "no", and a file all of which is test data, to hold none."""
    path = tmp_path / "x.csv"
    path.write_text(lines.replace("|", "\n"), encoding="utf-8")
    words = ["task=table", f"data={path}", "dataset_size=count", "task.test_size=2"]
    line = refusal(*words, "task.target=y", classes, "task.columns={a:[0,9]}")
    assert says in line and way in line


def test_classes_with_commas_and_columns_with_spaces_are_named_as_is_advised(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('a, y\n1,"yes, often"\n2,no\n3,"yes, often"\n4,no\n', encoding="utf-8")
    words = ["task=table", f"data={path}", "dataset_size=2", "task.test_size=2"]
    task = task_of(
        *words, 'task.target=" y"', 'task.classes=["yes, often",no]', "task.columns={a:[0,9]}"
    )
    assert task.train.inputs.shape == (2, 2)
