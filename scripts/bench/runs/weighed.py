"""Run a command, and write its seconds, its processor's seconds and its peak memory to a file.

python -I -S scripts/bench/runs/weighed.py FILE COMMAND...

A process of its own, since on Linux a child's peak memory counts that of the process that made it.
"""

import json
import os
import subprocess
import sys
import time


def main() -> None:
    """Run the command, write the file, and exit as the command did."""
    path, *command = sys.argv[1:]
    began = time.perf_counter()
    child = subprocess.Popen(command)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    with open(path, "w", encoding="utf-8") as file:
        numbers = {
            "seconds": seconds,
            "cpu_seconds": used.ru_utime + used.ru_stime,
            "megabytes": used.ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3),
        }
        json.dump(numbers, file)
    sys.exit(child.returncode if child.returncode >= 0 else 128 - child.returncode)


if __name__ == "__main__":
    main()
