"""How often a verdict of two cells is wrong, and how often it finds a difference: simulated."""

import sys

from dpexp.cli.verdicts import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
