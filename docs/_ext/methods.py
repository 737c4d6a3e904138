"""A method's page: what its file, its config, its certificates and the tables say of it."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from docs._ext import records
from docs._ext.configuration import defined, said
from docs._ext.markdown import code, docstring, escaped, table
from docs._ext.options import Choice, choice, choices_of
from dpexp.cli.groups import CONF
from dpexp.types import counted

UP = "../../"
"""From docs/methods to the checkout."""

RECIPES = ("dpexp", "table4")
"""The table whose rows the benches of recipes name."""


GEP = ("gep", "bgep")
"""Methods whose step is timed by its parts, in seconds: its subspace has no like in autograd."""


def section(method: str, names: Sequence[str]) -> str:
    """Return all that is generated of a method's page.

    Args:
        method: as in method=...
        names: what the benches call it.
    """
    differences = _docstring(method)[2]
    parts = [algorithm(method)]
    if differences:
        parts += ["## Differences from the paper", differences]
    return "\n\n".join([*parts, rest(method, names)])


def algorithm(method: str) -> str:
    """Return what a page has before the differences, which one that shares its code has itself."""
    chosen = choice("method", method)
    path = source(chosen.target)
    head, steps, _ = _docstring(method)
    link = f"{UP}{path.relative_to(CONF.parent).as_posix()}"
    parts = [
        "## Algorithm",
        escaped(head),
        steps,
        *_set_apart(chosen),
        f"The code has the same steps in the same order: [{link.removeprefix(UP)}]({link}).",
    ]
    return "\n\n".join(parts)


def rest(method: str, names: Sequence[str]) -> str:
    """Return what a page has behind the differences."""
    chosen = choice("method", method)
    parts = ["## Options", *said(chosen), defined(chosen.options)]
    parts += ["## What it releases", *releases(method)]
    parts += ["## What a step costs", *costs(method, names)]
    parts += ["## Our numbers", *numbers(method)]
    return "\n\n".join(parts)


def _docstring(method: str) -> tuple[str, str, str]:
    path = source(choice("method", method).target)
    return docstring(ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")


def base_of(method: str) -> str:
    """Return the method after which the class of another one is named; "" of one of its own."""
    stem = source(choice("method", method).target).stem
    base = next((name for name in (f"dp_{stem}", stem) if name in listed()), method)
    return base if base != method else ""


def _set_apart(chosen: Choice) -> Iterator[str]:
    """Yield which options set a method apart from the one whose class it has."""
    base = base_of(chosen.name)
    if base:
        known = {option.name: option.value for option in choice("method", base).options}
        other = [
            code(f"{option.name}={option.value}")
            for option in chosen.options
            if known.get(option.name) != option.value
        ]
        yield f"It is [`method={base}`]({base}.md) with {', '.join(other)}."


def listed() -> list[str]:
    """Return the methods' names."""
    return [each.name for each in choices_of("method")]


def source(target: str) -> Path:
    """Return the file that holds a method's algorithm."""
    place = CONF.parent.joinpath(*target.split(".")[:-1])
    return place.with_suffix(".py") if place.with_suffix(".py").is_file() else place / "__init__.py"


def releases(method: str) -> Iterator[str]:
    """Yield what a run of the tables released, from its certificate."""
    found = [(path, c) for path, c in records.certificates(method) if c.get("releases")]
    private = [(path, c) for path, c in found if "no noise: no privacy" not in c["deviations"]]
    if not private:
        yield "As the tables run it, without noise, it has no privacy."
        return
    path, certificate = private[0]
    link = f"{UP}{path.relative_to(CONF.parent).as_posix()}"
    yield (
        f"An example, the certificate of [one run of the tables]({link}): ε = "
        f"{certificate['target_epsilon']:g}, δ = {certificate['delta']:g}."
    )
    yield "\n".join(f"- {_release(release, certificate)}" for release in certificate["releases"])
    trained = certificate["trainable"]
    frozen = len(certificate["frozen"])
    numbers = counted(sum(trained.values()), "number", ",")
    yield (
        f"{counted(len(trained), 'parameter tensor')} with {numbers} "
        f"{'trains' if len(trained) == 1 else 'train'} there; "
        f"{frozen or 'none'} {'are' if frozen > 1 else 'is'} frozen."
    )


def _release(release: dict[str, Any], certificate: dict[str, Any]) -> str:
    words = [f"{code(release['name'])}: {counted(release['dimension'], 'number', ',')}"]
    if "drawn" in release:
        words.append(counted(release["drawn"], "time"))
        words.append(f"at most {counted(release['at_most'], 'time')}")
        words.append(f"noise of standard deviation {release['noise_std']:.4g}")
    else:
        what = {"norm": "an l2 norm of", "coordinates": "entries of"}.get(release["clip"], "")
        steps = certificate["steps"]
        words.append("at its one step" if steps == 1 else f"at each of {steps:,} steps")
        words.append(f"examples clipped to {what} {release['clip_norm']:g}")
        words.append(f"{release['noise'].capitalize()} noise")
    return ", ".join([*words, f"sensitivity {release['sensitivity']:.4g}"]) + "."


