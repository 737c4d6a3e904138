"""Escape untrusted texts for Markdown, CSV and LaTeX."""

from __future__ import annotations

from dpexp.reporting.text import clean

_MARKDOWN = {letter: f"\\{letter}" for letter in "[]`"} | {"&": "&amp;", "<": "&lt;", ">": "&gt;"}

FORMULA = ("=", "+", "-", "@")
"""First characters of cells that spreadsheets evaluate."""

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "ε": r"$\varepsilon$",
    "δ": r"$\delta$",
    "σ": r"$\sigma$",
    "±": r"$\pm$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"$|$",
    "×": r"$\times$",
    "·": r"$\cdot$",
    "√": r"$\surd$",
    "∂": r"$\partial$",
    "Δ": r"$\Delta$",
    "κ": r"$\kappa$",
    "ψ": r"$\psi$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "≈": r"$\approx$",
    "→": r"$\to$",
    "−": r"$-$",
    "–": "--",
    "…": r"\dots{}",
    "²": r"$^2$",
    "³": r"$^3$",
    "ᵀ": r"$^\top$",
    "₁": r"$_1$",
    "₂": r"$_2$",
}


def for_markdown(text: str) -> str:
    """Return a text without HTML or links."""
    return "".join(_MARKDOWN.get(letter, letter) for letter in clean(text))


def for_csv(value: object) -> object:
    """Return a cell that no spreadsheet evaluates; None becomes empty, numbers stay."""
    if not isinstance(value, str):
        return "" if value is None else value
    text = clean(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def for_latex(text: str) -> str:
    """Return a text with LaTeX's special characters escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in clean(text))
