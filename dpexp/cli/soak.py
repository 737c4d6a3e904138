"""Soak test: a run of 2,000 steps on two ranks survives kills and full disks without any loss.

make soak [ARGS="..."]
python -m scripts.soak disturbances=6 method=lsg

Does the same run twice. The first is undisturbed, and its ranks' memory is sampled. The second is
disturbed at random moments: the starting process killed, either rank killed, SIGTERM, a disk too
full for a checkpoint, a disk full for everything. Both must end with equal weights and metrics, bit
for bit, equal certificates, and as many draws of noise as steps.

Its own words, each WORD=VALUE; any other is a Hydra override for both runs:

    disturbances=12     their number
    start=0             seed of the random moments

Exit code: 0 if all of that holds, 1 if not, 2 for a user error.
"""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dpexp import records
from dpexp.cli.arguments import exit_code_of, split, whole
from dpexp.cli.command_line import with_words
from dpexp.cli.composition import compose
from dpexp.types import ConfigError

STEPS = 2000
RUN = ("method=rgp", "task=digits", "profile=embedded", "model=wrn10_1", "batch_size=32",
       "eval_every=2", "ranks=2", "device=cpu", "checkpoint.steps=50")  # fmt: skip
FLAT = 1.05
"""Largest ratio of the last quarter's peak memory to the second's; the first quarter warms up."""

TIMEOUT = 120  # seconds within which a disturbed run must end
SAMPLED = 0.5  # seconds between two samples of the ranks' memory


@dataclass
class Outcome:
    """How one process ran and ended.

    Attributes:
        code: its exit code; if negative, minus the signal that ended it.
        output: the last lines that it printed.
        memory: the ranks' resident bytes, by sample.
        left: ranks that outlived it.
    """

    code: int
    output: list[str]
    memory: list[tuple[int, ...]] = field(default_factory=list)
    left: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Disturbance:
    """A disturbance of a run.

    Attributes:
        name: shown in the output.
        strike: takes the process ids of the starting process and the ranks; None does nothing.
        room: largest size of a file in bytes; None is unlimited.
    """

    name: str
    strike: Callable[[int, Sequence[int]], None] | None
    room: int | None = None


def _kill(rank: int) -> Callable[[int, Sequence[int]], None]:
    def strike(_: int, ranks: Sequence[int]) -> None:
        os.kill(ranks[rank], signal.SIGKILL)

    return strike


DISTURBANCES = (
    Disturbance("kill -9 of the starting process", lambda pid, _: os.kill(pid, signal.SIGKILL)),
    Disturbance("kill -9 of the first rank", _kill(0)),
    Disturbance("kill -9 of the second rank", _kill(1)),
    Disturbance("SIGTERM", lambda pid, _: os.kill(pid, signal.SIGTERM)),
    Disturbance("a disk too full for a checkpoint, then kill -9", _kill(0), room=2**14),
    Disturbance("a disk full for everything", None, room=2**9),
)


def ranks_of(pid: int) -> list[int]:
    """Return the process ids of a process's ranks, in order."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return sorted(int(child) for child in children if b"spawn_main" in _command(int(child)))


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def resident(pid: int) -> int:
    """Return a process's resident bytes; 0 once it has ended."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0


