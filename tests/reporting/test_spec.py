"""The YAML files: what they must say, and what the paper's own arithmetic says of them."""

from pathlib import Path

import pytest

from dpexp.cli.groups import options_of
from dpexp.reporting.schema import spec
from dpexp.types import ConfigError

CONF = Path(__file__).resolve().parents[2] / "conf"
YAMLS = sorted((CONF / "artifact").glob("*/*.yaml"))
assert YAMLS

# Table 3 as printed: RGP's accuracy and the bracket, its gain over DP-SGD.
PRINTED = {
    ("svhn", "eps2"): (87.3, 4.1),
    ("svhn", "eps4"): (89.7, 3.4),
    ("svhn", "eps6"): (92.3, 3.9),
    ("cifar10", "eps2"): (44.0, 6.6),
    ("cifar10", "eps4"): (53.3, 6.4),
    ("cifar10", "eps6"): (59.6, 7.9),
}


@pytest.mark.parametrize(("task", "eps"), PRINTED)
def test_table3_gives_dpsgd_as_rgp_minus_the_bracket(task, eps):
    published = spec.load(CONF, "rgp", "table3").published
    accuracy, gain = PRINTED[task, eps]
    assert published[f"{task}-rgp", eps].value == accuracy
    assert published[f"{task}-dpsgd", eps].value == pytest.approx(accuracy - gain, abs=1e-9)


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_artifact_loads_and_every_published_value_has_its_place(path):
    artifact = spec.load(CONF, path.parent.name, path.stem)
    assert {"embedded", "quick", "paper"} <= set(artifact.profiles)
    assert set(artifact.profiles) <= set(options_of("profile"))
    assert all(published.place for published in artifact.published.values())


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_replaced_override_and_label_is_one_that_occurs(path):
    artifact = spec.load(CONF, path.parent.name, path.stem)
    lines = [*artifact.rows, *artifact.columns]
    parts = [part for row in artifact.rows for part in row.within.values()]
    overrides = {word for line in (*lines, *parts) for word in line.overrides}
    grids = [grid for row in artifact.rows for grid in row.grids()]
    overrides |= {word for grid in grids for axis in grid for p in axis for word in p.split()}
    labels = {label for line in lines for label in line.labels}
    for profile in artifact.profiles.values():
        assert set(profile.replace) <= overrides
        assert set(profile.relabel) <= labels


