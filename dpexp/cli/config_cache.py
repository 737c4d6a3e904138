"""Cache composed configs between commands; Hydra takes a tenth of a second to compose one.

An entry's key is its command-line words. It holds the config and the state of whatever the config
depends on: every config file that Hydra looked for, present or not, and the environment variables
that those files read. Each version of Hydra and of this suite's code has a folder of its own.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import hydra
import omegaconf

# Hydra has no public way to list the files it looks for; pyproject.toml keeps it below 1.4.
from hydra._internal.sources_registry import SourcesRegistry
from omegaconf import DictConfig

from dpexp.cli import (
    begun,
    blocks,
    building,
    composition,
    folders,
    groups,
    holdout,
    naming,
    own_data,
    quoting,
    validate,
)
from dpexp.records import moved
from dpexp.records.caches import Kept
from dpexp.training import schedules
from dpexp.types import ConfigError

ENVIRONMENT = re.compile(r"oc\.env:\s*(\w+)")


class Configs:
    """Composes configs as `dpexp.cli.compose` does, and caches them."""

    def __init__(self, conf: Path = groups.CONF, own: Sequence[Path] = ()) -> None:
        """Take the folders of config groups, whose files must not change while this is in use.

        Args:
            conf: dpexp's own.
            own: the user's, which all configs may choose from. Nothing of theirs is kept on disk.
        """
        self._conf, self._own = conf, own
        self._groups = {path.name for path in conf.iterdir() if path.is_dir()}
        self._chosen: dict[tuple[str, ...], tuple[DictConfig, set[str]]] = {}
        self._known: dict[str, str | None] = {}
        self._loaded: dict[str, bytes] = {}

    def compose_anew(self, words: Sequence[str]) -> dict[str, Any]:
        """Return what `compose` returns, without reading or writing the cache."""
        try:
            return self._composed(words)[0]
        except ConfigError:  # from the same checks as in `composition.compose`
            raise
        except Exception:  # which is explained there
            return composition.compose_at_once([*folders.searchpath(self._own), *words])

    def compose(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the plain config of these overrides; raises as `composition.compose` does."""
        if self._own:
            return self.compose_anew(words)
        name = "\0".join(map(_expanded, words))
        with suppress(KeyError, TypeError, AttributeError):
            kept = self._cache.get(name)
            if kept["rests_on"] == self._state(kept["rests_on"]):
                return begun.settled(kept["config"])  # which depends on folders elsewhere
        try:
            config, files = self._composed(words)
        except ConfigError:
            raise
        except Exception:
            return composition.compose_at_once(words)  # which explains what is wrong
        if config.get("dataset_size") != own_data.COUNT:  # which the data decide, and may change
            self._cache.put(name, {"config": config, "rests_on": self._state(files)})
        return config

    def _composed(self, words: Sequence[str]) -> tuple[dict[str, Any], set[str]]:
        """Return the config and the files that Hydra looked for.

        What Hydra merged from the chosen options is shared among configs that choose the same.
        """
        readable = quoting.readable(words)
        choices = (
            *folders.searchpath(self._own),
            *composition.choices_of(readable, self._groups),
        )
        if choices not in self._chosen:
            with (
                hydra.initialize_config_dir(str(self._conf), version_base="1.3"),
                _recording(self._conf, self._loaded) as files,
            ):
                self._chosen[choices] = hydra.compose("config", list(choices)), files
        chosen, files = self._chosen[choices]
        config = composition.set_values(chosen, readable, self._groups)
        return composition.plain(config, words), files

    def _state(self, names: Sequence[str] | set[str]) -> dict[str, str | None]:
        """Return the hashes of config files by name; None for a missing file."""
        for name in set(names) - self._known.keys():
            try:
                content = (self._conf / f"{name}.yaml").read_bytes()
            except OSError:
                self._known[name] = None
                continue
            digest = hashlib.sha256(content)
            for variable in ENVIRONMENT.findall(content.decode()):
                value = _expanded(f"{variable}={os.environ.get(variable)}")
                digest.update(os.fsencode(f"\0{value}"))
            self._known[name] = digest.hexdigest()[:16]
        return {name: self._known[name] for name in sorted(names)}

    @cached_property
    def _cache(self) -> Kept:
        """The entries made by this version of the code that composes configs."""
        version = [f"{hydra.__version__} {omegaconf.__version__}", *sorted(self._groups)]
        sources = [
            Path(str(m.__file__)).read_bytes()
            for m in (
                building,
                composition,
                holdout,
                naming,
                own_data,
                validate,
                quoting,
                schedules,
                moved,
            )
        ]
        sources += [path.read_bytes() for path in (Path(__file__), *blocks.files())]
        return Kept("configs", b"\0".join([*map(str.encode, version), *sources]))


def _expanded(word: str) -> str:
    """Return a word, followed by its expanded value if it holds ~ or environment variables."""
    value = word.partition("=")[2].strip("'\"")
    known = os.path.expanduser(os.path.expandvars(value))
    return word if known == value else f"{word}\0{known}"


@contextmanager
def _recording(conf: Path, loaded: dict[str, bytes]) -> Iterator[set[str]]:
    """Record the config files that Hydra looks for, present or not: names without a suffix.

    Args:
        conf: the folder.
        loaded: contents by path, so that each file is read once; Hydra gets copies, as it changes
            them.
    """
    names: set[str] = set()
    source = SourcesRegistry.instance().resolve("file")
    is_config, load_config = source.is_config, source.load_config

    def recorded(self: Any, config_path: str) -> bool:
        if self.path == str(conf):
            names.add(config_path.removesuffix(".yaml"))
        return is_config(self, config_path)

    def read_once(self: Any, config_path: str) -> Any:
        if self.path != str(conf):
            return load_config(self, config_path)
        if config_path not in loaded:
            loaded[config_path] = pickle.dumps(load_config(self, config_path))
        return pickle.loads(loaded[config_path])

    source.is_config, source.load_config = recorded, read_once  # type: ignore[method-assign]
    try:
        yield names
    finally:
        source.is_config, source.load_config = is_config, load_config  # type: ignore[method-assign]
