"""Soak a run: two ranks, two thousand steps, kills and a full disk, and nothing may be lost."""

import sys

from dpexp.cli.soak import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
