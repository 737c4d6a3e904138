"""The page, curves and figure of a likelihood ratio attack on membership (`dpexp.cli.lira`)."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
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
from dpexp.cli import verify
from dpexp.cli.arguments import changing
from dpexp.cli.lira_request import FIRST_RUN, Request, files, first_run, heading, of_seeds
from dpexp.reporting.render.style import COLOURS, DASHED, DPI, GREY, STYLE
from dpexp.types import counted

RATES = (0.001, 0.01)
"""False-positive rates at which the TPR is reported (Carlini et al. 2022, Section III)."""

POINTS = 200
"""Points of a written and plotted curve, evenly spaced on a log axis (ours)."""

LINES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), "-.")


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
