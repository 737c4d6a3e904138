"""Begin the README's first run and end before its first step, so that it need not be waited for.

What a run finds once a machine is kept in the cache: compiled kernels, that its network keeps
examples apart, and how much noise its budget takes. `make setup` ends with this. It also shows that
what was installed can train.
"""

from __future__ import annotations

import sys
from typing import Any

FIRST_RUN = ("method=rgp", "task=digits", "eps=8", "profile=embedded")
"""Words of the first run."""


def main() -> int:
    """Do all that comes before the first run's first step, and wait until it is kept."""
    from dpexp.cli.composition import compose
    from dpexp.distributed import processes

    processes.launch(_begin, compose([*FIRST_RUN, "ranks=1"]))
    return 0


def _begin(ranks: Any, config: dict[str, Any]) -> None:
    from dpexp import kernels
    from dpexp.cli.parts import build_parts
    from dpexp.training.train import first_look, make_mechanism

    kernels.prepare()
    parts = build_parts(config, ranks.device)
    first_look(parts, ranks.device)
    start = parts.method.start(parts.model)
    size = parts.task.dataset_size
    make_mechanism(config, size, parts.method, start, ranks, parts.correlation)
    kernels.compiled()


if __name__ == "__main__":
    sys.exit(main())
