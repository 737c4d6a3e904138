"""Records that anyone may have written: none crashes or hangs a table, or has words in it.

One line names the record; the rest of the table is built.
"""

import csv
import io
import json
import os
import re
import time
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import yaml

from dpexp import records
from dpexp.records.safely import MOST_BYTES, Damaged, parse_yaml
from dpexp.reporting import collect
from dpexp.reporting.collect import cells
from dpexp.reporting.render import markdown, page, table
from dpexp.reporting.render.csv_files import csv_text
from dpexp.reporting.render.escape import for_csv, for_markdown
from dpexp.reporting.render.latex import latex
from dpexp.reporting.schema import spec
from dpexp.reporting.text import clean
from tests.marks import few

DEEP = 100_000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n"
    for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)


def edit(name, **change):
    def apply(directory):
        path = directory / name
        path.write_text(json.dumps(json.loads(path.read_text()) | change))

    return apply


def put(name, content):
    def apply(directory):
        path = directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())

    return apply


def replaced(name, make):
    def apply(directory):
        (directory / name).unlink()
        make(directory / name)

    return apply


def more(name, text):
    def apply(directory):
        with (directory / name).open("a") as file:
            file.write(text)

    return apply


HTML = "<script>alert(1)</script><img src=x onerror=alert(1)> [here](javascript:alert(1)) `a` |"

UNREADABLE = {
    **{
        f"deep {n}": put(n, '{"a":' * DEEP + "1" + "}" * DEEP)
        for n in ("result.json", "privacy.json")
    },
    "deep lists": put("privacy.json", "[" * DEEP),
    "deep lines": more("metrics.jsonl", '{"step": ' + "[" * DEEP + "\n"),
    "deep YAML": put("config.yaml", "[" * 2_000),
    "an alias bomb": put("config.yaml", BOMB),
    "an alias of itself": put("config.yaml", "a: &a [*a]\n"),
    "a large config": put("config.yaml", "a: [" + "1, " * 10**5 + "]"),
    "no UTF-8": put("result.json", b'{"a": "\xff\xfe"}'),
    "NaN": put("privacy.json", '{"epsilon": NaN}'),
    "infinity": put("result.json", '{"test_accuracy": 1e999}'),
    "a huge number": put("result.json", '{"test_accuracy": 1' + "0" * 400 + "}"),
    "a number of 5,000 digits": put("result.json", '{"a": ' + "9" * 5000 + "}"),
    "a key twice": put("result.json", '{"test_accuracy": 1, "test_accuracy": 99}'),
    "a key twice in YAML": more("config.yaml", "\neps: 1\neps: 2\n"),
    "a date": more("config.yaml", "\nwhen: 2020-01-01\n"),
    "a tag": more("config.yaml", "\nx: !!python/object/apply:os.system ['true']\n"),
    "a list": put("result.json", "[1, 2]"),
    "a word": put("privacy.json", '"epsilon"'),
    "nothing": put("privacy.json", ""),
    "a folder": replaced("result.json", os.mkdir),
    "a pipe": replaced("privacy.json", os.mkfifo),
    "a loop of links": replaced("privacy.json", lambda path: path.symlink_to(path)),
    "an endless device": replaced("metrics.jsonl", lambda path: path.symlink_to("/dev/zero")),
    "lines of no dicts": put("metrics.jsonl", "1\n2\n"),
    "releases of no dicts": edit("privacy.json", releases=[1]),
    "an epsilon of words": edit("privacy.json", epsilon={"prv": HTML, "rdp": 9.0}),
    "a list for a dict": edit("privacy.json", epsilon=[1.0]),
}

REFUSED = {
    "a count of 10^12": edit("privacy.json", steps=10**12, noise_draws=10**12),
    "words of its own": edit("privacy.json", deviations=[HTML]),
    "deviations of no words": edit("privacy.json", deviations=[["a"], 3]),
    "a formula": edit("privacy.json", deviations=["=cmd|' /C calc'!A0"]),
    "a word for a number": edit("result.json", test_accuracy="99"),
    "a list for a number": edit("result.json", test_accuracy=[99.0]),
    "true for a number": edit("result.json", test_accuracy=True),
    "a number for a name": edit("result.json", metric=7),
    "a list for a name": edit("result.json", metric=["test_accuracy"]),
    "a device of HTML": edit("result.json", device=[HTML]),
    "names of HTML": edit("privacy.json", trainable={HTML: 10}),
    "a large key": edit("privacy.json", **{"k" * 19_000: 1}),
}


@pytest.fixture
def built(make, conf, lab):
    """Build the demo's table, spoil one record, and give what is then shown, running nothing."""
    make(name="table9")
    artifact = spec.load(conf, "demo", "table9")
    jobs = [j for j in cells.expand(artifact, "embedded", lab.compose, conf) if j.config]
    victim = next(job for job in jobs if job.cell == ("better", "eps2"))

    def shown(spoil):
        directory = records.locate(lab.results, victim.config)
        spoil(directory)
        begun = time.monotonic()
        outcomes = [collect.outcome(job, lab.results) for job in jobs]
        assert time.monotonic() - begun < 20
        values = collect.collect(artifact, outcomes)
        return victim, table.Table(artifact, "embedded", values, (), ())

    return shown


