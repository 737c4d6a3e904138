"""The numbers that README and docs show, each block made from the tables that were built.

A block is the text between `<!-- NAME -->` and `<!-- end -->` on a page; `dpexp.cli.readme` puts it
there. Nothing is computed here that a table does not hold.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import pandas as pd

from dpexp.cli import groups
from dpexp.records.rounded import at_least
from dpexp.reporting.collect import NONE, cells
from dpexp.reporting.schema import spec
from dpexp.reporting.schema.artifact import SUITES_OWN
from dpexp.types import ConfigError, counted

ROOT = groups.CONF.parent

Row = tuple[str, ...]


def _values(profile: str, table: str) -> pd.DataFrame:
    """Return a built table or figure, one line per cell."""
    path = ROOT / "results" / profile / f"{table}.csv"
    if not path.is_file():
        raise ConfigError(f"Expected {path}; make {table} under profile {profile} first.")
    return pd.read_csv(path, dtype={"x": str}).rename(columns={"line": "row"})


def _shown(cell: pd.Series) -> str:
    if pd.isna(cell["mean"]):
        return str(cell["status"])
    spread = "" if pd.isna(cell["std"]) else f" ± {cell['std']:.1f}"
    return f"{cell['mean']:.1f}{spread}"


def _published(cell: pd.Series) -> str:
    return "–" if pd.isna(cell["published"]) else f"{cell['published']:.1f}"


def _lines(head: Row, rows: Sequence[Row], words: int = 1) -> str:
    rule = ["---"] * words + ["---:"] * (len(head) - words)
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))


def _labels(profile: str, table: str) -> Mapping[str, Row]:
    paper, name = table.split("/")
    artifact = spec.load(groups.CONF, paper, name)
    changes = cells.profile_of(artifact, profile)
    return {row.key: cells.relabel(row, changes) for row in artifact.rows}


def _over_eps(profile: str, rows: Sequence[str]) -> str:
    found = _values(profile, "rgp/table3").set_index(["row", "column"])
    labels = _labels(profile, "rgp/table3")
    columns = ("eps2", "eps4", "eps6")
    head = ("data", "method", "ε = 2", "ε = 4", "ε = 6", "published ε = 2 / 4 / 6")
    body = []
    for row in rows:
        of_row = [found.loc[(row, column)] for column in columns]
        body.append((*labels[row], *map(_shown, of_row), " / ".join(map(_published, of_row))))
    return _lines(head, body, 2)


def _as_eps_grows() -> str:
    """Return gep's Table 1 on CIFAR10."""
    found = _values("quick", "gep/table1").set_index(["row", "column"])
    labels = _labels("quick", "gep/table1")
    body = []
    for row in dict.fromkeys(found.index.get_level_values("row")):
        of_row = [found.loc[(row, f"cifar10-eps{eps}")] for eps in (2, 5, 8)]
        body.append((labels[row][0], *map(_shown, of_row), " / ".join(map(_published, of_row))))
    return _lines(("method", "ε = 2", "ε = 5", "ε = 8", "published ε = 2 / 5 / 8"), body)


def _every_method() -> str:
    quick, embedded = (_values(name, "dpexp/table1") for name in ("quick", "embedded"))
    labels = _labels("quick", "dpexp/table1")
    body = [
        (labels[a["row"]][0], _shown(a), _shown(b))
        for (_, a), (_, b) in zip(quick.iterrows(), embedded.iterrows(), strict=True)
    ]
    return _lines(("method", "CIFAR10 (`quick`)", "digits (`embedded`)"), body)


def _language() -> str:
    found = _values("quick", "rgp/table4")
    labels = _labels("quick", "rgp/table4")
    body = [
        (labels[cell["row"]][0], _shown(cell), _published(cell))
        for _, cell in found[found["column"] == "sst2"].iterrows()
    ]
    return _lines(("method", "SST-2", "published"), body)


