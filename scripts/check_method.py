"""Hold a method to what it declares: what one example can move, and what else of it is known."""

import sys

from dpexp.cli.check_method import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
