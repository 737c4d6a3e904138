"""Time and weigh one step of every method beside the non-private step and the peers; or whole runs.

python -m scripts.bench [--only vision] [--batch 32] [--rounds 12] [--device auto]
python -m scripts.bench --only run [--examples 4096] [--test 1000] [--batch 512] [--rounds 5]

The unit is plain autograd's forward, backward and gradient. A private step is everything but the
optimizer: carriers, forward, backward, clipping, noise, reconstruction. What of it is paid once a
logical batch, however many micro-batches that has, is timed as a step on an empty draw. All steps
are timed side by side in one process, in turns, each round beginning with another one: what ran
just before leaves caches and memory as it likes. Each one's memory is the median of three processes
of its own, since what a CPU's peak counts differs by a tenth from one to the next. A GPU's peak is
what torch's allocator counted, the same every time, and is taken once, in this process.
"""

import sys

from dpexp.cli import errors
from dpexp.types import ConfigError
from scripts.bench.words import read


def main() -> None:
    """Measure what the command line asks for."""
    arguments = read(description=__doc__.splitlines()[0])
    from scripts.bench import measuring  # a mistake in the words does not wait for torch

    measuring.run(arguments)


if __name__ == "__main__":
    try:
        main()
    except ConfigError as error:
        sys.exit(errors.fail(str(error)))
