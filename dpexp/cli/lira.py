"""Run the likelihood ratio attack on membership (LiRA), and plot its results.

    python -m scripts.lira task=digits methods=nonprivate,dpsgd,rgp shadows=16 eps=8
    python -m scripts.lira task=sentiment methods=nonprivate,rgp shadows=32 eps=2 epochs=6

Trains `shadows` models per method, each on its own random half of the training set (seeds 0, 1,
...), then attacks each with the others as its shadows. Finished runs are looked up; their data and
weights must be those here. Its own words, each WORD=VALUE:

    methods=A,B       of conf/method; nonprivate,rgp if left out
    shadows=16        models per method, including the target
    eps=8             for the methods with noise
    profile=embedded  embedded, quick, short or paper
    name=NAME         of the files; the task's if left out
    workers=2         models trained side by side; without it one a core, or one on a GPU

Any other word is a Hydra override for every run. Writes
results/<profile>/lira/<name>.{md,csv,png,svg}: a summary, the curves, the figure. Files of other
models are not written over.
Exit code: 0; 2 for a user error.
"""

from __future__ import annotations

import csv
import io
import math
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dpexp import records
from dpexp.attacks import lira
from dpexp.attacks.lira import Attacked
from dpexp.attacks.shadow import Shadow
from dpexp.cli import composition, idle, lookup, many, verify
from dpexp.cli.arguments import (
    changing,
    exit_code_of,
    file_name,
    listed,
    require_kept,
    split,
    text,
    whole,
)
from dpexp.cli.execution import execute
from dpexp.cli.parts import require_begin
from dpexp.distributed.pool import Ended
from dpexp.privacy.calibration import check_privacy
from dpexp.reporting.collect import build
from dpexp.reporting.render.style import COLOURS, DASHED, DPI, GREY, STYLE
from dpexp.types import ConfigError, counted
from dpexp.warned import warn_caller

RATES = (0.001, 0.01)
"""False-positive rates at which the TPR is reported (Carlini et al. 2022, Section III)."""

FIRST_RUN = "first run "
"""What stands before a method's first run on the page, which tells it from other settings'."""

POINTS = 200
"""Points of a written and plotted curve, evenly spaced on a log axis (ours)."""

LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), "-.")


@dataclass(frozen=True)
class Request:
    """The parsed command line.

    Attributes:
        methods, shadows, eps, profile, name, workers: see the module.
        overrides: the other words.
    """

    methods: tuple[str, ...] = ("nonprivate", "rgp")
    shadows: int = 16
    eps: str = ""
    profile: str = "embedded"
    name: str = ""
    workers: int | None = None
    overrides: tuple[str, ...] = ()


READERS = {
    "methods": listed,
    "shadows": whole(lira.LEAST),
    "workers": whole(1),
    "name": file_name,
    **dict.fromkeys(("eps", "profile"), text),
}


def parse(words: Sequence[str]) -> Request:
    """Parse the command line.

    Raises:
        ConfigError: for an invalid value, too few shadows, or an override that shadows forbid.
    """
    own, overrides = split(words, READERS)
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key in ("attack", "audit", "method", "seed"):
            raise ConfigError(
                f"Expected no {key} among the overrides: runs are shadows of `methods`, with seeds "
                f"from 0; got '{word}'. Leave it out."
            )
    return Request(**own, overrides=tuple(overrides))


def compose(request: Request, method: str) -> dict[str, Any]:
    """Return the config of a method's run; `eps` applies only to methods with noise."""
    words = [f"profile={request.profile}", f"method={method}", "attack=shadow", *request.overrides]
    config = composition.compose(words)
    if request.eps and config["privacy"]["noise"]:
        config = composition.compose([*words, f"eps={request.eps}"])
    return config


def of_seeds(config: dict[str, Any], num: int) -> list[dict[str, Any]]:
    """Return the configs of a method's models, which differ only in their seeds."""
    return [{**config, "seed": seed} for seed in range(num)]


def train(configs: Sequence[dict[str, Any]], workers: int | None) -> None:
    """Train the models that are not there, side by side; wait for those of another process."""

    def take(run: str, ended: Ended, say: many.Say) -> None:
        if ended.error is not None and not isinstance(ended.error, records.Busy):
            raise many.named(f"run {run}", ended.error)

    def missing() -> dict[str, dict[str, Any]]:
        return {records.run_id(config): config for config in configs
                if not records.find(config["results"], config)}  # fmt: skip

    while to_do := missing():
        many.each(execute, to_do, many.number([*to_do.values()], workers), take)
        if any(records.is_held(config["results"], config) for config in configs):
            time.sleep(build.PAUSE)


