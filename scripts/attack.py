"""Attack the clip bound: does any example move a clipped sum by more than its clip norm?"""

import sys

from dpexp.cli.attack import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