def run_once(
    words: Sequence[str], disturbance: Disturbance | None = None, after: float = 0.0
) -> Outcome:
    """Start a run and wait for its end.

    Args:
        words: of its command line.
        disturbance: what happens to the run; None: sample its memory instead.
        after: seconds from the first sign of its ranks' work to the strike.
    """
    room = disturbance.room if disturbance else None

    def limit() -> None:
        assert room is not None
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))

    process = subprocess.Popen(
        [sys.executable, "-m", "dpexp.cli", "run", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=limit if room is not None else None,
    )
    output: list[str] = []
    has_begun = threading.Event()
    reader = threading.Thread(target=_read, args=(process, output, has_begun))
    reader.start()
    memory: list[tuple[int, ...]] = []
    ranks: list[int] = []
    if disturbance is None:
        while process.poll() is None:
            ranks = ranks_of(process.pid) or ranks
            memory.append(tuple(resident(rank) for rank in ranks))
            time.sleep(SAMPLED)
    elif disturbance.strike is not None and has_begun.wait(TIMEOUT):
        ranks = ranks_of(process.pid)
        time.sleep(after)
        if process.poll() is None:
            disturbance.strike(process.pid, ranks)
    process.wait(TIMEOUT if disturbance else None)
    left = _outliving(ranks)
    reader.join(TIMEOUT)
    full: list[tuple[int, ...]] = [sample for sample in memory if len(sample) == 2 and all(sample)]
    return Outcome(process.returncode, output[-20:], full, left)


def _read(process: subprocess.Popen[str], output: list[str], has_begun: threading.Event) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        output.append(line.rstrip())
        if "noise multiplier" in line:  # logged last before the first step
            has_begun.set()
    has_begun.set()


def _outliving(ranks: Sequence[int]) -> list[int]:
    """Wait for ranks to end; return those that do not."""
    until = time.monotonic() + TIMEOUT
    left = list(ranks)
    while left and time.monotonic() < until:
        left = [rank for rank in left if b"spawn_main" in _command(rank)]
        time.sleep(0.1)
    return left


def growth(memory: Sequence[tuple[int, ...]]) -> float:
    """Return the largest ratio, over ranks, of the last quarter's peak to the second quarter's."""
    quarter = len(memory) // 4
    if not quarter:
        raise ConfigError("Expected a run long enough for four samples of its memory. Set epochs.")
    second, last = memory[quarter : 2 * quarter], memory[-quarter:]
    ranks = range(len(memory[0]))
    return max(max(m[r] for m in last) / max(m[r] for m in second) for r in ranks)


def differences(first: Path, second: Path) -> list[str]:
    """Return what differs between two finished runs."""
    faults = []
    if (first / "metrics.jsonl").read_bytes() != (second / "metrics.jsonl").read_bytes():
        faults.append("metrics differ")
    results = [json.loads((d / "result.json").read_text()) for d in (first, second)]
    for key in ("weights_sha256", "steps", "test_accuracy"):
        if results[0][key] != results[1][key]:
            faults.append(f"{key} differs: {results[0][key]} and {results[1][key]}")
    if (first / "privacy.json").read_bytes() != (second / "privacy.json").read_bytes():
        faults.append("certificates differ")
    return faults


def counted(directory: Path) -> list[str]:
    """Return which of steps and draws of noise differ from the planned number."""
    certificate = json.loads((directory / "privacy.json").read_text())
    return [
        f"{key} is {certificate[key]}, not {STEPS}"
        for key in ("steps", "noise_draws")
        if certificate[key] != STEPS
    ]


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    own, overrides = split(words, {"disturbances": whole(1), "start": whole(0)})
    config = compose([*RUN, *overrides])
    epochs = STEPS * config["batch_size"] / config["task"]["dataset_size"]
    with tempfile.TemporaryDirectory() as folder:
        words = with_words([*RUN, f"epochs={epochs}"], overrides)
        return _soak(Path(folder), words, **{"disturbances": 12, "start": 0, **own})


def _soak(folder: Path, words: Sequence[str], disturbances: int, start: int) -> int:
    alone, soaked = (
        with_words(words, [f"results={folder / name}"]) for name in ("alone", "soaked")
    )
    began = time.monotonic()
    outcome = run_once(alone)
    seconds = time.monotonic() - began
    if outcome.code:
        print(*outcome.output, sep="\n", file=sys.stderr)
        return 1
    grown = growth(outcome.memory)
    _say(f"undisturbed: {STEPS} steps in {seconds:.0f} s, memory {grown - 1:+.1%} "
         f"from the second to the last quarter ({len(outcome.memory)} samples)")  # fmt: skip
    faults = [] if grown <= FLAT else [f"memory grew by {grown - 1:.1%}"]
    moments = random.Random(start)
    for turn in range(disturbances):
        disturbance = DISTURBANCES[turn % len(DISTURBANCES)]
        after = moments.uniform(0, seconds / disturbances)
        outcome = run_once(soaked, disturbance, after)
        _say(f"{turn + 1}. {disturbance.name} after {after:.1f} s: exit {outcome.code}, "
             f"{outcome.output[-1] if outcome.output else 'no output'}")  # fmt: skip
        if outcome.code == 0:
            faults.append(f"the run ended before turn {turn + 1}: set start to draw other moments")
            break
        if outcome.left:
            faults.append(f"turn {turn + 1}: ranks outlived their run: {outcome.left}")
        faults += [f"turn {turn + 1}: {line}" for line in outcome.output if _is_wrong(line)]
    outcome = run_once(soaked)
    faults += [line for line in outcome.output if _is_wrong(line)]
    if outcome.code:
        print(*outcome.output, sep="\n", file=sys.stderr)
        return 1
    directories = [records.locate(w[-1].partition("=")[2], compose(w)) for w in (alone, soaked)]
    faults += differences(*directories) + counted(directories[1])
    _say("; ".join(faults) or "the disturbed run equals the undisturbed one, bit for bit")
    return 1 if faults else 0


def _is_wrong(line: str) -> bool:
    """Return whether a line shows a traceback, or steps lost although sums are reproducible."""
    return "Traceback" in line or "count as spent" in line


def _say(line: str) -> None:
    print(line, flush=True)
