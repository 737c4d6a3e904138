"""The site's page of settings has every setting of conf, as the files have it, with a meaning."""

import re

import pytest
import yaml

from docs._ext import configuration, options
from dpexp import cli

CHOICES = [choice for group in options.groups() for choice in options.choices_of(group)]
SETTING = re.compile(r"^`([\w.]+)` = `(.*)`\n: (.*)$", re.M)


def flat(tree, prefix=""):
    """Yield a tree's leaves by their places."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_every_group_that_a_command_chooses_from_is_on_the_page():
    found = {path.name for path in cli.CONF.iterdir() if path.is_dir()}
    assert {*options.groups()} == found - {"artifact", "hydra", "recipe", "scale", "tuned"}
    assert len(CHOICES) > 90


@pytest.mark.parametrize("choice", CHOICES, ids=lambda each: f"{each.group}={each.name}")
def test_every_setting_of_a_choice_is_described_and_has_the_files_value(choice):
    path = cli.CONF / choice.group / f"{choice.name}.yaml"
    text = path.read_text(encoding="utf-8")
    assert choice.says, f"{path} to open with a comment that says what it is"
    tree = yaml.safe_load(text) or {}
    tree.pop("defaults", None)
    found = {option.name: option for option in choice.options}
    for place, value in flat(tree):
        last = place.rpartition(".")[2]
        if last == "name" or last.startswith("_") or choice.group == "experiment":
            continue
        names = [name for name in found if f".{name}".endswith(f".{place}")]
        above = place.rpartition(".")[0]
        whole = [n for n, o in found.items() if above and f".{n}".endswith(f".{above}")
                 and (o.value.endswith(" entries") or last in yaml.safe_load(o.value))]  # fmt: skip
        assert names or whole, f"{place} of {path} is not on the page"
        if names:
            assert yaml.safe_load(found[min(names, key=len)].value) == value
    for option in choice.options if choice.group != "experiment" else ():
        assert option.says, f"{option.name} of {path} to have a comment"


def test_the_settings_of_every_run_are_described_and_have_their_defaults():
    tree = yaml.safe_load((cli.CONF / "config.yaml").read_text(encoding="utf-8"))
    del tree["defaults"], tree["hydra"]
    found = {option.name: option for option in options.top_level()}
    assert {**{k: yaml.safe_load(o.value) for k, o in found.items()}} == dict(flat(tree))
    assert all(option.says for option in found.values())


def test_the_page_has_every_choice_and_each_of_its_settings():
    page = configuration.page()
    heads = re.findall(r"^### `(.*)`$", page, re.M)
    assert heads == [f"{choice.group}={choice.name}" for choice in CHOICES]
    shown = [name for name, _, _ in SETTING.findall(page)]
    own = [o.name for c in CHOICES if c.group != "experiment" for o in c.options]
    assert sorted(shown) == sorted([*own, *(o.name for o in options.top_level())])


@pytest.mark.parametrize(
    ("text", "value", "says"),
    [
        ("a: 1 # one", "1", "one"),
        ("a: '#1' # a word", "'#1'", "a word"),
        ("# head\n\nb: 2\n# above\n# it\na: 1", "1", "above it"),
        ("a: [1, # first\n  2] # behind", "[1, 2]", "behind"),
        ("# of the file\na: 1", "1", ""),
        ("a: # of the list\n  - 1\n  - 2", "[1, 2]", "of the list"),
        ("b: 1 # not this\na: x", "x", ""),
    ],
)
def test_a_comment_belongs_to_the_setting_it_stands_at(text, value, says, tmp_path, monkeypatch):
    monkeypatch.setattr(options, "CONF", tmp_path)
    (tmp_path / "config.yaml").write_text("defaults: []")
    options._shared.cache_clear()
    (tmp_path / "group").mkdir()
    (tmp_path / "group" / "it.yaml").write_text(text)
    (found,) = (o for o in options.choice("group", "it").options if o.name == "group.a")
    options._shared.cache_clear()
    assert (found.value, found.says) == (value, says)
