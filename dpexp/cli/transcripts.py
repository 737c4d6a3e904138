"""Write docs/transcripts.md: commands on small generated data, and what they print.

    python -m scripts.transcripts                  # a minute; writes docs/transcripts.md
    python -m scripts.transcripts only=table       # one of them, printed

Each transcript is a real run in a fresh folder, on a terminal of 80 columns. A bar that was there
meanwhile is left out. The texts' model, MiniLM, comes from DPEXP_MODEL_ROOT or the hub.
Exit code: 0; 2 for a user error, or a command that failed.
"""

from __future__ import annotations

import csv
import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from dpexp.cli.arguments import exit_code_of, only, text
from dpexp.cli.groups import CONF
from dpexp.cli.ready import FIRST_RUN
from dpexp.records import write_atomically
from dpexp.reporting.schema.artifact import unknown
from dpexp.types import ConfigError

ROOT = CONF.parent
PAGE = ROOT / "docs" / "transcripts.md"
COLUMNS = 80

HEAD = """\
# Transcripts

What some commands print, from the first run to a method of your own. The data are small and made \
for this page, so the numbers mean little. Each command ran in a fresh folder, on a terminal of 80 \
columns. The progress bar is left out. `python -m scripts.transcripts` makes this page.
"""


@dataclass(frozen=True)
class Transcript:
    """Commands that are run one after another in a folder of their own.

    Attributes:
        title: heading of its part of the page.
        says: a sentence or two before the commands.
        make: writes into the folder what the commands read.
        commands: as typed; RUN stands for the last run's directory.
    """

    title: str
    says: str
    make: Callable[[Path], None]
    commands: tuple[str, ...]


def _photos(folder: Path) -> None:
    """Write photos/CLASS/N.png: 8 x 8 pixels, striped along or across, in grey noise."""
    draw = np.random.default_rng(0)
    for name, axis in (("across", 0), ("along", 1)):
        (folder / "photos" / name).mkdir(parents=True)
        for index in range(120):
            bright = np.roll(np.arange(8) % 4 < 2, draw.integers(4)) * 120.0 + 60
            pixels = np.broadcast_to(bright[:, None] if axis == 0 else bright, (8, 8))
            pixels = (pixels + draw.normal(0, 30, (8, 8))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / "photos" / name / f"{index}.png")


def _reviews(folder: Path) -> None:
    """Write reviews.csv: a sentence about a meal, and whether it is good or bad."""
    draw = np.random.default_rng(0)
    dishes = ("soup", "bread", "salad", "fish", "cake", "coffee")
    words = {
        "good": ("wonderful", "excellent", "a delight", "perfect"),
        "bad": ("terrible", "awful", "a disappointment", "stale"),
    }
    rows = []
    for index in range(240):
        label = ("good", "bad")[index % 2]
        rows.append((f"the {draw.choice(dishes)} was {draw.choice(words[label])}", label))
    _table(folder / "reviews.csv", ("text", "label"), rows)


def _houses(folder: Path) -> None:
    """Write houses.csv: rooms, heating, and a price that grows with the rooms."""
    draw = np.random.default_rng(0)
    rows = []
    for _ in range(300):
        rooms, heating = int(draw.integers(1, 13)), str(draw.choice(("gas", "oil", "none")))
        price = 60 * rooms + 40 * (heating == "gas") + draw.normal(0, 20)
        rows.append((rooms, heating, f"{min(max(price, 0), 800):.0f}"))
    _table(folder / "houses.csv", ("rooms", "heating", "price"), rows)


def _table(path: Path, names: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, *rows])


PROGRAM = """\
import torch
from sklearn.datasets import load_digits
from torch import nn

import dpexp

images, labels = load_digits(return_X_y=True)
images = torch.tensor(images / 16).float().view(-1, 1, 8, 8)
labels = torch.tensor(labels)
train, test = (images[:1437], labels[:1437]), (images[1437:], labels[1437:])
model = nn.Sequential(
    nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 10)
)

settings = dict(method="dpsgd", eps=8, epochs=3, batch_size=200, lr=0.5)
run = dpexp.train(model, train, test, **settings)
print(f"{run.accuracy:.1f} % at eps <= 8")
print(run.model(test[0][:3]).argmax(1), test[1][:3])
"""


def _program(folder: Path) -> None:
    (folder / "train.py").write_text(PROGRAM, encoding="utf-8")


def _nothing(folder: Path) -> None:
    """Leave the folder as it is."""


FIRST = " ".join(("python run.py", *FIRST_RUN, "results=mine"))
OWN = "--config-dir examples/extension/conf method=filtered"