def _language_over_eps() -> str:
    found = _values("quick", "lsg/figure4")
    found = found[found["panel"] == "SST-2"].set_index(["row", "x"])
    labels = _labels("quick", "lsg/figure4")
    body = []
    for row in ("lsg", "rgp", "sparse-dpsgd", "dpsgd"):
        of_row = [found.loc[(row, eps)] for eps in ("1.2", "1.6", "3.3", "6.5")]
        body.append((labels[row][0], *map(_shown, of_row), _published(of_row[2])))
    head = ("method", "ε = 1.2", "ε = 1.6", "ε = 3.3", "ε = 6.5", "published, ε = 3.3")
    return _lines(head, body)


def _warm() -> str:
    found = _values("quick", "dpexp/table2")
    labels = _labels("quick", "dpexp/table2")
    body = [
        (
            labels[cell["row"]][0].removesuffix(", longer"),
            "5" if cell["row"].endswith("-longer") else "3",
            _shown(cell),
        )
        for _, cell in found.iterrows()
    ]
    return _lines(("method", "epochs", "SST-2"), body)


RECIPES = {
    "scratch-eps8": "CIFAR10 from scratch, ε = 8",
    "features-eps2": "on features, ε = 2",
    "features-eps3": "on features, ε = 3",
    "features-eps8": "on features, ε = 8",
    "tuned-eps3": "fine-tuned, ε = 3",
    "sst2-eps3": "SST-2, ε = 3",
}
"""Columns of table4 that the page of later methods shows, and what it calls them."""


def _recipes() -> str:
    """Return table4 as far as it was run."""
    found = _values("quick", "dpexp/table4").set_index(["row", "column"])
    body = []
    for row, labels in _labels("quick", "dpexp/table4").items():
        of_row = [found.loc[(row, column)] for column in RECIPES]
        shown = (
            NONE if cell["status"] == NONE else "–" if pd.isna(cell["mean"]) else _shown(cell)
            for cell in of_row
        )
        body.append((", ".join(labels), *shown))
    return _lines(("method, recipe", *RECIPES.values()), body)


def _recipes_steps() -> str:
    """Return the time of a step of table4's rows on its networks, of those that were timed."""
    steps = [_step_times(f"cpu-recipes-{of}") for of in ("vision", "tuned", "language")]
    body = [
        (", ".join(labels), *(times[row] for times in steps))
        for row, labels in _labels("quick", "dpexp/table4").items()
        if all(row in times for times in steps)
    ]
    networks = ("WRN10-2", "EfficientNet-Lite0", "MiniLM")
    return _lines(("method, recipe", *(f"a step, {each}" for each in networks)), body)


def _step_times(case: str) -> Mapping[str, str]:
    """Return the time of a benchmark's steps, over that of a step without privacy."""
    path = ROOT / "results" / "bench" / f"{case}.csv"
    if not path.is_file():
        raise ConfigError(f"Expected {path}; run make bench first.")
    found = pd.read_csv(path)
    return {step: f"{time:.2f}" for step, time in zip(found["step"], found["time"], strict=True)}


def _claims(profile: str) -> str:
    """Count a profile's claims, the papers' and the suite's own, and what they rest on."""
    root = ROOT / "results" / profile
    own, papers = (
        [
            line
            for page in sorted(root.glob("*/*.md"))
            if (page.parent.name == SUITES_OWN) is is_own
            for line in page.read_text("utf-8").splitlines()
            if re.match(r"- .*: \*\*(holds|does not hold|unclear)", line)
        ]
        for is_own in (True, False)
    )
    held, failed, unclear = _verdicts(papers)
    single = sum(
        ": **unclear" not in line and line.endswith("the spread of seeds is unknown")
        for line in papers
    )
    counts = "{} hold, {} do not and {} are unclear".format(*_verdicts(own))
    return (
        f"Of {counted(len(papers), 'claim')} of the papers judged in the {profile} profile {held} "
        f"{'holds' if held == 1 else 'hold'} in every comparison that was run, {failed} "
        f"{'does' if failed == 1 else 'do'} not and {unclear} {'is' if unclear == 1 else 'are'} "
        f"unclear. Of the {held + failed} decided ones {single} "
        f"{'rests' if single == 1 else 'rest'} on a single seed a side. Of "
        f"{counted(len(own), 'claim')} of the suite's own {counts}."
    )


