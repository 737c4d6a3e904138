"""Config folders of the user's own: `--config-dir FOLDER`, or hydra.searchpath=[file:///FOLDER].

Such a folder is laid out as conf is: method/mine.yaml, model/mine.yaml, artifact/mine/table1.yaml.
Modules that lie beside it are found by Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from dpexp.cli.groups import CONF
from dpexp.cli.quoting import quoted

OPTION, SHORT = "--config-dir", "-cd"
SEARCHPATH = "hydra.searchpath"
FILE = "file://"


def is_searchpath(word: str) -> bool:
    """Return whether a word names config folders, e.g. hydra.searchpath=[file:///my/conf]."""
    return word.lstrip("+").partition("=")[0] == SEARCHPATH


def taken(words: Sequence[str]) -> list[str]:
    """Return a command line whose config folders all stand in one word, hydra.searchpath.

    The folders are checked, and Python finds the modules beside them from now on, here and in
    processes started from here.

    Args:
        words: of a command line; `--config-dir FOLDER` may stand in it more than once.

    Raises:
        ConfigError: for a folder that is not there, holds no config files, or holds one that cannot
            be read or is hidden by dpexp's own of that name.
    """
    rest, named = _split(words)
    folders = [_folder(name) for name in named]
    places = [place for word in filter(is_searchpath, rest) for place in _places(word)]
    for place in places:
        if place.startswith(FILE):
            _check(_of_searchpath(place), SEARCHPATH)
    for folder in folders:
        _check(folder, OPTION)
    _find_modules([*(_of_searchpath(p) for p in places if p.startswith(FILE)), *folders])
    if not folders:
        return rest
    places += [f"{FILE}{folder}" for folder in folders]
    return [*(w for w in rest if not is_searchpath(w)), *_as_word(dict.fromkeys(places))]


def searchpath(folders: Sequence[Path]) -> list[str]:
    """Return the word that names these folders to Hydra; no word for none."""
    return _as_word([f"{FILE}{folder}" for folder in folders]) if folders else []


def _as_word(places: Iterable[str]) -> list[str]:
    return [f"{SEARCHPATH}=[{','.join(map(quoted, places))}]"]


def folders_of(words: Sequence[str]) -> list[Path]:
    """Return the config folders that a command line names.

    Raises:
        ConfigError: for a folder that does not exist or is no file:// URL.
    """
    return [_of_searchpath(p) for word in filter(is_searchpath, words) for p in _places(word)]


def _split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the folders after --config-dir from all other words."""
    from dpexp.types import ConfigError

    rest, named, left = [], [], iter(words)
    for word in left:
        key, equals, value = word.partition("=")
        if key not in (OPTION, SHORT):
            rest.append(word)
            continue
        name = value if equals else next(left, "")
        if not name or name.startswith("-"):
            raise ConfigError(
                f"Expected a folder after {key}, as in {OPTION} mine/conf; got "
                f"{name or 'nothing'}. Name one."
            )
        named.append(name)
    return rest, named


def _places(word: str) -> list[str]:
    (override,) = OverridesParser.create().parse_overrides([word])
    value = override.value()
    return [str(place) for place in (value if isinstance(value, list) else [value])]


def _of_searchpath(place: str) -> Path:
    from dpexp.types import ConfigError

    folder = Path(place.removeprefix(FILE)).absolute()
    if not place.startswith(FILE) or not os.path.isdir(folder):
        raise ConfigError(
            f"Expected {SEARCHPATH} to name folders, as file:///my/conf; got {place}."
            f"{_nearest(folder)} Set {SEARCHPATH}, or {OPTION} FOLDER."
        )
    return folder


def _folder(name: str) -> Path:
    from dpexp import records
    from dpexp.types import ConfigError

    folder = Path(os.path.abspath(records.at_home(OPTION, name)))
    if not os.path.isdir(folder):
        what = "that is a file" if os.path.exists(folder) else "there is none"
        raise ConfigError(
            f"Expected {OPTION} to name a folder; {what} at {name}.{_nearest(folder)} Set {OPTION}."
        )
    return folder


def _nearest(folder: Path) -> str:
    """Return a sentence that names the folder that is spelt most alike, or ""."""
    found = Path(folder.anchor)
    for part in folder.parts[1:]:
        if not os.path.isdir(found / part):
            try:
                there = [each.name for each in found.iterdir() if each.is_dir()]
            except OSError:  # not ours to read
                there = []
            near = get_close_matches(part, there, 1, 0.5)
            if not near:
                return ""
            part = near[0]
        found /= part
    return f" Did you mean {found}?"


def _check(folder: Path, setting: str) -> None:
    """Check that a folder holds config files, which can be read and which Hydra will not ignore.

    Raises:
        ConfigError: naming the first file that is wrong.
    """
    from dpexp.types import ConfigError

    groups = sorted(path.name for path in CONF.iterdir() if path.is_dir())
    if not any(_files(folder / group) for group in groups):
        below = [each for each in sorted(folder.iterdir()) if each.is_dir()]
        inner = [each for each in below if any(_files(each / group) for group in groups)]
        names = {each.name: get_close_matches(each.name, groups, 1, 0.7) for each in below}
        near = [f"{name} to be {close[0]}" for name, close in names.items() if close]
        hint = f" Did you mean {inner[0]}?" if inner else ""
        hint = f" Did you mean {', '.join(near)}?" if near and not inner else hint
        raise ConfigError(
            f"Expected {setting} to name a folder of config groups, with a file such as "
            f"method/mine.yaml; {folder} has none.{hint} Set {setting}."
        )
    for group in groups:
        for path in _files(folder / group):
            _check_file(path, path.relative_to(folder))


def _files(folder: Path) -> list[Path]:
    return sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")])


def _check_file(path: Path, name: Path) -> None:
    from dpexp.reporting.schema.kinds import OneEach
    from dpexp.types import ConfigError, one_line

    if path.suffix == ".yml":
        raise ConfigError(
            f"Expected config files to end in .yaml; {path} is read by nothing. Rename it."
        )
    try:
        text = path.read_bytes()
        tree = yaml.load(text.decode("utf-8"), OneEach)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"Expected {path} to be YAML: {one_line(error)}. Mend it.") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error} Leave one of them out.") from error
    if not isinstance(tree, dict | None):
        raise ConfigError(
            f"Expected {path} to hold settings, as in 'rank: 8'; it holds a "
            f"{type(tree).__name__}. Mend it."
        )
    ours = CONF / name
    if ours.is_file() and ours.read_bytes() != text:
        raise ConfigError(
            f"Expected a name that dpexp does not have; {path} would stand behind dpexp's own "
            f"{name} and never be read. Rename it."
        )


def _find_modules(folders: Sequence[Path]) -> None:
    """Let Python find the modules that lie beside these folders, after all others."""
    for beside in dict.fromkeys(str(folder.parent) for folder in folders):
        if beside not in sys.path:
            sys.path.append(beside)
        known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
        if beside not in known:
            os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, known), beside])


def options_in(folders: Sequence[Path], group: str) -> Iterator[Path]:
    """Yield the files of a group's options, dpexp's own first."""
    for folder in (CONF, *folders):
        yield from sorted((folder / group).glob("*.yaml"))
