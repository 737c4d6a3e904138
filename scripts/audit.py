"""Audit every private method of the suite: is what leaks within what is accounted for?"""

import sys

from dpexp.cli.audit import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
