"""Write the numbers of README and docs anew from the tables and figures that were made."""

import sys

from dpexp.cli.readme import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
