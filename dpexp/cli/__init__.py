"""The command line: composes a config, makes its parts, runs it, and tells of mistakes."""

from dpexp.cli.composition import compose
from dpexp.cli.execution import estimate, execute
from dpexp.cli.groups import CONF
from dpexp.cli.parts import build_parts, build_task

__all__ = ["CONF", "build_parts", "build_task", "compose", "estimate", "execute"]
