"""Try settings on held-out training examples, so that the test set chooses nothing."""

import sys

from dpexp.cli.search import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
