"""Print docs/noise.md: the noise of every private published setting, ours and the papers'.

    python -m scripts.noise > docs/noise.md

Takes a minute or two while no multiplier is cached. Exit code: 0; 2 if a word is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp.cli import groups
from dpexp.cli.arguments import exit_code_of, only
from dpexp.cli.config_cache import Configs
from dpexp.privacy import num_steps
from dpexp.privacy.accounting import calibrate
from dpexp.privacy.papers import BY_MOMENTS, moments_multiplier
from dpexp.reporting.collect import cells
from dpexp.reporting.schema import spec
from dpexp.reporting.schema.artifact import Artifact

HEAD = """# How much noise, by our accountant and by the papers'

This page compares the noise that our runs add with the noise that the papers' accountants ask \
for. It is printed by `python -m scripts.noise`. A noise multiplier is the standard deviation of a \
release's noise over its sensitivity. The last table compares two multipliers at every private \
published setting of rgp and gep (RGP's and GEP's papers), where q is the probability with which a \
step draws an example:

- **Ours** is the least multiplier that fits ε by PRV, privacy random variables ([how it is \
computed](privacy/index.md#how-epsilon-is-computed)).
- **The paper's** is by an accountant like its own (`dpexp/privacy/papers.py`): RDP, Rényi \
differential privacy, at whole orders up to 512, converted by ε = RDP + log(1/δ) / (order − \
1).

gep's released code takes orders from 2 to 31.9. In its Table 3 that gives a multiplier of 6.42 at \
ε = 0.5, and ε = 0.1 is out of reach. Elsewhere it differs by 1.3 % at most.

## One release

For methods with one release a step, our noise is the smaller one throughout. This part of a lead \
over the published numbers is due to the accountant, not to the method.

## GEP's pair

GEP releases an embedding and a residual (2 releases). gep's text treats them as one vector of \
sensitivity √2, and so does our accounting. gep's released code doubles the RDP of one release \
instead. That understates the cost, since both releases share a subsample. Its old conversion from \
RDP to ε overstates the cost. On MNIST, on CIFAR-10 and in Table 3 the conversion weighs more, \
and our noise is the smaller one. On SVHN, where q is a tenth of theirs, the doubling weighs more. \
There the released code takes less noise than ε needs, and ours takes more. The paper does not \
say which of the two the published runs had.

## Papers without a line

lsg (LSG's paper) uses a numerical accountant (its Section 2), as we do. PATE (private aggregation \
of teacher ensembles) and compressive (compressive SGD's paper) have accountants of other kinds.

## Every setting

| paper | where | releases | q | steps | δ | ε | ours | the paper's | ours over theirs |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""


@dataclass(frozen=True)
class Setting:
    """What a noise multiplier depends on.

    Attributes:
        paper: whose setting.
        releases: vectors released per step, each of sensitivity 1.
        q: sampling probability in (0, 1].
        steps: number of composed steps, >= 1.
        delta, epsilon: the budget.
    """

    paper: str
    releases: int
    q: float
    steps: int
    delta: float
    epsilon: float

    def ours(self) -> float:
        """Return the noise multiplier that a run of this setting is calibrated to."""
        sigma, _ = calibrate(self.q, self.steps, self.delta, self.epsilon)
        return sigma * self.releases**0.5

    def theirs(self) -> float:
        """Return the noise multiplier by the paper's accountant."""
        return moments_multiplier(
            self.q, self.steps, self.delta, self.epsilon, num_releases=self.releases
        )


def setting_of(paper: str, config: Mapping[str, Any]) -> Setting | None:
    """Return a config's setting; None if it calibrates no Gaussian noise to a budget."""
    method = config["method"]
    privacy = config["privacy"]
    if not (privacy["noise"] and privacy["clip"] and privacy["eps"]) or method["name"] == "pate":
        return None
    size, batch = config["task"]["dataset_size"], config["batch_size"]
    steps = num_steps(config["epochs"], size, batch, config["privacy"]["sampling"])
    pair = method["name"] == "gep" and method["residual"]
    budget = float(privacy["delta"]), float(privacy["eps"])
    return Setting(paper, 2 if pair else 1, batch / size, steps, *budget)


def settings(artifact: Artifact) -> Iterator[Setting]:
    """Yield the settings of an artifact's cells under the paper profile."""
    jobs = cells.expand(artifact, "paper", Configs().compose, groups.CONF, (), (0,))
    for job in jobs:
        found = job.config and setting_of(artifact.paper, job.config)
        if found and found.steps > 1:  # one step times or analyses; it does not train
            yield found


def table() -> dict[Setting, list[str]]:
    """Return the settings of all papers' artifacts, each with the artifacts that use it."""
    places: dict[Setting, list[str]] = {}
    for paper in BY_MOMENTS:
        for path in sorted(Path(groups.CONF, "artifact", paper).glob("*.yaml")):
            artifact = spec.load(groups.CONF, paper, path.stem)
            for setting in dict.fromkeys(settings(artifact)):
                places.setdefault(setting, []).append(path.stem)
    return places


def line(setting: Setting, where: list[str]) -> str:
    """Return a setting's line of the table."""
    ours, theirs = setting.ours(), setting.theirs()
    return (
        f"| {setting.paper} | {', '.join(where)} | {setting.releases} | {setting.q:.3g} | "
        f"{setting.steps:,} | {setting.delta:.0e} | {setting.epsilon:g} | {ours:.2f} | "
        f"{theirs:.2f} | {100 * ours / theirs:.0f} % |"
    )


def main(words: Sequence[str]) -> int:
    """Print the page; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    only(words, {})
    print(HEAD)
    for setting, where in table().items():
        print(line(setting, where), flush=True)
    return 0
