"""Choose among the settings that a paper chose from, on training examples held out for it."""

import sys

from dpexp.cli.tune import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
