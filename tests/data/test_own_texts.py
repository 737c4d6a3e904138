"""Texts of one's own: parquet, CSV, TSV and JSONL, in any of the forms that people keep."""

import re

import pyarrow as pa
import pytest

from tests.own_data import refusal, save_csv, save_lines, save_parquet, task_of
from tests.texts import WORDS, sentences

LABELS = ["good", "bad", "good", "bad"]
TRAIN, TEST = sentences(4), sentences(4, seed=1)


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


@pytest.fixture
def words(tmp_path, tiny_models):
    """Return the words that name the texts below a folder."""
    (tmp_path / "set").mkdir()
    return [
        *("task=texts", f"data={tmp_path}/set", "dataset_size=4", "task.classes=[bad,good]"),
        *("task.tokenizer=tiny/bert", f"model_root={tiny_models}", "task.max_length=8"),
    ]


def write(folder, kind, texts, labels, split):
    rows = [["text", "label"], *map(list, zip(texts, labels, strict=True))]
    path = folder / f"{split}{kind}"
    if kind == ".jsonl":
        return save_lines(path, [dict(zip(rows[0], row, strict=True)) for row in rows[1:]])
    if kind == ".parquet":
        return save_parquet(path, {"text": texts, "label": labels})
    return save_csv(path, rows, delimiter="\t" if kind == ".tsv" else ",")


def save(folder, kind=".csv"):
    write(folder, kind, TRAIN, LABELS, "train")
    write(folder, kind, TEST, LABELS, "test")


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet", ".CSV"])
def test_every_format_gives_the_same_examples(tmp_path, words, kind):
    save(tmp_path / "set", kind)
    task = task_of(*words)
    assert (task.name, task.num_classes, task.input_shape) == ("texts:set", 2, (3, 8))
    assert task.train.targets.tolist() == [1, 0, 1, 0]
    lengths = [min(len(text.split()) + 2, 8) for text in TRAIN]
    assert task.train.encoded.lengths.tolist() == lengths
    assert task.train.encoded.ids[0, 1] == 4 + WORDS.index(TRAIN[0].split()[0])


def test_pairs_of_texts_are_two_columns_and_are_asked_for(tmp_path, words):
    rows = [["one", "two", "label"]] + [["good film", "bad", "good"]] * 4
    save_csv(tmp_path / "set/train.csv", rows)
    save_csv(tmp_path / "set/test.csv", rows[:3])
    assert "got one, two. Set task.text_columns" in refusal(*words)
    task = task_of(*words, "task.text_columns=[two,one]")
    assert task.train.encoded.seconds.tolist() == [3] * 4
    for wrong in ("[one,one]", "[]", "[one,tow]", "7", "{a:b}"):
        assert "task.text_columns" in refusal(*words, f"task.text_columns={wrong}")
    assert len(task_of(*words, "task.text_columns=one").train) == 4


@pytest.mark.parametrize(
    "text",
    [
        'say "good"',
        "good,\nbad",
        "good; bad\tfilm",
        "  good ",
        "prêt 日本 😀",
        "NA",
        "null",
        "1",
        "good\r\nbad",
        "x" * 200_000,
    ],
    ids=lambda text: repr(text[:12]),
)
def test_csv_keeps_every_text_as_it_is(tmp_path, words, text):
    from dpexp.data import rows

    path = save_csv(tmp_path / "set/train.csv", [["text", "label"], [text, "good"]])
    assert [row.cells for row in rows.read(path, ["text", "label"], None)] == [[text, "good"]]
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())  # a byte-order mark
    assert [row.cells for row in rows.read(path, ["text", "label"], None)] == [[text, "good"]]
    assert rows.count(path, None) == 1


