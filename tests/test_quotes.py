"""Words as a person types them: folders of any name, homes, and no quotes for Hydra's sake."""

import os
from pathlib import Path

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st

from dpexp import cli
from dpexp.cli import audit, verify
from dpexp.cli.arguments import split
from dpexp.cli.config_cache import Configs
from dpexp.cli.quoting import quoted, readable
from dpexp.records import RecordError
from dpexp.records.caches import cache_dir
from dpexp.types import ConfigError

RUN = ["method=linear", "task=digits", "profile=embedded"]
ODD = st.text(st.one_of(st.sampled_from("\\'\" ,=[]{}()$~:#\n\té"), st.characters()))


def value_of(word):
    (override,) = OverridesParser.create().parse_overrides([word])
    assert not override.is_sweep_override()
    return override.value()


@given(ODD)
def test_whatever_is_quoted_is_read_as_it_stands(text):
    assert value_of(f"results={quoted(text)}") == text


@given(ODD.filter(lambda text: text.strip() and text[0] not in "'\"[{"))
def test_a_folder_is_taken_as_it_stands_or_refused(text):
    """But for spaces around it, as in a command line, and for what has a meaning of its own."""
    (word,) = readable([f"results={text}"])
    found = value_of(word)
    if isinstance(found, str):
        # Hydra takes a backslash away that stands before one of its own marks.
        assert found == text or "\\" in text or found.strip() == text.strip(" \t")
    else:
        assert found is None or isinstance(found, bool)


@pytest.mark.parametrize(
    "name",
    [
        "dépôt",
        "日本/ü",
        "a b",
        "a=b",
        "a,b",
        "it's",
        "2024",
        "007",
        "1e3",
        "a#b",
        "(a)",
        "x;y",
        "a&b",
    ],
)
def test_any_name_can_be_that_of_a_folder(name):
    for setting in ("results", "data_root", "model_root"):
        assert cli.compose([*RUN, f"{setting}={name}"])[setting] == name


def test_scripts_take_the_same_names():
    assert split(["results=a,b"], {})[1] == ["results='a,b'"]
    assert split(["task.csv=prêts.csv"], {})[1] == ["task.csv='prêts.csv'"]


def test_a_sweep_over_folders_is_still_one():
    assert readable(["results=a,b", "eps=1,2"], is_sweep=True) == ["results=a,b", "eps=1,2"]


@pytest.mark.parametrize("word", ["eps=1,2", "model.channels=[4,8]", "eps", "-m", "~model.depth"])
def test_what_hydra_reads_is_left_to_it(word):
    assert readable([word]) == [word]


def test_homes_and_variables_are_where_the_shell_has_them(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("MINE", "there")
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "cache"))
    words = ["results=~/a", "model_root=$MINE/b", "task=svhn", "data_root=~"]
    config = Configs().compose([*RUN, *words])
    assert config["results"] == str(tmp_path / "a") and config["model_root"] == "there/b"
    assert config["data_root"] == config["task"]["data_root"] == str(tmp_path)
    monkeypatch.setenv("HOME", "/elsewhere")
    assert Configs().compose([*RUN, *words])["results"] == "/elsewhere/a"
    monkeypatch.setenv("DPEXP_CACHE", "~/cache")
    assert cache_dir() == Path("/elsewhere/cache")
    monkeypatch.setenv("DPEXP_DATA_ROOT", "~/data")
    assert cli.compose(RUN)["data_root"] == "/elsewhere/data"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("~no-such-user/x", "in an existing home directory; got results=~no-such-user/x"),
        ("$NO_SUCH/x", "to use variables that are set; got results=[$]NO_SUCH/x. Set NO_SUCH"),
        ("a\nb", r"in printable characters; got 'a\\nb'"),
        (os.fsdecode(b"a\xff"), r"in printable characters; got 'a\\udcff'"),
    ],
)
def test_a_folder_that_cannot_be_meant_is_refused(name, said):
    with pytest.raises(ConfigError, match=said):
        cli.compose([*RUN, f"results={name}"])


def test_a_name_too_long_for_the_disk_is_refused(tmp_path):
    said = "Cannot make .*File name too long. Set results to a shorter path"
    with pytest.raises(RecordError, match=said):
        cli.execute(cli.compose([*RUN, f"results={tmp_path}/{'x' * 300}"]))


@pytest.mark.parametrize(
    ("program", "words", "said"),
    [
        (verify, [""], "Expected a run's directory; there is none at {}."),
        (verify, ["--config-dir="], "Expected --config-dir to name a folder; there is none at {}."),
        (audit, ["methods=dpsgd", "results="], "Expected a path that can be one; got {}/"),
    ],
)
def test_any_path_that_is_too_long_is_told_of_in_a_line(program, words, said, tmp_path, capsys):
    path = f"{tmp_path}/{'x' * 300}"
    assert program.main([*words[:-1], f"{words[-1]}{path}"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"error: {said.format(path)}") and told.count("\n") == 1


@pytest.mark.parametrize("setting", ["data_root", "model_root"])
def test_a_folder_that_is_too_long_is_none(setting, tmp_path):
    with pytest.raises(ConfigError, match=f"Expected {setting} to be a folder that exists"):
        cli.execute(cli.compose([*RUN, f"{setting}={tmp_path}/{'x' * 300}"]))
