"""Folders of images, one a class: `cat/1.png`, or `train/cat/1.png` and `test/cat/2.png`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from dpexp.types import ConfigError
from dpexp.warned import warn_caller

ENDINGS = (".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff")
"""Endings of images, in lower case."""

JUNK = ("thumbs.db", "ehthumbs.db", "desktop.ini", "icon\r", "__macosx")
"""What desktops and archives leave in folders, in lower case."""


class Split(NamedTuple):
    """A split's images.

    Attributes:
        files: each in the folder of its class.
        classes: names of the class folders, empty ones too: which classes there are is what the
            owner laid out, not what the examples are.
    """

    files: list[Path]
    classes: tuple[str, ...]


def splits(root: Path, names: Sequence[str]) -> dict[str, Split]:
    """Return the splits of a folder; "train" if it has none of these names; {} without images.

    Args:
        root: the folder.
        names: of splits, in lower case.

    Raises:
        ConfigError: an image is in no class folder, or a class folder holds something else.
    """
    below = entries(root)
    folders = [path for path in below if path.is_dir()]
    of_split = [path for path in folders if path.name.lower() in names and _holds_classes(path)]
    named = {path.name.lower(): path for path in of_split}
    if len(named) < len(of_split):
        raise ConfigError(
            f"Expected one folder for each split in {root}; got "
            f"{', '.join(path.name for path in of_split)}. Rename one."
        )
    for path in below:
        if path.name.lower().startswith("metadata."):
            warn_caller(f"{path} is not read: an image's class is its folder's name.")
    if named:
        unread = [path.name for path in folders if path not in named.values()]
        if unread:
            warn_caller(f"{', '.join(unread[:6])} of {root} are no splits, and are not read.")
        return {name: _split(path) for name, path in named.items()}
    if any(_is_image(path) for folder in folders for path in entries(folder)):
        return {"train": _split(root)}
    if any(_is_image(path) for path in below):
        raise _unlabelled(root)
    return {}


def _split(folder: Path) -> Split:
    held = entries(folder)
    if any(_is_image(path) for path in held):
        raise _unlabelled(folder)
    classes = [path for path in held if path.is_dir()]
    files = []
    for of_class in classes:
        if not of_class.name.isprintable():
            raise ConfigError(
                f"Expected class folders with printable names; got {str(of_class)!a}. Rename it."
            )
        for path in entries(of_class):
            if path.is_dir() or not _is_image(path):
                what = "a folder" if path.is_dir() else "no image that is read"
                raise ConfigError(
                    f"Expected images ({', '.join(ENDINGS)}) in the class folder {of_class}; "
                    f"{path.name} is {what}. Remove it, convert it, or set data to the folder that "
                    "holds the class folders."
                )
            files.append(path)
    return Split(files, tuple(path.name for path in classes))


def _holds_classes(folder: Path) -> bool:
    """Return whether a folder is a split, not a class that happens to be called like one."""
    held = entries(folder)
    return any(path.is_dir() for path in held) and not any(map(_is_image, held))


def entries(folder: Path) -> list[Path]:
    """List a folder, sorted, without hidden files and what desktops leave.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        held = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(
            f"Expected a readable folder at {folder}; {error.strerror}. Set data."
        ) from None
    return [p for p in held if not p.name.startswith(".") and p.name.lower() not in JUNK]


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS and not path.is_dir()


def _unlabelled(folder: Path) -> ConfigError:
    return ConfigError(
        f"Expected a folder for each class in {folder}; it holds images that are in none. Move "
        "them into folders named after their classes, or set data."
    )