@pytest.mark.parametrize(
    ("paper", "name", "expected"),
    [
        ("rpg", "table3", "Unknown paper 'rpg': did you mean 'rgp'? Valid: "),
        ("rgp", "tabel3", "Unknown artifact of rgp: 'tabel3': did you mean 'table3'? "),
        ("zzz", "table3", "Unknown paper 'zzz'. Valid: "),
    ],
)
def test_a_wrong_name_gets_the_nearest_one_and_the_list(paper, name, expected):
    with pytest.raises(ConfigError) as error:
        spec.load(CONF, paper, name)
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("seeds: [0]", "sedes: [0]", "Unknown word in profile paper 'sedes': did you mean 'seeds'"),
        ("scaled: ", "overrides: []  # ", "Profile embedded: say under 'scaled'"),
        ("    seeds: [0]", "    seeds: [0]\n    skip: [plain]", "as 'skip' in profile paper"),
        ("    seeds: [0]", "    seeds: [0]\n    skip: {plain: 3}", "as 'skip' in profile paper"),
        ("seeds: [0]", "seeds: 0", "a list of whole numbers as 'seeds' in profile paper; got 0."),
        ("seeds: [0]", "seeds: [0.5]", "a list of whole numbers as 'seeds' in profile paper"),
        ('label: "ε = 2", o', "label: 2, o", "as 'labels' in column eps2"),
        ("key: better, ", "key: no, ", "Expected text as 'key' in row False; got False."),
        ('"Demo paper, Table 9"', "9", """as 'place' in the file; got 9. Put it in quotes, "9","""),
        ("value: 50.0", "value: '50'", "a number as 'value' in published plain, eps2; got '50'"),
        ("value: 50.0", "value: .nan", "a number as 'value' in published plain, eps2; got nan"),
        ("value: 50.0", "value: .inf", "a number as 'value' in published plain, eps2; got inf"),
        (
            "metric: test_accuracy\n",
            "metric: test_accuracy\ndecimals: -1\n",
            "in the file; got -1.",
        ),
        ("method=better]}", "method=better], decimals: -2}", "[0, 15] in better; got -2."),
        ("value: 50.0", "value: true", "a number as 'value' in published plain, eps2; got True"),
        ("overrides: [eps=2]", "overrides: eps=2", "as 'overrides' in column eps2; got 'eps=2'"),
        (
            "overrides: [eps=2]",
            "overrides: [eps=1]",
            "column eps2: expected eps=2, as the label 'ε = 2' says; got eps=1.",
        ),
        ('label: "ε = 2"', 'label: "ε=3"', "column eps2: expected eps=3, as the label 'ε=3' says"),
        (
            "replace: {task=big: task=small}",
            "replace: {task=big: task=small, eps=4: eps=5}",
            "Profile embedded, row plain, column eps4: expected eps=4",
        ),
        (
            "relabel: {Big",
            'relabel: {"ε = 4": "eps = 7", Big',
            "Profile embedded, row plain, column eps4: expected eps=7",
        ),
        (
            "method=better]}",
            "method=better], within: {eps*: {overrides: [a=1]}, '*2': {overrides: [b=1]}}}",
            "Row better: expected one pattern within it for column eps2; got eps* and *2.",
        ),
        (
            "method=better]}",
            "method=better], within: {eps2: {absent: 3}}}",
            "Expected text as 'absent' in row better within eps2; got 3.",
        ),
        ("published:\n", "title: again\npublished:\n", "Expected 'title' once; line "),
        ("  better:\n", "  plain:\n", "Expected 'plain' once; line "),
        ("above: [better]", "above: [bettr]", "Unknown row 'bettr': did you mean 'better'"),
        ("    eps4: {value", "    eps5: {value", "Unknown column 'eps5'"),
        ("key: better", "key: plain", "Expected every row key once"),
        ("metric: test_accuracy\n", "", "a name, such as test_accuracy, as 'metric' in the f"),
        ("labels: [Big, Better]", "labels: [Better]", "Row better: expected labels for"),
        ("title:", "title: [", "is not YAML"),
        (
            "overrides: [eps=2]",
            "overrides: [eps=2, method=plain]",
            "Row better, column eps2: expected one to set method; method=better is said, and "
            "method=plain by the column would take its place. Take one out, or use regardless_of.",
        ),
        (
            "    seeds: [0]",
            "    seeds: [0]\n    overrides: [+eps=8]",
            "Row plain, column eps2: expected one to set eps; eps=2 is said, and +eps=8 by the "
            "overrides of profile paper would take its place. Take one out, or use replace.",
        ),
        (
            "replace: {task=big: task=small}",
            "replace: {task=bg: task=small}",
            "Unknown override under replace in profile embedded 'task=bg': did you mean 'task=big'",
        ),
        (
            "relabel: {Big: ",
            "relabel: {Bigg: ",
            "Unknown label under relabel in profile embedded 'Bigg': did you mean 'Big'",
        ),
        (
            "method=better]}",
            "method=better], regardless_of: [epz]}",
            "Unknown setting under regardless_of in row better 'epz': did you mean 'eps'",
        ),
        (
            "overrides: [eps=4]}",
            "overrides: [eps=4], metric: wall_s}\naverage: {key: avg, label: A}",
            "Row plain: expected numbers of one kind, of which column avg is the average; got",
        ),
        ("below: [plain]", "below: [better]", "expected two to compare; got better twice"),
        (
            "below: [plain]}",
            "below: [plain], metric: wall_s, columns: [avg]}\naverage: {key: avg, label: A}",
            "expected no metric beside column avg: an average is of the numbers that its cells",
        ),
        ("metric: test_accuracy", "metric: []", "as 'metric' in the file."),
        ("claims:", "claims: 0\ncrossings:", "Expected a list under 'claims'; got 0."),
        ("below: [plain]", "below: [1" + "0" * 400 + "]", "as 'below' in a claim"),
        ("    seeds: [0]", "    seeds: [0]\n    skip: {plain: ''}", "profile paper skips plain"),
        (
            "method=better]}",
            "method=better], within: {eps2: {absent: ' '}}}",
            "Expected a reason, in words, as 'absent' in row better within eps2.",
        ),
        (
            "method=better]}",
            "method=better], within: {eps2: {absent: none.}}}",
            "Expected no value or claim on better, eps2: none. Take its published value out.",
        ),
        ("key: eps4,", "key: 'eps4,5',", "Expected a column key that columns= can name, without"),
        ("key: better,", "key: '',", "Expected a row key that rows= can name"),
        (
            "method=better]}",
            "method=better, seed=3]}",
            "Expected no seed in the overrides of row better: seeds stand under 'seeds'",
        ),
        (
            "overrides: [eps=2]",
            "overrides: [eps=2, profile=quick]",
            "Expected no profile in the overrides of column eps2",
        ),
        (
            "replace: {task=big: task=small}",
            "replace: {task=big: [task=small, results=here]}",
            "Expected no results in the overrides of profile embedded",
        ),
        (
            "    seeds: [0]",
            "    seeds: [0]\n    overrides: [hydra/launcher=joblib]",
            "Expected no hydra/launcher in the overrides of profile paper",
        ),
    ],
)
def test_a_file_that_is_wrong_says_where(conf, old, new, expected):
    path = conf / "artifact/demo/table9.yaml"
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(ConfigError, match="table9.yaml") as error:
        spec.load(conf, "demo", "table9")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)
