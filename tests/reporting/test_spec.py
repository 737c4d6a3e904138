"""The YAML files: what they must say, and what the paper's own arithmetic says of them."""

from pathlib import Path

import pytest

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
        ("    seeds: [0]", "    seeds: [0]\n    skip: [plain]", "for skip of profile paper"),
        ("above: [better]", "above: [bettr]", "Unknown row 'bettr': did you mean 'better'"),
        ("    eps4: {value", "    eps5: {value", "Unknown column 'eps5'"),
        ("key: better", "key: plain", "Expected every row key once"),
        ("metric: test_accuracy\n", "", "missing 1 required positional argument: 'metric'"),
        ("labels: [Big, Better]", "labels: [Better]", "Row better: expected labels for"),
        ("title:", "title: [", "is not YAML"),
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