def shadows(config: dict[str, Any], num: int) -> Attacked:
    """Look up a method's models and attack each with the others."""
    accuracies, masks, values, privacy = [], [], [], []
    for shadow in of_seeds(config, num):
        directory = records.locate(shadow["results"], shadow)
        record = verify.require(directory)
        result = record.result
        privacy.append(record.privacy)
        arrays = records.arrays_of(directory / records.SCORES)
        masks.append(arrays["is_member"])
        values.append(arrays["confidences"])
        accuracies.append(result[result["metric"]])
    is_member = np.stack(masks)
    # As certified, not as asked: without clipping there is none, and one of a step adds up.
    epsilons = {one["target_epsilon"] for one in privacy} - {None}
    budget = f"ε = {max(epsilons):g}" if epsilons else "not private"
    every = dict.fromkeys(words for one in privacy for words in one["deviations"])
    remarks = tuple(words for words in every if words != Shadow.deviation)
    label = f"{config['method']['name']} ({budget})"
    scores = lira.attack(np.stack(values), is_member)
    return Attacked(label, np.array(accuracies), is_member, scores, remarks)


def draw(title: str, attacked: Sequence[Attacked]) -> Figure:
    """Plot a panel per attack and a line per method, both axes logarithmic."""
    figure = Figure(figsize=(9.6, 4.1), layout="constrained", dpi=DPI)
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(lira.ATTACKS), sharex=True, sharey=True)
    least = 1 / max(some.curves["online"].num_nonmembers for some in attacked)
    rates = np.geomspace(least, 1, POINTS)
    for axes, (attack, name) in zip(panels, lira.ATTACKS.items(), strict=True):
        axes.plot([least, 1], [least, 1], color=GREY, **DASHED, label="chance")
        for number, some in enumerate(attacked):
            axes.plot(rates, some.curves[attack].tpr_at(rates), label=some.label,
                      color=COLOURS[number % len(COLOURS)], linewidth=1.6,
                      linestyle=LINES[number % len(LINES)], drawstyle="steps-post")  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=(least, 1), ylim=(least, 1.15))
        axes.set_title(name[0].upper() + name[1:], loc="left", fontsize=10.5)
        axes.set_xlabel("false-positive rate")
        axes.grid(True)
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("true-positive rate")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles[1:] + handles[:1], labels[1:] + labels[:1], loc="outside lower center",
                  ncols=4, frameon=False, fontsize=9.5)  # fmt: skip
    return figure


def summary(title: str, request: Request, configs: list[dict], attacked: list[Attacked]) -> str:
    """Return the page: the table, and notes on what it can and cannot show."""
    heads = ["Method", "Test accuracy in %", "Attack", "AUC", "Balanced accuracy"]
    heads += [f"TPR at {rate:.1%} FPR" for rate in RATES]
    lines = [f"# {title}", "", _row(heads), _row(["---"] * 3 + ["---:"] * 4)]
    for some in attacked:
        for attack, name in lira.ATTACKS.items():
            pooled, single = some.curves[attack], some.of_each(attack)
            cells = [some.label, _spread(some.accuracy, 1), name]
            cells.append(_cell(pooled.auc, [curve.auc for curve in single]))
            best = [curve.balanced_accuracy for curve in single]
            cells.append(_cell(pooled.balanced_accuracy, best))
            for rate in RATES:
                within_reach = single if rate * some.others >= 1 else []
                reached = [float(curve.tpr_at(rate)) for curve in within_reach]
                cells.append(_cell(float(pooled.tpr_at(rate)), reached))
            lines.append(_row(cells))
    lines += ["", *(f"- {note}" for note in _notes(attacked))]
    for config, some in zip(configs, attacked, strict=True):
        lines.append(
            f"- {some.label}: {config['model']['name']}, batch {config['batch_size']:,}, "
            f"{counted(config['epochs'], 'epoch', 'g')}, {FIRST_RUN}{first_run(config)}"
            f"{''.join(f'; {words}' for words in some.remarks)}."
        )
    changed = changing(request.overrides)
    if changed:
        lines.append(f"- Overrides: {', '.join(changed)}.")
    return "\n".join(lines) + "\n"


def _notes(attacked: Sequence[Attacked]) -> list[str]:
    num, size = attacked[0].is_member.shape
    others = attacked[0].others
    pooled = min(some.curves["online"].num_nonmembers for some in attacked)
    unknown = max(int(np.isnan(some.scores["online"]).sum()) for some in attacked)
    variance = "one that all examples share" if num - 1 < lira.FEW else "each example's own"
    # Half the mean of the one-sided Kolmogorov statistic of two samples of size / 2.
    excess = math.sqrt(math.pi / 8 / size)
    notes = [
        f"{num} models a method, each trained on half of {size:,} examples; each is the target "
        f"once, the other {num - 1} its shadows. Variance of the Gaussians: {variance}.",
        "First number: all targets' scores under one threshold. In brackets: mean ± standard "
        "deviation over targets, each with a threshold of its own; targets share examples and "
        "shadows, so that they vary less than independent ones would.",
        f"A single target has {others:,} non-members: its smallest false-positive rate but 0 is "
        f"{1 / others:.2%}, and for a rate below that there is no bracket. All targets together "
        f"have {pooled:,}, so that {RATES[0]:.1%} of them are {int(RATES[0] * pooled)} false "
        "positives: what is read off so few is rough.",
        "Balanced accuracy is that of the best threshold on these very scores: for a single target "
        f"an attack that knows nothing gets {0.5 + excess:.3f} on average.",
        "Online LiRA fits two means an example, offline one: of few shadows offline can be better.",
        "An attack that fails proves nothing: another may succeed. The guarantee is epsilon.",
    ]
    if unknown:
        notes.append(
            f"Left out, for all attacks alike: up to {unknown:,} of {num * size:,} pairs of a "
            "target and an example that all of its shadows held, or none."
        )
    return notes


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(pooled: float, single: Sequence[float]) -> str:
    return f"{pooled:.3f} ({_spread(single, 3)})" if len(single) else f"{pooled:.3f}"


