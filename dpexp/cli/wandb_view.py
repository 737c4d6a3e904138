"""Build a paper's wandb dashboard: accuracy over epsilon by method, one chart per task.

    python -m scripts.wandb_view paper=rgp profile=paper
    python -m scripts.wandb_view paper=rgp profile=paper send=true entity=TEAM

Without `send=true` nothing is sent. The view's specification is written to
results/<profile>/<paper>/wandb.json: the runs (by their tags and job type), the groups and every
chart's axes. With `send=true` the same view is also saved through wandb-workspaces, which must be
installed (`pip install -e '.[dashboard]'`) and logged in; the last line is the view's address.

Its own words, each WORD=VALUE:

    paper=rgp           rgp, lsg, gep, compressive, or dpexp for the suite's own tables
    profile=embedded    embedded, quick, short or paper
    project=dpexp       as in wandb.project
    entity=TEAM         the owner on wandb; needed to send
    send=true           save the view on wandb
    results=results     the results folder
    --config-dir DIR    a folder of your own like conf, with papers of its own; docs/extend.md

A run is tagged with the paper that it was first run for, so a cell shared by two papers is in the
first one's view.
Exit code: 0; 2 for a user error.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dpexp.cli import folders, groups
from dpexp.cli.arguments import exit_code_of, only, text, truth
from dpexp.cli.config_cache import Configs
from dpexp.cli.suite import OWN, PAPERS, choose
from dpexp.records import make_folder, write_atomically
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from dpexp.training.dashboard import score_of
from dpexp.training.tracking import job_type
from dpexp.types import ConfigError, require_word

METHOD = "method.name"
MOST_RUNS = 500
"""Most runs in a chart; wandb's default of ten would omit most of a table."""


def planned(paper: str, profile: str, own: Sequence[Path] = ()) -> list[dict[str, Any]]:
    """Return the configs of every cell of a paper's artifacts.

    Args:
        paper: a folder of conf/artifact, or of the same in one of `own`.
        profile: of the runs.
        own: the user's folders of config groups.

    Raises:
        ConfigError: if there is no such paper.
    """
    compose = Configs(own=own).compose
    artifacts = choose([paper], (), groups.CONF, own)
    if not artifacts:
        raise ConfigError(f"Expected a paper with artifacts; {paper} has none. Set paper.")
    jobs = [
        job
        for artifact in artifacts
        if profile in artifact.profiles
        for job in cells.expand(artifact, profile, compose, groups.CONF, seeds=(0,), own=own)
    ]
    return [job.config for job in jobs if job.config is not None]


def view(
    paper: str, profile: str, configs: Iterable[Mapping[str, Any]], project: str, entity: str = ""
) -> dict[str, Any]:
    """Return the view's specification as plain data, in display order.

    Args:
        paper: whose runs.
        profile: of the runs.
        configs: of the paper's cells; they determine the tasks.
        project: on wandb.
        entity: the owner on wandb; "" leaves it open.
    """
    trained = [config for config in configs if job_type(config) == "train"]
    tasks = sorted({config["task"]["name"] for config in trained})
    private = {config["task"]["name"] for config in trained if config["privacy"]["eps"] is not None}
    by_method = {"groupby": METHOD, "mean": "mean", "band": "stddev"}
    scores = {task: score_of(task) for task in tasks}
    over_eps = [
        {"kind": "line", "title": task, "x": "eps", "y": scores[task], "log_x": True, **by_method}
        for task in tasks
        if task in private
    ]
    final = [{"kind": "bar", "title": task, "y": scores[task], **by_method} for task in tasks]
    training = [
        {"kind": "line", "title": title, "x": x, "y": y, "log_x": False, **by_method}
        for title, x, y in (
            ("train loss", "epoch", "train_loss"),
            ("fraction clipped", "epoch", "clip_fraction"),
            ("epsilon spent", "epoch", "epsilon"),
        )
    ]
    speed = {"kind": "bar", "title": "examples per second", "y": "examples_per_s", **by_method}
    return {
        "name": f"{paper} ({profile}): accuracy over epsilon by method",
        "entity": entity,
        "project": project,
        "tags": [paper, profile],
        "job_type": "train",
        "groupby": [METHOD],
        "columns": ["score", "epsilon", "eps", "model", "task", "seed", "wall_s"],
        "sections": [
            {"name": "Accuracy over epsilon", "panels": over_eps},
            {"name": "Accuracy, with and without privacy", "panels": final},
            {"name": "As they train", "panels": [*training, speed]},
        ],
    }


def workspace(specified: Mapping[str, Any]) -> Any:
    """Return a view's specification as a wandb-workspaces object, unsaved.

    Raises:
        ConfigError: if wandb-workspaces is not installed.
    """
    try:
        import wandb_workspaces.workspaces as ws
    except ImportError as error:
        raise ConfigError(
            f"Expected wandb-workspaces for send=true; {error}. pip install -e '.[dashboard]', or "
            "leave send out."
        ) from error
    tagged = [ws.Tags().isin([tag]) for tag in specified["tags"]]
    return ws.Workspace(
        entity=specified["entity"],
        project=specified["project"],
        name=specified["name"],
        sections=[
            ws.Section(name=part["name"], panels=[*map(_panel, part["panels"])], is_open=True)
            for part in specified["sections"]
        ],
        settings=ws.WorkspaceSettings(max_runs=MOST_RUNS),
        runset_settings=ws.RunsetSettings(
            filters=ws.And(*tagged, ws.Metric("JobType") == specified["job_type"]),
            groupby=[ws.Config(key) for key in specified["groupby"]],
            pinned_columns=[f"summary:{name}" for name in specified["columns"]],
        ),
    )


def _panel(panel: Mapping[str, Any]) -> Any:
    import wandb_workspaces.reports.v2 as reports

    grouped = {
        "title": panel["title"],
        "groupby": reports.Config(panel["groupby"]),
        "groupby_aggfunc": panel["mean"],
        "groupby_rangefunc": panel["band"],
        "max_runs_to_show": MOST_RUNS,
    }
    if panel["kind"] == "bar":
        return reports.BarPlot(metrics=[panel["y"]], **grouped)
    return reports.LinePlot(x=panel["x"], y=[panel["y"]], log_x=panel["log_x"], **grouped)


def parse(words: Sequence[str]) -> dict[str, Any]:
    """Parse the command line.

    Raises:
        ConfigError: for an unknown word or an invalid value.
    """
    request: dict[str, Any] = {
        "paper": "rgp",
        "profile": "embedded",
        "project": "dpexp",
        "entity": "",
        "send": False,
        "results": "results",
    }
    readers = {**dict.fromkeys(request, text), "send": truth}
    request |= only([word for word in words if not folders.is_searchpath(word)], readers)
    request["own"] = tuple(folders.folders_of(words))
    require_word("paper", request["paper"], (*PAPERS, OWN, *spec.papers(request["own"])))
    require_word("profile", request["profile"], groups.options_of("profile"))
    if request["send"] and not request["entity"]:
        raise ConfigError("Expected an entity to send the view to; got none. Set entity.")
    return request


def _main(words: Sequence[str]) -> int:
    request = parse(words)
    paper, profile = request["paper"], request["profile"]
    configs = planned(paper, profile, request["own"])
    specified = view(paper, profile, configs, request["project"], request["entity"])
    path = Path(request["results"]) / profile / paper / "wandb.json"
    make_folder(path.parent)
    write_atomically(path, json.dumps(specified, indent=2) + "\n")
    print(path)
    if request["send"]:
        saved = workspace(specified).save()
        print(saved.url)
    return 0


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__)
