"""Build every table and figure of the papers, and one page that shows them side by side."""

import sys

from dpexp.cli.all import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