TRANSCRIPTS: Mapping[str, Transcript] = {
    "first": Transcript(
        "The first run",
        "RGP (reparametrized gradient perturbation) on scikit-learn's handwritten digits, and its "
        "certificate recomputed.",
        _nothing,
        (FIRST, "python -m scripts.verify RUN"),
    ),
    "images": Transcript(
        "Your own images",
        "`photos` has a folder of images for each class, `across` and `along` ([data](data.md)).",
        _photos,
        (
            "python run.py task=images data=photos task.test_size=60 dataset_size=180 "
            "method=dpsgd eps=8",
            "dpexp predict RUN photos/along/0.png photos/across/0.png",
        ),
    ),
    "texts": Transcript(
        "Your own texts",
        "`reviews.csv` has the columns `text` and `label`. The model is MiniLM, a small language "
        "model.",
        _reviews,
        (
            "head -n 3 reviews.csv",
            "python run.py task=texts data=reviews.csv task.classes=[bad,good] task.test_size=60 "
            "dataset_size=180 method=bitfit eps=8",
        ),
    ),
    "table": Transcript(
        "Your own table",
        "Each column that is read is declared: a number's range, or its words.",
        _houses,
        (
            "head -n 3 houses.csv",
            "python run.py task=table data=houses.csv task.target=price task.target_range=[0,800] "
            "'task.columns={rooms:[1,12],heating:[gas,oil,none]}' task.test_size=60 "
            "dataset_size=240 method=dpsgd eps=8",
            "dpexp predict RUN houses.csv | head -n 3",
        ),
    ),
    "method": Transcript(
        "A method of your own",
        "`examples/extension` holds one that filters the noisy gradients ([extend](extend.md)).",
        _nothing,
        (
            f"python -m scripts.check_method {OWN} model=linear",
            f"python run.py {OWN} task=digits model=linear eps=8 profile=embedded results=mine",
        ),
    ),
    "python": Transcript(
        "From Python",
        "A model and data in memory ([Python](python.md)).",
        _program,
        ("cat train.py", "python train.py"),
    ),
}


def made(name: str) -> str:
    """Run a transcript's commands; return its part of the page.

    Raises:
        ConfigError: if a command fails.
    """
    transcript, lines = TRANSCRIPTS[name], []
    with tempfile.TemporaryDirectory() as place:
        folder, run = Path(place).resolve(), ""
        for each in ("run.py", "dpexp", "scripts", "conf", "examples"):
            (folder / each).symlink_to(ROOT / each)
        transcript.make(folder)
        for command in transcript.commands:
            command = command.replace("RUN", run)
            shown = on_terminal(command, folder)
            lines += [*_typed(command), *shown]
            found = [line for line in shown if re.fullmatch(r"\S+/runs/[0-9a-f]{12}", line)]
            run = found[-1] if found else run
    body = "\n".join(lines)
    return f"## {transcript.title}\n\n{transcript.says}\n\n```console\n{body}\n```\n"


def _typed(command: str) -> list[str]:
    """Return a command as it is typed, in lines that a terminal holds."""
    first, *rest = textwrap.wrap(
        command, COLUMNS - 4, break_long_words=False, break_on_hyphens=False
    )
    lines = [f"$ {first}", *(f"    {line}" for line in rest)]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def on_terminal(command: str, folder: Path) -> list[str]:
    """Run a command on a terminal of 80 columns; return the lines that are left on it.

    Args:
        command: of a shell; `python` is this one, `dpexp` this package's.
        folder: where it runs.

    Raises:
        ConfigError: if it fails.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    python = shlex.quote(sys.executable)
    begin = f'python() {{ {python} "$@"; }}; dpexp() {{ {python} -m dpexp.cli "$@"; }}; '
    kept = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
    environment = {**kept, "TERM": "xterm", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        ["bash", "-c", f"set -f; {begin}{command}"],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while some := _read(ours):
            shown += some
    os.close(ours)
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in shown.decode().split("\n")]
    left = [line.replace(str(folder), ".").rstrip() for line in lines]
    if process.returncode:
        raise ConfigError(f"Expected {command} to end well; it said: {' '.join(left[-3:])}")
    return left[:-1] if left and not left[-1] else left


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux's way to say that the other end is closed
        return b""


def shape(part: str) -> list[str]:
    """Return what two runs of a transcript have in common: its words, without numbers and ids."""
    known = re.sub(r"\b[0-9a-f]{12}\b", "ID", part)
    return re.sub(r"\d+(?:[.,:]\d+)*(?:e[+-]?\d+)?", "#", known).split()


def main(words: Sequence[str]) -> int:
    """Run the command line; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    name = only(words, {"only": text}).get("only")
    if name is None:
        write_atomically(PAGE, "\n".join([HEAD, *map(made, TRANSCRIPTS)]))
        print(PAGE)
        return 0
    if name not in TRANSCRIPTS:
        raise unknown("transcript", name, TRANSCRIPTS)
    print(made(name), end="")
    return 0