def _verdicts(lines: Sequence[str]) -> tuple[int, ...]:
    """Count claims that hold, do not hold and are unclear."""
    words = ("holds", "does not hold", "unclear")
    return tuple(sum(f": **{word}" in line for line in lines) for word in words)


COMPARED = ("without privacy", "DP-SGD, ε = 8", "RGP, ε = 8", "DP-SGD, ε = 3.3", "LSG, ε = 3.3")
"""The README's columns."""

BESIDE: Mapping[str, Mapping[str, tuple[str, str, Mapping[str, str]]]] = {
    "CIFAR10": {
        "without privacy": ("rgp/table2", "full-np", {"column": "cifar10"}),
        "DP-SGD, ε = 8": ("rgp/table2", "dpsgd", {"column": "cifar10"}),
        "RGP, ε = 8": ("rgp/table2", "rgp", {"column": "cifar10"}),
    },
    "SST-2": {
        "without privacy": ("rgp/table4", "full-np", {"column": "sst2"}),
        "DP-SGD, ε = 8": ("rgp/table4", "dpsgd", {"column": "sst2"}),
        "RGP, ε = 8": ("rgp/table4", "rgp", {"column": "sst2"}),
        "DP-SGD, ε = 3.3": ("lsg/figure4", "dpsgd", {"panel": "SST-2", "x": "3.3"}),
        "LSG, ε = 3.3": ("lsg/figure4", "lsg", {"panel": "SST-2", "x": "3.3"}),
    },
}
"""The README's rows, and the cell of the quick profile that each of their columns is."""


def _beside_published() -> str:
    """Return accuracy on real data with the papers' in brackets: a row for each data set."""
    body = [
        (data, *(_with_published(*cells[name]) if name in cells else "–" for name in COMPARED))
        for data, cells in BESIDE.items()
    ]
    return _lines(("data", *COMPARED), body)


def _with_published(table: str, row: str, place: Mapping[str, str]) -> str:
    found = _values("quick", table)
    for key, value in {"row": row, **place}.items():
        found = found[found[key] == value]
    if len(found) != 1:
        raise ConfigError(f"Expected one cell {row}, {place} in quick {table}.")
    return f"{_shown(found.iloc[0])} ({_published(found.iloc[0])})"


def _first_run() -> str:
    """Return how the first run ends, and that its certificate passes, each on one line."""
    page = (ROOT / "docs" / "transcripts.md").read_text("utf-8")
    part = re.search(r"^## The first run$.*?^```console\n(.*?)^```", page, re.M | re.S)
    lines = re.sub(r"\n  +", " ", part[1]).splitlines() if part else []
    wanted = (r"done: .*", r"\$ python -m scripts\.verify .*", r"[^ ]*: pass: .*")
    shown = [line for line in lines if any(re.fullmatch(one, line) for one in wanted)]
    if len(shown) != len(wanted):
        raise ConfigError("Expected docs/transcripts.md to have the first run, and that it passes.")
    return "\n".join(["```console", *shown, "```"]).replace("$ python", "$ .venv/bin/python")


def _bench(case: str) -> str:
    """Return a benchmark's table as it was measured."""
    page = ROOT / "results" / "bench" / f"{case}.md"
    rows = [line for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    if not rows:
        raise ConfigError(f"Expected a table in {page}; run make bench first.")
    return "\n".join(rows)


OF_RUNS = ("run", "time", "middle half", "start-up", "loop", "goal", "peak memory")
"""Columns of a table of whole runs that fit a page."""


def _whole_runs(case: str) -> str:
    """Return the columns `OF_RUNS` of a benchmark's table."""
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in _bench(case).split("\n")]
    places = [rows[0].index(name) for name in OF_RUNS]
    return "\n".join("| " + " | ".join(row[place] for place in places) + " |" for row in rows)


