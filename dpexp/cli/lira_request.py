"""What is asked of a likelihood ratio attack (`dpexp.cli.lira`): words, runs and files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpexp import records
from dpexp.attacks.lira import LEAST
from dpexp.cli import composition
from dpexp.cli.arguments import file_name, listed, split, text, whole
from dpexp.types import ConfigError

FIRST_RUN = "first run "
"""What stands before a method's first run on the page, which tells it from other settings'."""


@dataclass(frozen=True)
class Request:
    """The parsed command line.

    Attributes:
        methods, shadows, eps, profile, name, workers: see the module.
        overrides: the other words.
    """

    methods: tuple[str, ...] = ("nonprivate", "rgp")
    shadows: int = 16
    eps: str = ""
    profile: str = "embedded"
    name: str = ""
    workers: int | None = None
    overrides: tuple[str, ...] = ()


READERS = {
    "methods": listed,
    "shadows": whole(LEAST),
    "workers": whole(1),
    "name": file_name,
    **dict.fromkeys(("eps", "profile"), text),
}


def parse(words: Sequence[str]) -> Request:
    """Parse the command line.

    Raises:
        ConfigError: for an invalid value, too few shadows, or an override that shadows forbid.
    """
    own, overrides = split(words, READERS)
    for word in overrides:
        key = word.lstrip("+~").partition("=")[0]
        if key in ("attack", "audit", "method", "seed"):
            raise ConfigError(
                f"Expected no {key} among the overrides: runs are shadows of `methods`, with seeds "
                f"from 0; got '{word}'. Leave it out."
            )
    return Request(**own, overrides=tuple(overrides))


def compose(request: Request, method: str) -> dict[str, Any]:
    """Return the config of a method's run; `eps` applies only to methods with noise."""
    words = [f"profile={request.profile}", f"method={method}", "attack=shadow", *request.overrides]
    config = composition.compose(words)
    if request.eps and config["privacy"]["noise"]:
        config = composition.compose([*words, f"eps={request.eps}"])
    return config


def of_seeds(config: dict[str, Any], num: int) -> list[dict[str, Any]]:
    """Return the configs of a method's models, which differ only in their seeds."""
    return [{**config, "seed": seed} for seed in range(num)]


def heading(request: Request, config: dict[str, Any]) -> str:
    """Return the title of the page and of the figure."""
    return (
        f"Who was trained on? {config['task']['name']}, {request.shadows} models a method, "
        f"profile {request.profile}"
    )


def files(request: Request, config: dict[str, Any]) -> list[Path]:
    """Return the paths of the page, the curves and the two forms of the figure."""
    folder = Path(config["results"]) / request.profile / "lira"
    name = request.name or config["task"]["name"].replace("/", "-")  # one file's name
    return [folder / f"{name}.{suffix}" for suffix in ("md", "csv", "png", "svg")]


def first_run(config: dict[str, Any]) -> str:
    """Return the id of the first of a method's runs."""
    return records.run_id(of_seeds(config, 1)[0])


def is_of(page: Path, request: Request, configs: Sequence[dict[str, Any]]) -> bool:
    """Return whether a page that is there is of as many models, and of no method but these."""
    try:
        title, *lines = page.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    found = {id for line in lines for id in re.findall(rf"\b{FIRST_RUN}(\w+)", line)}
    is_alike = title == f"# {heading(request, configs[0])}"
    return is_alike and bool(found) and found <= {*map(first_run, configs)}
