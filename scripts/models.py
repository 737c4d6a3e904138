"""Write docs/models.md: which architectures train privately, and how exactly."""

import sys

from dpexp.cli.models import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
