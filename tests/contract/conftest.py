"""`pytest tests/contract --config-dir FOLDER` holds what is in a user's folder to the contract."""

import pytest

from dpexp.cli import folders
from dpexp.types import ConfigError
from tests.contract import cases


def pytest_addoption(parser):
    parser.addoption(
        "--config-dir",
        action="append",
        default=[],
        metavar="FOLDER",
        help="hold the methods and models of FOLDER to the contract, in the place of conf's; a "
        "folder of your own like conf, see docs/extend.md",
    )


def pytest_configure(config):
    """Find the folders' methods and models before a test names them."""
    named = config.getoption("config_dir", [])
    if not named:
        return
    try:
        words = folders.taken([f"{folders.OPTION}={folder}" for folder in named])
        cases.hold(folders.folders_of(words))
    except ConfigError as error:
        raise pytest.UsageError(str(error)) from error
    if not (cases.ALL_METHODS or cases.MODELS):
        raise pytest.UsageError(
            f"Expected a folder with method/mine.yaml or model/mine.yaml; {', '.join(named)} has "
            "neither. Set --config-dir."
        )


def pytest_ignore_collect(collection_path, config):
    """Leave out tasks: their contract reads files that are laid out as ours are."""
    if cases.FOLDERS and collection_path.name == "test_tasks.py":
        return True
    return None