def costs(method: str, names: Sequence[str]) -> Iterator[str]:
    """Yield what the benches measured of a method, beside a step without privacy."""
    rows = []
    for path in sorted((records.RESULTS / "bench").glob("cpu-*.csv")):
        with path.open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.DictReader(file) if "step" in line]
        link = f"[{path.stem}]({UP}results/bench/{path.stem}.md)"
        for line in lines:
            if _is_of(line["step"], method, names):
                ratios = (_ratio(line["time"]), _ratio(line["memory"]))
                rows.append((link, escaped(line["step"]), *ratios))
    if method in GEP:
        yield from _parts(method)
    elif not rows:
        yield "No benchmark has it. `make bench` measures the others."
        return
    if rows:
        yield "Time and memory of a step, over those of a step without privacy by autograd alone."
        yield table(("Benchmark", "Step", "Time", "Memory"), rows, 2)


def _parts(method: str) -> Iterator[str]:
    """Yield the seconds of a step of GEP by its parts."""
    folder = records.RESULTS / "bench"
    own = folder / "cpu-gep.md"
    page = own if own.is_file() else folder / "intel-xeon.md"  # which has what cpu-gep.csv has
    with (folder / "cpu-gep.csv").open(encoding="utf-8", newline="") as file:
        seconds = {line["part"]: float(line["seconds"] or 0) for line in csv.DictReader(file)}
    whole = seconds["step"]
    told = ("anchor gradients", "basis", "private gradients", "step")
    body = [(part, f"{seconds[part]:.2f}", f"{seconds[part] / whole:.0%}") for part in told]
    yield (
        "Seconds of one step of GEP at the paper's size: ResNet20, batch 1,000, m = 2,000, "
        f"k = 1,000, on [this processor]({UP}{page.relative_to(CONF.parent).as_posix()})."
    )
    yield table(("Part", "Seconds", "Share"), body)
    if method != "gep":
        yield "B-GEP has the same parts; its private gradients keep no residual."


def _is_of(step: str, method: str, names: Sequence[str]) -> bool:
    (recipes,) = (a for a in records.artifacts() if (a.paper, a.name) == RECIPES)
    keys = {row.key for row in recipes.rows if f"method={method}" in row.overrides}
    return step in keys or step.partition(",")[0] in names


def _ratio(text: str) -> str:
    return f"{float(text):.2f}" if text else "–"


def numbers(method: str) -> Iterator[str]:
    """Yield the rows that a method has in the tables that were made, beside published values."""
    yield (
        "In brackets stand published values. Only the profile `paper` has their setting: `short` "
        "has fewer steps, `quick` smaller models as well, `embedded` other data too, and their "
        "numbers are not comparable with the papers'. The link above a table leads to its claims "
        "and runs."
    )
    pictures = []
    is_in_any = is_said = False
    for made in records.built():
        link = f"[{made.title}]({UP}{made.path.relative_to(CONF.parent).as_posix()})"
        if made.artifact.figure:
            if method in records.methods_of(made):
                pictures.append(link)
            continue
        lines = records.lines_of(made, method)
        if lines:
            is_in_any = True
            yield f"**{link}.** {escaped(made.artifact.title)}."
            rows = _rows(made, lines)
            if "N.P." in rows and not is_said:
                is_said = True
                yield "N.P. means not private: trained without noise."
            yield rows
    if pictures:
        yield f"Figures: {'; '.join(pictures)}."
    elif not is_in_any:
        yield "No table that was made here has it."


def _rows(made: records.Built, lines: Iterable[dict[str, str]]) -> str:
    cells: dict[str, dict[str, str]] = {}
    for line in lines:
        cells.setdefault(line["row"], {})[line["column"]] = _cell(made, line)
    columns = list(dict.fromkeys(column for row in cells.values() for column in row))
    head = ("", *(escaped(made.column_labels(column)) for column in columns))
    body = [
        (escaped(made.row_labels(key)), *(row.get(column, "") for column in columns))
        for key, row in cells.items()
    ]
    return table(head, body)


def _cell(made: records.Built, line: dict[str, str]) -> str:
    if not line["mean"]:
        return escaped(line["status"])
    decimals = made.decimals(line)
    text = f"{float(line['mean']):.{decimals}f}"
    if line["std"]:
        text += f" ± {float(line['std']):.{decimals}f}"
    if line["published"]:
        text += f" (paper {float(line['published']):.{decimals}f})"
    return text
