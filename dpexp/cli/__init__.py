"""The command line: compose a config, build its parts, run it, report user errors."""

from dpexp.cli.composition import compose
from dpexp.cli.execution import execute
from dpexp.cli.groups import CONF
from dpexp.cli.parts import build_parts, build_task

__all__ = ["CONF", "build_parts", "build_task", "compose", "execute"]
