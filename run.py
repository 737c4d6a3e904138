"""Train one model with one method on one task within one privacy budget.

python run.py method=rgp task=cifar10 eps=8
"""

import os
from pathlib import Path

from dpexp.cli.run import main

if __name__ == "__main__":
    # What a launcher starts elsewhere finds `dpexp` where this was found.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH")])
    )
    main()
