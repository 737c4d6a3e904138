"""Write docs/transcripts.md: commands on small generated data, and what they print."""

import sys

from dpexp.cli.transcripts import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
