"""Lay out a paper's dashboard on wandb: accuracy over epsilon by method, a chart a task."""

import sys

from dpexp.cli.wandb_view import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
