"""Private deep learning: train a model, regenerate a paper's table, verify what is claimed.

    dpexp run method=rgp task=digits eps=8    train one model; its directory is the last line
    dpexp table table3 paper=rgp              build a table beside the published values
    dpexp figure figure4 paper=lsg            build a figure
    dpexp verify results/embedded/runs/*      recompute runs' privacy certificates
    dpexp tune table3 paper=gep               try the settings that a table's paper chose among
    dpexp predict results/.../RUN FILES       use the model that a run has kept
    dpexp budget eps=8 delta=1e-5 dataset_size=50000 batch_size=1000 epochs=200
                                              the noise for a budget, or the eps of a noise

`dpexp COMMAND --help` explains a command's words. Exit code: the command's own; 2 for a user error.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dpexp.cli import errors

COMMANDS = ("run", "table", "figure", "verify", "tune", "predict", "budget")


def main() -> int:
    """Run the command line; return the exit code."""
    command, *words = sys.argv[1:] or [""]
    if command in ("", "-h", "--help"):
        print((__doc__ or "").strip())
        return 0 if command else 2
    if command not in COMMANDS:
        near = errors.nearest(command, COMMANDS)
        return errors.fail(f"Expected one of {', '.join(COMMANDS)}; got {command}.{near}")
    return _do(command, words)


def _do(command: str, words: Sequence[str]) -> int:
    """Import only the command's module, and run it."""
    program = f"dpexp {command}"
    if command == "run":
        from dpexp.cli import run

        sys.argv = [program, *words]
        run.main()
        return 0
    if command == "verify":
        from dpexp.cli import verify

        return verify.main(words, program)
    if command == "predict":
        from dpexp.cli import predict

        return predict.main(words)
    if command == "tune":
        from dpexp.cli import tune

        return tune.main(words, called=program)
    if command == "budget":
        from dpexp.cli import budget

        return budget.main(words)
    from dpexp.cli import artifact

    return artifact.main(words, called=program)


if __name__ == "__main__":
    sys.exit(main())
