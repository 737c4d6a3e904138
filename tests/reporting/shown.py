"""What tests of tables and figures read and change."""

import csv
import io

from dpexp.reporting.render import figure
from dpexp.reporting.render.csv_files import csv_text


def edit(conf, name, *changes):
    """Change a demo artifact's YAML: each pair's first text, which it must have, to the second."""
    path = conf / f"artifact/demo/{name}.yaml"
    text = path.read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path.write_text(text, encoding="utf-8")


def csv_lines(shown):
    return list(csv.DictReader(io.StringIO(csv_text(shown))))


def drawn(shown):
    """Return the panels of a drawn figure by title."""
    return {axes.get_title(loc="left"): axes for axes in figure.draw(shown).axes}