def lines_on(victim, text):
    return [line for line in text.splitlines() if line.startswith("-") and victim.run_id in line]


@pytest.mark.parametrize("how", few(UNREADABLE, [*UNREADABLE][::3]))
def test_a_record_that_cannot_be_read_is_one_line_and_the_rest_is_built(how, built):
    victim, shown = built(UNREADABLE[how])
    text = markdown.markdown(shown)
    (line,) = lines_on(victim, text)
    assert "damaged" in line and len(line) < 400 and "<script" not in text
    values = shown.values
    assert values["better", "eps2"].num_seeds == 1 and values["better", "eps4"].num_seeds == 2


@pytest.mark.parametrize("how", few(REFUSED, [*REFUSED][::2]))
def test_a_record_of_nonsense_is_refused_in_one_line_without_its_words(how, built):
    victim, shown = built(REFUSED[how])
    text = markdown.markdown(shown)
    (line,) = lines_on(victim, text)
    assert line.startswith("- refused: ") and len(line) < 1500
    assert shown.values["better", "eps2"].num_seeds == 1
    for written in (text, latex(shown)):
        assert "<script" not in written and "<img" not in written
        assert not re.search(r"(?<!\\)\]\(javascript", written)
    for cell in (c for row in csv.reader(io.StringIO(csv_text(shown))) for c in row):
        assert not cell.startswith(("=", "@", "+")) and "\n" not in cell


def test_words_of_a_certificate_are_escaped_wherever_they_stand(built, tmp_path):
    """As those of a user's own attack or loop, which are not refused."""
    victim, shown = built(lambda directory: None)
    values = dict(shown.values)
    cell = ("plain", "eps2")
    values[cell] = replace(values[cell], deviations=(HTML, "=1+1"))
    loaded = replace(shown, values=values)
    text = markdown.markdown(loaded)
    assert "<script" not in text and "&lt;script" in text and r"\[here\](javascript" in text
    html = page.html([page.Entry(loaded)], "embedded", tmp_path).replace("<script>\n", "")
    assert "<script" not in html and "&lt;script" in html
    rows = list(csv.DictReader(io.StringIO(csv_text(loaded))))
    assert all(not row["deviations"].startswith("=") for row in rows)


@pytest.mark.parametrize("text", [HTML, "=1", "-1+1", "@a", "+a", "a\nb\r\0", "x" * 10**6])
def test_plain_words_are_one_short_line_and_compute_nothing(text):
    for safe in (clean(text), for_markdown(text), for_csv(text)):
        assert "\n" not in safe and "\0" not in safe and len(safe) < 1000
    assert not for_csv(text).startswith(("=", "+", "-", "@"))
    assert "<" not in for_markdown(text)
    assert for_csv(-1.5) == -1.5 and clean("ε ± 3") == "ε ± 3"


# Arrays


def bomb(path):
    """Write arrays that unpack to a thousand times their size."""
    np.savez_compressed(path, **{"stable_rank/head": np.zeros(10**6), "epoch": np.zeros(10**6)})


def claims(path):
    """Write an array of a few bytes that says it has 10^15 entries."""
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        head, {"descr": "<f8", "fortran_order": False, "shape": (10**15,)}
    )
    with zipfile.ZipFile(path, "w") as whole:
        whole.writestr("stable_rank/head.npy", head.getvalue())


ARRAYS = {
    "objects": lambda path: np.savez(path, **{"stable_rank/head": np.array([print, {}], object)}),
    "words": lambda path: np.savez(path, **{"stable_rank/head": np.array(["a"]), "epoch": [0.0]}),
    "complex numbers": lambda path: np.savez(
        path, **{"stable_rank/head": np.ones(1) * 1j, "epoch": [0]}
    ),
    "no zip": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(100)),
    "a bomb": bomb,
    "a claim": claims,
    "a folder": lambda path: (path.unlink(), path.mkdir()),
}


@pytest.mark.parametrize("write", ARRAYS.values(), ids=ARRAYS)
def test_arrays_that_are_none_are_no_series_in_one_line(write, tmp_path, monkeypatch):
    path = tmp_path / records.ANALYSIS
    path.touch()
    monkeypatch.setitem(MOST_BYTES, ".npz", 10**7)
    write(path)
    with pytest.raises(records.NoSeries) as caught:
        records.series(tmp_path, "stable_rank/head", "epoch")
    assert "\n" not in str(caught.value)


def test_what_we_write_is_read(tmp_path):
    """YAML with an alias, and every scalar, is plain content."""
    shared = [0.9, 0.999]
    value = {"a": shared, "b": shared, "c": None, "d": True, "e": -3, "f": 1e-5, "g": "ε"}
    assert parse_yaml(yaml.safe_dump(value)) == value
    value["h"] = "x" * 1000  # by Python's own parser, as a line so long could nest as deeply
    assert parse_yaml(yaml.safe_dump(value)) == value


@pytest.mark.parametrize("level", ["- ", "? ", "{a: ", "- ? "])
def test_no_nesting_ends_the_process(level):
    """libyaml's loader would overflow the stack."""
    with pytest.raises(Damaged):
        parse_yaml(level * 40_000)
