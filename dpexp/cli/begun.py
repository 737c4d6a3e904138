"""Find the runs whose kept weights another run begins with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.cli import fingerprints
from dpexp.types import ConfigError

Chain = Mapping[str, records.Record | None]
"""Runs by their ids, the latest first; None for one whose record is not at hand."""

CERTIFICATE, REST = "privacy.json", ("result.json", "config.yaml")
"""Files of a run's folder, which also holds its kept weights as a hub folder does. One of the rest
alone may be another program's."""

LIBRARIES = ("", "timm", "torchvision")
"""Folders below model_root that weights are looked for in."""


def settled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with the runs that it begins with (`trained_in`), if it begins with any.

    Raises:
        ConfigError: if a run's record cannot be read, or one of them drew this run's noise.
    """
    chain: dict[str, records.Record | None] = {}
    for folder in _folders(config):
        if not (folder / CERTIFICATE).exists() and not all((folder / x).exists() for x in REST):
            continue
        found = records.read(folder)
        if found is None:
            raise ConfigError(
                f"Expected weights without a run's record, or with a whole one; what is beside "
                f"those in {folder} cannot be read ({records.damage(folder) or 'not finished'}). "
                "Restore it, or name other weights."
            )
        chain |= lineage(found, config["results"])
    before = {key: value for key, value in config.items() if key != "trained_in"}
    if not chain:
        return before
    require_other_noise(config, chain)
    return {**before, "trained_in": [*chain]}


def require_named(config: Mapping[str, Any], files: Iterable[Path]) -> None:
    """Check that a config names the runs whose weights it is about to read.

    Args:
        config: of the run to come, `settled`.
        files: of the weights; a library may have found them by another name than the config's.

    Raises:
        ConfigError: if a run's record lies beside them, and the config does not name that run.
    """
    for folder in {path.parent for path in files}:
        found = records.read(folder) if (folder / CERTIFICATE).exists() else None
        if found is not None and _id(found) not in begun_with(config):
            raise ConfigError(
                f"Expected weights by the name of their folder, as run {_id(found)} trained them; "
                f"got another name for those in {folder}. Name the folder below model_root."
            )


def from_weights(digest: str, results: str | Path) -> Chain:
    """Return the run below a results folder that ended with weights, and those before it.

    Args:
        digest: of the weights (`dpexp.records.weights.digest`).
        results: the folder.
    """
    for path in sorted(Path(results).glob("*/runs/*/result.json")):
        with suppress(OSError):
            if digest in path.read_text(errors="replace"):
                found = records.read(path.parent)
                if found is None or found.result.get("weights_sha256") != digest:
                    continue
                if found.config["model"].get("initial_weights") != digest:  # else it moved none
                    return lineage(found, results)
    return {}


def lineage(record: records.Record, results: str | Path) -> Chain:
    """Return a run and those whose weights it began with, however far back.

    Args:
        record: of the run.
        results: a folder of results, where the others are looked for as well as beside the run.
    """
    chain: dict[str, records.Record | None] = {}
    left = [(_id(record), record)]
    while left:
        name, here = left.pop(0)
        chain[name] = here
        for earlier in begun_with(here.config):
            places = (
                here.directory.parent / earlier,
                *Path(results).glob(f"*/runs/{escape(earlier)}"),
            )
            found = next(filter(None, map(records.read, places)), None)
            if found is None:
                chain.setdefault(earlier, None)
            elif chain.get(earlier) is None:
                left.append((earlier, found))
    return chain


def begun_with(config: Mapping[str, Any]) -> list[str]:
    """Return the ids of the runs that a config says it began with."""
    said = config["model"].get("trained_in") or config.get("trained_in") or []
    return [said] if isinstance(said, str) else [*said]


def require_other_noise(config: Mapping[str, Any], chain: Chain) -> None:
    """Refuse noise that a run before drew, too: the difference of two steps would be without.

    Args:
        config: of the run to come.
        chain: the runs before it, by their ids.

    Raises:
        ConfigError: for the same seed, unless either has none.
    """
    for name, before in chain.items():
        if before is None:
            continue
        both = (config["privacy"]["noise"], before.config["privacy"]["noise"])
        if all(each is True for each in both) and config["seed"] == before.config["seed"]:
            raise ConfigError(
                f"Expected another seed than that of run {name}, which trained the model before "
                f"and drew the same noise from seed={config['seed']}. Set seed."
            )


def _folders(config: Mapping[str, Any]) -> Iterator[Path]:
    """Return the folders that a config's weights may be in, present or not."""
    model, features = config["model"], config.get("features") or {}
    named: Sequence[tuple[Mapping[str, Any], str | None]] = (
        (model, fingerprints.READERS.get(str(model.get("_target_")))),
        (features, "encoder" if "encoder" in features else None),
    )
    for settings, key in named:
        if key is not None and settings.get("pretrained", True) and settings.get(key):
            root = Path(str(settings.get("model_root", "."))).expanduser()
            for library in LIBRARIES:
                yield root / library / str(settings[key])


def _id(record: records.Record) -> str:
    return str(record.result.get("run", record.directory.name))
