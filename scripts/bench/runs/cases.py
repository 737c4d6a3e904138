"""The cases: who runs in each, and with which words.

All contenders of a case read the same files and train the same model for the same number of steps.
RGP trains the matrices alone, as its paper has it; all others every parameter that is not frozen.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from scripts.bench.runs import examples

ROOT = Path(__file__).resolve().parents[3]

UNIT = "plain PyTorch, without privacy"
BY_LENGTH = f"{UNIT}, parts by length"
DP_SGD, RGP, NONPRIVATE = "dpexp DP-SGD", "dpexp RGP", "dpexp without privacy"
SECOND = ", a second run"
"""Ends the name of a run that finds what one before it left in dpexp's cache."""

PEERS = "Opacus hooks", "Opacus ghost"
"""Private peers: DP-SGD's goal is half the fastest one's time."""

EPS, DELTA = 8.0, 1e-5


@dataclass(frozen=True)
class Sizes:
    """What a run is made of.

    Attributes:
        train: training examples.
        test: test examples.
        batch: examples a step, expected where they are drawn by Poisson sampling.
        epochs: passes over the training examples.
    """

    train: int = 4096
    test: int = 1000
    batch: int = 512
    epochs: int = 1

    @property
    def steps(self) -> int:
        """Return the optimizer's steps."""
        return self.epochs * -(-self.train // self.batch)


@dataclass(frozen=True)
class Contender:
    """One who trains.

    Attributes:
        command: arguments of Python: the words of a user, but for folders.
        needs: a module that must be importable.
        goal: of the unit's time.
        is_ours: whether it is `python run.py`, which leaves a record; else a script, whose last
            line is JSON.
    """

    command: Sequence[str]
    needs: str | None = None
    goal: float | None = None
    is_ours: bool = False

    @property
    def is_there(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None


@dataclass(frozen=True)
class Case:
    """A task and a model.

    Attributes:
        title: names them.
        write: writes the examples to a folder, and says what they are.
        contenders: by name, the unit among them, for given sizes and the folder of the data.
        most_tested: test examples that there are at most.
        notes: what a reader should know besides.
        sizes: where the command line names none.
    """

    title: str
    write: Callable[[Path, int, int], str]
    contenders: Callable[[Sizes, Path], Mapping[str, Contender]]
    most_tested: int
    notes: str
    sizes: Sizes = Sizes()


def ours(method: str, sizes: Sizes, root: Path, *words: str) -> list[str]:
    """Return the command of a run of dpexp, but for where its record goes."""
    private = [] if method == "nonprivate" else [f"eps={EPS:g}"]
    return [
        str(ROOT / "run.py"),
        f"method={method}",
        *words,
        *private,
        f"task.dataset_size={sizes.train}",
        f"task.delta={DELTA}",
        f"batch_size={sizes.batch}",
        f"epochs={sizes.epochs}",
        f"eval_every={sizes.epochs}",
        "schedule=constant",
        f"checkpoint.steps={max(1, sizes.steps // 2)}",
        "device=cpu",
        f"data_root={root}",
    ]


def peer(script: str, sizes: Sizes, data: Path, physical: int, lr: float, *words: str) -> list[str]:
    """Return the command of a peer's script, but for where its weights go."""
    command = ["-m", f"scripts.bench.peers.{script}", "--data", str(data)]
    command += ["--batch", str(sizes.batch), "--epochs", str(sizes.epochs)]
    return [*command, "--physical", str(min(physical, sizes.batch)), "--lr", str(lr), *words]


def private(clip_norm: float) -> list[str]:
    """Return the words of a private peer."""
    return ["--eps", str(EPS), "--delta", str(DELTA), "--clip-norm", str(clip_norm)]


def vision(
    sizes: Sizes, root: Path, depth: int = 16, width: int = 4, stem_stride: int = 1
) -> dict[str, Contender]:
    """Return who trains a wide ResNet on images."""
    data = root / examples.IMAGES
    shape = ["--depth", str(depth), "--width", str(width), "--stem-stride", str(stem_stride)]
    words = ["task=cifar10", "model=wrn28_4", f"model.depth={depth}", f"model.width={width}"]
    words += [f"model.stem_stride={stem_stride}", "optimizer=sgd", "optimizer.weight_decay=0"]

    def own(method: str, lr: float, *more: str) -> list[str]:
        return ours(method, sizes, root, *words, f"optimizer.lr={lr}", *more)

    def opacus(mode: str) -> list[str]:
        given = [*private(1.0), "--mode", mode, *shape]
        return peer("opacus_images", sizes, data, 16, 0.2, *given)

    plain = "plain_images"
    dpsgd, rgp = own("dpsgd", 0.2), own("rgp", 0.2, "method.warm_up_steps=1")
    return {
        UNIT: Contender(peer(plain, sizes, data, 32, 0.1, *shape)),
        f"{UNIT}, channels last": Contender(
            peer(plain, sizes, data, 64, 0.1, *shape, "--channels-last")
        ),
        NONPRIVATE: Contender(own("nonprivate", 0.1), is_ours=True),
        DP_SGD: Contender(dpsgd, is_ours=True, goal=1.15),
        f"{DP_SGD}{SECOND}": Contender(dpsgd, is_ours=True, goal=1.15),
        RGP: Contender(rgp, is_ours=True, goal=0.9),
        f"{RGP}{SECOND}": Contender(rgp, is_ours=True, goal=0.9),
        "Opacus hooks": Contender(opacus("hooks"), "opacus"),
        "Opacus ghost": Contender(opacus("ghost"), "opacus"),
    }


def language(sizes: Sizes, root: Path) -> dict[str, Contender]:
    """Return who fine-tunes MiniLM on sentences."""
    data = root / examples.SENTENCES
    folder = ["--model", str(examples.model_root() / examples.MINILM)]
    words = ["task=sst2", "model=minilm", "model.precision=float32", "model.attention=sdpa"]
    words += [f"model_root={examples.model_root()}"]  # images need no folder of models
    every = ["method.train=all", "method.freeze=[encoder.embeddings]", "optimizer=adamw"]

    def own(method: str, *more: str) -> list[str]:
        return ours(method, sizes, root, *words, *more)

    def theirs(script: str, *more: str) -> list[str]:
        return peer(script, sizes, data, 32, 1.5e-3, *private(2.0), *folder, *more)

    plain = peer("plain_texts", sizes, data, 32, 3e-4, *folder)
    dpsgd = own("dpsgd", *every, "optimizer.lr=1.5e-3")
    rgp = own("rgp", "method.warm_up_steps=1")
    return {
        UNIT: Contender(plain),
        BY_LENGTH: Contender([*plain, "--by-length"]),
        NONPRIVATE: Contender(own("nonprivate", *every, "optimizer.lr=3e-4"), is_ours=True),
        DP_SGD: Contender(dpsgd, is_ours=True, goal=1.15),
        f"{DP_SGD}{SECOND}": Contender(dpsgd, is_ours=True, goal=1.15),
        RGP: Contender(rgp, is_ours=True, goal=0.9),
        f"{RGP}{SECOND}": Contender(rgp, is_ours=True, goal=0.9),
        "Opacus hooks": Contender(theirs("opacus_texts", "--mode", "hooks"), "opacus"),
        "Opacus ghost": Contender(theirs("opacus_texts", "--mode", "ghost"), "opacus"),
    }


CASES = {
    "run-vision": Case(
        title="WRN16-4 on CIFAR10",
        write=examples.write_images,
        contenders=vision,
        most_tested=10_000,
        notes="GroupNorm without parameters; SGD with momentum 0.9, no augmentation. RGP warms up "
        "for one step. Plain PyTorch takes a batch in parts of 32 images, channels last in parts "
        "of 64, the fastest of four sizes tried; Opacus in parts of 16, dpexp in its own of 125.",
    ),
    "run-small": Case(
        title="WRN10-2, its first convolution of stride 2, on CIFAR10",
        write=examples.write_images,
        contenders=partial(vision, depth=10, width=2, stem_stride=2),
        most_tested=10_000,
        notes="The quick profile's network; otherwise as WRN16-4's runs.",
        sizes=Sizes(train=10_000, batch=1000),
    ),
    "run-language": Case(
        title="MiniLM on SST-2",
        write=examples.write_sentences,
        contenders=language,
        most_tested=872,
        notes="All-MiniLM-L6-v2 with frozen embeddings and a linear classifier, AdamW (RGP: plain "
        "SGD, the matrices alone, with a warm-up of one step), at most 128 tokens, parts of "
        "32 sentences padded to their longest. dpexp sorts the sentences of a batch by length "
        "first, and cuts parts of at most 32 times 128 tokens; one of the plain scripts "
        "sorts as well. Opacus's loader cuts before it reads any. fastDP and "
        "private-transformers are not on the package index, and so no peers here.",
    ),
}
