"""Print docs/noise.md: the noise of every private published setting, ours and the papers' own."""

import sys

from dpexp.cli.noise import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
