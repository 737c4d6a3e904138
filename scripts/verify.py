"""Recompute finished runs' privacy certificates from their configs, by another accountant."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    from dpexp.cli.verify import main

    sys.exit(main(sys.argv[1:]))
