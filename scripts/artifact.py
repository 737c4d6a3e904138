"""Build a table or figure of a paper: run what is missing, write it beside the published values."""

import sys

from dpexp.cli.artifact import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