def test_other_delimiters_are_asked_for_and_taken(tmp_path, words):
    rows = [["text", "label"], *map(list, zip(TRAIN, LABELS, strict=True))]
    for split in ("train", "test"):
        save_csv(
            tmp_path / f"set/{split}.csv", rows + [["a", "bad"]] * (split == "test"), delimiter=";"
        )
    assert "Set task.delimiter=';'" in refusal(*words)
    assert len(task_of(*words, "task.delimiter=;").train) == 4
    for wrong in ("ab", "'\"'", "1.5", "[a]"):
        assert "task.delimiter" in refusal(*words, f"task.delimiter={wrong}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is empty"),
        (b"\n\n", "it is empty"),
        (b"text,label\ngood\n", "line 2 has 1 cell"),
        (b"text,label\ngood,bad,good\n", "line 2 has 3 cells"),
        (b'text,label\n"good,bad\n', "cannot be read after line 1"),
        (b'text,label\n"good"x,bad\n', "cannot be read after line 1"),
        (b"text,label\nfian\xe7ailles,good\n", "line 2 is in another encoding .* Save it in UTF-8"),
        (b"\xff\xfet\x00e\x00x\x00t\x00", "line 1 is in another encoding .* Save it in UTF-8"),
        (b"text,text,label\na,b,good\n", "columns text, label .* each once"),
        (b"text\ngood\n", "label"),
        (b"text,label\n,good\n", "column text, line 2 .* holds nothing"),
        (b"text,label\ngood,\n", "column label, line 2 .* it is missing"),
        (b"text,label\ngood,fine\n", "line 2 .* got 'fine'"),
    ],
    ids=str,
)
def test_a_csv_file_that_is_not_whole_is_refused_by_line(tmp_path, words, content, said):
    save(tmp_path / "set")
    path = tmp_path / "set/train.csv"
    path.write_bytes(content)
    line = refusal(*words, "task.text_columns=[text]", "task.label_column=label")
    assert re.search(said, line) and str(path) in line, line


def test_a_header_alone_holds_no_examples(tmp_path, words):
    save(tmp_path / "set")
    (tmp_path / "set/test.csv").write_text("text,label\n")
    assert "at least one example for test_accuracy" in refusal(*words)
    (tmp_path / "set/train.csv").write_text("text,label \n")
    assert "label" in refusal(*words)


def test_a_quote_that_is_not_closed_in_a_tsv_file_swallows_no_rows(tmp_path, words):
    save(tmp_path / "set", ".tsv")
    (tmp_path / "set/train.tsv").write_text('text\tlabel\n"good\tbad\nfine"\tgood\n')
    assert "Remove the quote, or save it as CSV." in refusal(*words)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "good"}', "key label in line 2"),
        ('{"text": 7, "label": "good"}', "line 2 .* holds int 7"),
        ('{"text": null, "label": "good"}', "line 2 .* holds null"),
        ('{"text": ["good"], "label": "good"}', "line 2 .* holds list"),
        ('{"text": "a", "text": "b", "label": "good"}', "key text twice"),
        ('{"text": "a", "label": {"x": 1}}', "line 2 .* got {'x': 1}"),
        ('{"text": "a", "label": NaN}', "line 2 .* NaN"),
        ('{"text": "a", "label": -1e400}', "line 2 .* -1e400"),
        ('{"text": "a", "label": null}', "line 2 .* it is missing"),
        ('{"text": "\\ud800", "label": "good"}', "surrogate"),
        ('["a", "good"]', "line 2 .* holds list"),
        ('{"text": "a"', "line 2 cannot be read"),
        ("[" * 100_000, "line 2 cannot be read"),
    ],
    ids=lambda value: value[:30],
)
def test_a_line_of_jsonl_that_is_no_example_is_refused(tmp_path, words, line, said):
    save(tmp_path / "set", ".jsonl")
    first = '{"text": "good", "label": "good"}\n'
    (tmp_path / "set/train.jsonl").write_text(f"{first}{line}\n")
    refused = refusal(*words, "task.text_columns=[text]")
    assert re.search(said, refused) and "train.jsonl" in refused, refused


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl"])
def test_the_first_line_in_another_encoding_is_named(tmp_path, words, kind):
    save(tmp_path / "set", kind)
    path = tmp_path / f"set/train{kind}"
    path.write_bytes(path.read_bytes() + "fiançailles\n".encode("cp1252"))
    line = path.read_bytes().count(b"\n")
    assert f"line {line} is in another encoding" in refusal(*words)


@pytest.mark.parametrize("texts", [[1, 2], [None, "a"], [["a"], ["b"]], [b"a", b"b"]], ids=str)
def test_a_parquet_column_that_holds_no_texts_is_refused_by_row(tmp_path, words, texts):
    save(tmp_path / "set", ".parquet")
    save_parquet(tmp_path / "set/train.parquet", {"text": texts, "label": ["good", "bad"]})
    assert "column text, row 0" in refusal(*words, "task.text_columns=[text]")


