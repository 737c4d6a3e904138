"""Which architectures train privately, by which methods, and how exactly: docs/models.md.

python -m scripts.models

Each is built small, with random weights, from its library's configuration. Every example's gradient
of every parameter is compared with torch.autograd's of that example alone, in float64; so are the
low-rank products that RGP, LSG and DP-PowerSGD take of each weight matrix. Then each is trained by
each method, for two steps (`dpexp.cli.trainability`).
"""

from __future__ import annotations

from collections.abc import Sequence

from dpexp.cli.arguments import exit_code_of
from dpexp.types import ConfigError


def main(words: Sequence[str]) -> int:
    """Write the page; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    if words:
        raise ConfigError(f"Expected no words; got {' '.join(words)}.")
    from dpexp.cli.models_page import PAGE, page  # a mistake does not wait for torch
    from dpexp.cli.trainability import quiet

    with quiet():
        made = page()
    PAGE.write_text(made, encoding="utf-8")
    print(PAGE)
    return 0
