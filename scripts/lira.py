"""Attack models with the likelihood ratio attack on membership, and draw what it finds."""

import sys

from dpexp.cli.lira import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
