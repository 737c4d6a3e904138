"""Several artifacts under one profile: composed together, each run's record read once."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from dpexp.cli import errors, groups
from dpexp.cli.arguments import changing
from dpexp.cli.config_cache import Configs
from dpexp.reporting import collect
from dpexp.reporting.collect import build, cells, costs
from dpexp.reporting.collect.named import require_named
from dpexp.reporting.render import page, table
from dpexp.reporting.schema import spec, tuned
from dpexp.reporting.schema.artifact import SUITES_OWN
from dpexp.types import ConfigError

PAPERS = ("rgp", "lsg", "gep", "compressive")
OWN = SUITES_OWN
"""Built if asked for, shown if written."""


def choose(
    papers: Sequence[str], only: Sequence[str], conf: Path, own: Sequence[Path] = ()
) -> list[spec.Artifact]:
    """Load the artifacts asked for, in the order of the papers and of their names.

    Args:
        papers: folders of conf/artifact.
        only: patterns of PAPER/NAME; none means all. One that begins with dpexp/ names ours, also
            where they are not among the papers.
        conf: the folder of config groups.
        own: further folders like it, the user's.

    Raises:
        ConfigError: no such paper, or nothing that a pattern picks.
    """
    if OWN not in papers and any(pattern.startswith(f"{OWN}/") for pattern in only):
        papers = (*papers, OWN)
    names = {
        f"{paper}/{path.stem}": (paper, path.stem)
        for paper in papers
        for path in sorted(
            (p for f in (conf, *own) for p in (f / "artifact" / paper).glob("*.yaml")), key=natural
        )
    }
    for paper in papers:
        if not any(folder == paper for folder, _ in names.values()) and paper not in PAPERS:
            raise spec.unknown("paper", paper, {*PAPERS, OWN, *spec.papers(own)})
    for pattern in only:
        if not fnmatch.filter(names, pattern):
            raise spec.unknown("artifact", pattern, names)
    picked = [
        place for name, place in names.items()
        if not only or any(fnmatch.fnmatchcase(name, p) for p in only)
    ]  # fmt: skip
    return [spec.load(conf, *place, own) for place in picked]


def natural(path: Path) -> tuple[str, int]:
    """Return what orders tables before figures, and table 10 after table 9."""
    name = path.stem.rstrip("0123456789")
    return "" if name == "table" else name, int(path.stem[len(name) :] or 0)


def lacks(artifact: spec.Artifact, profile: str) -> str:
    """Return a sentence where an artifact leaves one of the suite's profiles out, else "".

    A profile that there is nowhere is a mistake, which `cells.profile_of` refuses.
    """
    if profile in artifact.profiles or profile not in groups.options_of("profile"):
        return ""
    return (
        f"{artifact.paper} {artifact.name} has no profile {profile}; it has "
        f"{', '.join(sorted(artifact.profiles))}."
    )


class Suite:
    """Artifacts under one profile: their runs, and what there is of each."""

    def __init__(
        self,
        artifacts: Sequence[spec.Artifact],
        profile: str,
        overrides: Sequence[str] = (),
        seeds: Sequence[int] | None = None,
        own: Sequence[Path] = (),
    ) -> None:
        """Compose every cell.

        Args:
            artifacts: all have the profile.
            profile: under which they are built.
            overrides: the user's, of every cell.
            seeds: in place of the profile's.
            own: the user's folders of config groups.

        Raises:
            ConfigError: for a cell that can't be composed; it names the artifact.
        """
        self.profile, self.overrides, self.seeds = profile, tuple(overrides), seeds
        self.artifacts = list(artifacts)
        self.results, self._own = Path("results"), own
        self._found: dict[str, collect.Outcome] = {}
        configs = Configs(own=own)
        self._jobs = {id(artifact): self._expand(artifact, configs) for artifact in artifacts}

    def _expand(self, artifact: spec.Artifact, configs: Configs) -> list[cells.Job]:
        tags = (f"wandb.paper={artifact.paper}", f"wandb.group={artifact.name}")
        user = (*tags, *self.overrides)
        try:
            jobs = cells.expand(artifact, self.profile, configs.compose, groups.CONF, user,
                                self.seeds, self._own)  # fmt: skip
            require_named(artifact, jobs)
        except (HydraException, OmegaConfBaseException) as error:
            reason = errors.explain(error)
            raise ConfigError(f"{artifact.paper}/{artifact.name}: {reason}") from error
        except ConfigError as error:
            raise ConfigError(f"{artifact.paper}/{artifact.name}: {error}") from error
        for wrong in (job.contradicts for job in jobs if job.contradicts):
            raise ConfigError(f"{artifact.paper}/{artifact.name}: {wrong}")
        found = next((job.config["results"] for job in jobs if job.config), None)
        self.results = Path(found) if found else self.results
        return jobs

    def configs(self, artifact: spec.Artifact) -> list[dict[str, Any]]:
        """Return the configs of an artifact's runs."""
        return [job.config for job in self._jobs[id(artifact)] if job.config is not None]

    def outcomes(self, artifact: spec.Artifact) -> list[collect.Outcome]:
        """Look up what there is of an artifact's runs, each record read once."""
        items = []
        for job in self._jobs[id(artifact)]:
            kept = self._found.get(job.run_id)
            item = replace(kept, job=job) if kept else collect.outcome(job, self.results)
            if item.status == "done":
                self._found[job.run_id] = item
            items.append(item)
        return items

    def missing(self) -> tuple[list[cells.Job], list[cells.Job]]:
        """List the runs to do: those that may go side by side, and those that measure time."""
        alone, others = (
            build.missing(
                item
                for artifact in self.artifacts
                if artifact.alone is is_alone
                for item in self.outcomes(artifact)
            )
            for is_alone in (True, False)
        )
        ids = {job.run_id for job in alone}
        return [job for job in others if job.run_id not in ids], alone

    def wanted(self) -> dict[str, list[dict[str, Any]]]:
        """List the configs of the runs to do by artifact; one that several share, with each."""
        return {
            f"{artifact.paper} {artifact.name}": [
                job.config for job in build.missing(self.outcomes(artifact)) if job.config
            ]
            for artifact in self.artifacts
        }

    def entry(self, artifact: spec.Artifact) -> page.Entry:
        """Make an artifact ready to be written and shown."""
        configs = self.configs(artifact)
        outcomes = self.outcomes(artifact)
        measured = costs.filled(artifact, self.results)
        shown = table.Table(
            measured,
            self.profile,
            collect.collect(measured, outcomes),
            table.settings([o.job.config for o in outcomes if o.job.config and o.result]),
            changing(self.overrides),
            tuned.notes(artifact, self.profile, cells.choices_of(self._jobs[id(artifact)])),
        )
        methods, tasks = (
            tuple(sorted({config[group]["name"] for config in configs}))
            for group in ("method", "task")
        )
        return page.Entry(shown, methods, tasks)
