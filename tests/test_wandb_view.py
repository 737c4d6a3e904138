"""A paper's saved view on wandb shows what its runs send, for the tasks that it has."""

import json

import pytest

from dpexp.cli import CONF
from dpexp.cli.wandb_view import main, view, workspace


def config(task, eps=8.0, **more):
    return {"task": {"name": task}, "privacy": {"eps": eps}, **more}


CONFIGS = [
    config("sst2"),
    config("sst2", eps=1.2),
    config("qqp", eps=None),
    config("mnli", attack={"name": "loss_threshold"}),
]


def test_every_private_task_has_a_chart_of_its_score_over_epsilon():
    spec = view("lsg", "paper", CONFIGS, "dpexp")
    over, whole, _ = (section["panels"] for section in spec["sections"])
    assert [(panel["title"], panel["x"], panel["y"]) for panel in over] == [
        ("sst2", "eps", "score/sst2")
    ]
    assert {panel["groupby"] for panel in over} == {"method.name"}
    assert [panel["title"] for panel in whole] == ["qqp", "sst2"]  # what is not private as well
    assert spec["tags"] == ["lsg", "paper"] and spec["job_type"] == "train"


def test_a_paper_of_ones_own_folder_is_shown(tmp_path, capsys):
    own = CONF.parent / "examples" / "extension" / "conf"
    words = ["paper=mine", f"--config-dir={own}", f"results={tmp_path}"]
    assert main(words) == 0
    path = tmp_path / "embedded" / "mine" / "wandb.json"
    assert capsys.readouterr().out.split() == [str(path)]
    spec = json.loads(path.read_text())
    assert spec["sections"][0]["panels"][0]["title"] == "digits"
    assert main(words[:1]) == 2  # dpexp's own conf has no such paper


@pytest.mark.long
def test_the_command_writes_the_spec_and_says_where(tmp_path, capsys):
    assert main(["paper=dpexp", "profile=embedded", f"results={tmp_path}"]) == 0
    path = tmp_path / "embedded" / "dpexp" / "wandb.json"
    assert capsys.readouterr().out.split() == [str(path)]
    spec = json.loads(path.read_text())
    assert "digits" in [panel["title"] for panel in spec["sections"][0]["panels"]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["papr=rgp"], "did you mean 'paper'?"),
        (["paper=rpg"], "Did you mean rgp?"),
        (["profile=shrt"], "Did you mean short?"),
        (["send=true"], "Set entity."),
        (["paper"], "Expected WORD=VALUE"),
    ],
)
def test_a_mistake_is_one_line(words, said, capsys):
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_the_spec_becomes_wandbs_own_view():
    pytest.importorskip("wandb_workspaces")
    spec = view("lsg", "paper", CONFIGS, "dpexp", "team")
    section = workspace(spec)._to_model().model_dump(by_alias=True)["spec"]["section"]
    (runs,) = section["runSets"]
    asked = [(one["key"]["name"], one["value"]) for one in runs["filters"]["filters"]]
    assert asked == [("tags", ["lsg"]), ("tags", ["paper"]), ("jobType", "train")]
    panels = section["panelBankConfig"]["sections"][0]["panels"]
    assert panels[0]["config"]["xAxis"] == "eps"
    assert panels[0]["config"]["metrics"] == ["score/sst2"]