def _spread(values: Any, decimals: int) -> str:
    return f"{np.mean(values):.{decimals}f} ± {np.std(values, ddof=1):.{decimals}f}"


def curves(attacked: Sequence[Attacked]) -> str:
    """Return the plotted curves as CSV."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["method", "attack", "false_positive_rate", "true_positive_rate"])
    for some in attacked:
        for attack, curve in some.curves.items():
            rates = np.geomspace(1 / curve.num_nonmembers, 1, POINTS)
            for false, true in zip(rates, curve.tpr_at(rates), strict=True):
                writer.writerow([some.label, attack, f"{false:.6g}", f"{true:.6g}"])
    return stream.getvalue()


def heading(request: Request, config: dict[str, Any]) -> str:
    """Return the title of the page and of the figure."""
    return (
        f"Who was trained on? {config['task']['name']}, {request.shadows} models a method, "
        f"profile {request.profile}"
    )


def files(request: Request, config: dict[str, Any]) -> list[Path]:
    """Return the paths of the page, the curves and the two forms of the figure."""
    folder = Path(config["results"]) / request.profile / "lira"
    name = request.name or config["task"]["name"].replace("/", "-")  # one file's name
    return [folder / f"{name}.{suffix}" for suffix in ("md", "csv", "png", "svg")]


def first_run(config: dict[str, Any]) -> str:
    """Return the id of the first of a method's runs."""
    return records.run_id(of_seeds(config, 1)[0])


def is_of(page: Path, request: Request, configs: Sequence[dict[str, Any]]) -> bool:
    """Return whether a page that is there is of as many models, and of no method but these."""
    try:
        title, *lines = page.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    found = {id for line in lines for id in re.findall(rf"\b{FIRST_RUN}(\w+)", line)}
    is_alike = title == f"# {heading(request, configs[0])}"
    return is_alike and bool(found) and found <= {*map(first_run, configs)}


def write(request: Request, configs: list[dict], attacked: list[Attacked]) -> list[Path]:
    """Write all four files; return their paths."""
    title, paths = heading(request, configs[0]), files(request, configs[0])
    records.make_folder(paths[0].parent)
    texts = {"md": summary(title, request, configs, attacked), "csv": curves(attacked)}
    for path, content in zip(paths, texts.values(), strict=False):
        records.write_atomically(path, content)
    with rc_context(STYLE):
        figure = draw(title, attacked)
        figure.savefig(paths[2], dpi=DPI)
        figure.savefig(paths[3], metadata={"Date": None})
    return paths


def _is_done(config: dict[str, Any], num: int) -> bool:
    """Return whether all of a method's models have been trained."""
    return all(records.find(one["results"], one) for one in of_seeds(config, num))


def _warn_of_idle(request: Request, configs: Sequence[dict[str, Any]]) -> None:
    """Warn of words that no method's runs read."""
    if request.eps and not any(config["privacy"]["noise"] for config in configs):
        methods = ",".join(request.methods)
        warn_caller(f"eps={request.eps} has no effect: methods={methods} has no noise, and so no "
                    "privacy. Leave it out.")  # fmt: skip
    idle.warn_of_all(configs, request.overrides)


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__, of_records=2)


def _main(words: Sequence[str]) -> int:
    request = parse(words)
    configs = [compose(request, method) for method in request.methods]
    for config in configs:
        if config["privacy"]["noise"]:  # before hours are spent on the first method
            with warnings.catch_warnings(action="ignore"):  # each run repeats them
                check_privacy(config["privacy"], config["task"]["dataset_size"])
    _warn_of_idle(request, configs)
    require_begin(config for config in configs if not _is_done(config, request.shadows))
    runs = [run for config in configs for run in of_seeds(config, request.shadows)]
    lookup.require_here(runs)
    page = files(request, configs[0])[0]
    require_kept(page, is_of(page, request, configs))
    train(runs, request.workers)
    attacked = [shadows(config, request.shadows) for config in configs]
    print(*write(request, configs, attacked), sep="\n")
    return 0
