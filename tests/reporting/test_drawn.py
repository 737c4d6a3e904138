"""Every committed figure: no mark hides another, the legend is what is drawn, axes are whole."""

import os
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.colors import to_hex
from matplotlib.legend import Legend

from dpexp.cli import groups
from dpexp.cli.suite import PAPERS, Suite, choose
from dpexp.reporting.render import figure
from dpexp.reporting.render.style import STYLE
from dpexp.reporting.schema.artifact import CURVES, MAPS
from tests.marks import few

ROOT = Path(__file__).parents[2]
WRITTEN = sorted(
    path.relative_to(ROOT / "results").with_suffix("").as_posix()
    for paper in PAPERS
    for path in ROOT.glob(f"results/*/{paper}/figure*.svg")
)


SHORT = ["embedded/gep/figure6", "embedded/lsg/figure1", "embedded/rgp/figure3"]
"""Of each kind one: points, maps and curves."""


@pytest.fixture(scope="module", params=few(WRITTEN, SHORT))
def shown(request):
    profile, _, name = request.param.partition("/")
    (artifact,) = choose(PAPERS, [name], groups.CONF)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)  # records lie under results/
        table = Suite([artifact], profile).entry(artifact).table
    with rc_context(STYLE):
        picture = figure.draw(table)
        picture.canvas.draw()
    return table, picture


def panels(shown):
    return [axes for axes in shown[1].axes if axes.get_visible() and axes.lines]


def marks(line):
    """Return where a line's marks are drawn, in points of the page."""
    pixels = line.get_transform().transform(line.get_xydata().astype(float))
    return pixels * 72 / line.figure.dpi


def look(line):
    hollow = line.get_markerfacecolor() == "none"
    marker = line.get_marker()
    stroke = "none" if line.get_linestyle() == "None" else line._unscaled_dash_pattern
    return to_hex(line.get_color()), "" if marker == "None" else marker, str(stroke), hollow


def series(axes):
    """Return the lines that stand for a series; caps of error bars are none."""
    return [line for line in axes.lines if line.get_marker() not in ("_", "|")]


def test_no_mark_hides_another_or_is_cut_off(shown):
    table, _ = shown
    for axes in panels(shown):
        lines = [line for line in series(axes) if line.get_marker() not in ("None", "")]
        for one, two in combinations(lines, 2):
            curves = "none" not in (one.get_markerfacecolor(), two.get_markerfacecolor())
            if table.artifact.kind == CURVES and curves:
                continue  # curves may meet
            apart = np.abs(marks(one)[:, None] - marks(two)[None])
            assert (np.linalg.norm(apart, axis=-1) >= 2.5).all()
        for line in lines:
            box = axes.get_window_extent()
            for x, y in marks(line) * line.figure.dpi / 72:
                assert box.x0 <= x <= box.x1 and box.y0 <= y <= box.y1


def test_the_legend_has_what_is_drawn_and_nothing_else(shown):
    table, picture = shown
    if table.artifact.kind == MAPS:
        return
    (legend,) = [part for part in picture.get_children() if isinstance(part, Legend)]
    told = {look(line) for line in legend.findobj(type(legend.get_lines()[0]))}
    assert told == {look(line) for axes in panels(shown) for line in series(axes)}


def test_epochs_are_whole_and_spreads_have_a_place_on_log_axes(shown):
    table, _ = shown
    for axes in panels(shown):
        if table.artifact.kind == CURVES and axes.get_xscale() == "linear":
            low, high = axes.get_xlim()
            ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
            assert ticks and all(tick == round(tick) for tick in ticks)
        if axes.get_yscale() == "log":
            for part in axes.collections:
                for path in part.get_paths():
                    assert (path.vertices[:, 1] > 0).all()


def test_labels_of_ticks_are_whole_and_apart(shown):
    _, picture = shown
    for axes in picture.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            boxes = [
                label.get_window_extent()
                for tick in axis.get_major_ticks()
                for label in (tick.label1, tick.label2)
                if low <= tick.get_loc() <= high and label.get_visible() and label.get_text()
            ]
            assert not any(one.overlaps(two) for one, two in combinations(boxes, 2))
            for box in boxes:
                assert picture.bbox.x0 <= box.x0 and box.x1 <= picture.bbox.x1
                assert picture.bbox.y0 <= box.y0 and box.y1 <= picture.bbox.y1


BYTES = """
import hashlib
from dpexp.cli import groups
from dpexp.cli.suite import PAPERS, Suite, choose
from dpexp.reporting.render import figure
for name in ("rgp/figure4", "compressive/figure1"):
    (artifact,) = choose(PAPERS, [name], groups.CONF)
    for content in figure.pictures(Suite([artifact], "embedded").entry(artifact).table).values():
        print(hashlib.sha256(content).hexdigest())
"""


@pytest.mark.long
def test_two_processes_write_the_same_bytes(capsys, monkeypatch):
    other = subprocess.run(
        [sys.executable, "-c", BYTES], cwd=ROOT, text=True, capture_output=True, check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "1"},
    ).stdout  # fmt: skip
    monkeypatch.chdir(ROOT)
    exec(BYTES, {})
    assert capsys.readouterr().out == other and other.count("\n") == 4