def test_parquet_texts_of_every_type_are_read_and_broken_ones_refused(tmp_path, words):
    save(tmp_path / "set", ".parquet")
    kinds = [pa.array(TRAIN, kind) for kind in (pa.large_string(), pa.string_view())]
    for texts in (*kinds, pa.array(TRAIN).dictionary_encode()):
        save_parquet(tmp_path / "set/train.parquet", {"text": texts, "label": LABELS})
        assert len(task_of(*words).train) == 4
    broken = pa.array([b"good", b"\xff\xfe", b"a", b"b"]).view(pa.string())
    save_parquet(tmp_path / "set/train.parquet", {"text": broken, "label": LABELS})
    assert re.search("row 1 .* cannot", refusal(*words))
    (tmp_path / "set/train.parquet").write_bytes(b"PAR1 no more")
    assert "it is corrupt" in refusal(*words)


def test_labels_that_are_whole_numbers_in_a_file_of_texts_may_be_indices(tmp_path, words):
    for split, labels in (("train", "1010"), ("test", "01")):
        rows = [["text", "label"], *([f"good {split}", label] for label in labels)]
        save_csv(tmp_path / f"set/{split}.csv", rows)
    assert task_of(*words).train.targets.tolist() == [1, 0, 1, 0]
    save_csv(tmp_path / "set/train.csv", [["text", "label"], ["good", "1.0"]])
    assert "line 2 " in refusal(*words)


def test_the_column_of_labels_is_found_or_asked_for(tmp_path, words):
    folder = tmp_path / "set"
    for split in ("train", "test"):
        columns = {"text": sentences(4, seed=len(split)), "mood": [1, 0, 0, 1], "idx": [0, 1, 2, 3]}
        save_parquet(folder / f"{split}.parquet", columns, {"mood": ["bad", "good"]})
    assert task_of(*words).train.targets.tolist() == [1, 0, 0, 1]
    for split in ("train", "test"):
        save_parquet(folder / f"{split}.parquet", columns | {"text": sentences(4, len(split))})
    assert "its columns are text, mood, idx. Set task.label_column" in refusal(*words)
    assert len(task_of(*words, "task.label_column=mood").train) == 4
    assert "Did you mean mood?" in refusal(*words, "task.label_column=moods")


def test_a_model_without_a_tokenizer_is_refused(tmp_path, words):
    save(tmp_path / "set")
    line = refusal(*[word for word in words if "tokenizer" not in word], "model=bert_tiny")
    assert "Expected a pretrained language model for task texts:set" in line
    assert "model=hf" in line


@pytest.mark.parametrize(
    ("classes", "labels", "said"),
    [
        ("read", [2, 1, "none", 2], [1, 0, 2, 1]),
        ("[1,2,none]", [2, 1, 1, 2], [1, 0, 0, 1]),
        ("[2.0,0.0,1.0]", [2.0, 0.0, 1.0, 2.0], [0, 1, 2, 0]),
        ("[0.5,1.0,1.5]", [0.5, 1.5, 1.0, 0.5], [0, 2, 1, 0]),
        ("read", [0.5, 1.5, 1.0, 0.5], [0, 2, 1, 0]),
    ],
)
def test_a_number_is_the_class_that_is_called_so(tmp_path, words, classes, labels, said):
    write(tmp_path / "set", ".jsonl", TRAIN, labels, "train")
    write(tmp_path / "set", ".jsonl", TEST, labels, "test")
    task = task_of(*words, f"task.classes={classes}")
    assert task.train.targets.tolist() == task.test.targets.tolist() == said


@pytest.mark.parametrize("label", [0, 3, "0", "3", float("nan")])
def test_a_number_is_no_index_beside_classes_that_are_numbers(tmp_path, words, label):
    kind = ".parquet" if label != label else ".jsonl"  # JSON has no NaN
    write(tmp_path / "set", kind, TRAIN, [label] * 4, "train")
    write(tmp_path / "set", kind, TEST, [1 if kind == ".jsonl" else 1.0] * 4, "test")
    assert "Set task.classes" in refusal(*words, "task.classes=[1,2,nan]")


@pytest.mark.parametrize("other", ["1.0", "01", "+1", "1."])
def test_a_number_that_is_written_in_two_ways_is_not_read_as_two_classes(tmp_path, words, other):
    write(tmp_path / "set", ".csv", TRAIN, ["1", "0", "1", "0"], "train")
    write(tmp_path / "set", ".csv", TEST, [other, "0", other, "0"], "test")
    assert "one number, and would be two classes" in refusal(*words, "task.classes=read")


def test_labels_that_no_file_can_hold_are_refused_before_the_training(tmp_path, words):
    write(tmp_path / "set", ".jsonl", TRAIN, ["good", "\ud800", "good", "\ud800"], "train")
    write(tmp_path / "set", ".jsonl", TEST, ["good"] * 4, "test")
    assert "half of a surrogate pair" in refusal(*words, "task.classes=read")