AUDITED = {
    "dpsgd": "DP-SGD",
    "sparse_dpsgd": "Sparse DP-SGD",
    "dp_powersgd": "DP-PowerSGD",
    "rgp_random": "RGP-random",
    "rgp": "RGP",
    "rgp_public": "RGP, public carriers",
    "rgp_core": "RGP with a core",
    "lsg": "LSG",
    "bgep": "B-GEP",
    "gep": "GEP",
    "linear": "Linear",
    "compressive": "Compressive SGD",
    "compressive_unmeasured": "the same without Ψ",
    "pate": "PATE",
    "bitfit": "DP-BiTFiT",
    "dp_grape": "DP-GRAPE",
    "dp_lora": "DP-LoRA",
    "dp_zo": "DP-ZO",
}
OF_OTHERS = ("pate", "compressive", "compressive_unmeasured", "dp_zo")
"""Methods that do not add noise to gradients."""

BOUNDS = ("one_run", "one_run_curve", "two_worlds", "two_worlds_gaussian")


def _audits() -> str:
    """Return each audit's lower bounds on ε, and which share of ε the Gaussian one recovers."""
    found = pd.read_csv(ROOT / "results" / "embedded" / "audit.csv")
    body = [
        (
            AUDITED.get(row["method"], row["method"]),
            *("–" if pd.isna(row[bound]) else at_least(row[bound], 2) for bound in BOUNDS),
        )
        for _, row in found.iterrows()
    ]
    names = ("one run", "by its trade-off curve", "two worlds", "as Gaussian")
    table = _lines(("ε ≥, where ε = 8 is accounted for", *names), body)
    on_gradients = found[~found["method"].isin(OF_OTHERS)]
    shares = on_gradients["two_worlds_gaussian"] / on_gradients["accounted_worlds"]
    return (
        f"{table}\n\nIn two worlds the Gaussian bound recovers {100 * shares.min():.0f} to "
        f"{100 * shares.max():.0f} % of ε, for methods with Gaussian noise on gradients."
    )


PAGES: Mapping[str, Mapping[str, Callable[[], str]]] = {
    "README.md": {
        "first run": _first_run,
        "results": _beside_published,
        "claims": partial(_claims, "embedded"),
    },
    "docs/results.md": {
        "rgp/table3 quick": partial(_over_eps, "quick", ("cifar10-dpsgd", "cifar10-rgp")),
        "rgp/table3 embedded": partial(
            _over_eps, "embedded", ("svhn-dpsgd", "svhn-rgp", "cifar10-dpsgd", "cifar10-rgp")
        ),
        "gep/table1 quick": _as_eps_grows,
        "dpexp/table1": _every_method,
        "rgp/table4 quick": _language,
        "lsg/figure4 quick": _language_over_eps,
        "dpexp/table2 quick": _warm,
        "claims": partial(_claims, "embedded"),
    },
    "docs/speed.md": {
        "bench/cpu-run-vision": partial(_whole_runs, "cpu-run-vision"),
        "bench/cpu-run-small": partial(_whole_runs, "cpu-run-small"),
        "bench/cpu-run-language": partial(_whole_runs, "cpu-run-language"),
        "bench/cpu-vision": partial(_bench, "cpu-vision"),
        "bench/cpu-language": partial(_bench, "cpu-language"),
    },
    "docs/claim.md": {"audits": _audits},
    "docs/later.md": {"dpexp/table4 quick": _recipes, "dpexp/table4 steps": _recipes_steps},
}
"""How each block of each page is made; every page has its blocks once."""
