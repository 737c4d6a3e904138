"""Each method of this folder is checked; run it with `pytest examples/extension`."""

from pathlib import Path

import pytest

from dpexp.cli import check_method

CONF = Path(__file__).parent / "conf"
SMALL = ["model=cnn", "model.channels=[4,8]", "model.kernel=3", "device=cpu"]


@pytest.mark.parametrize("name", sorted(path.stem for path in CONF.glob("method/*.yaml")))
def test_a_method_keeps_to_what_it_declares(name: str) -> None:
    """Sensitivity, post-processing, the statement, and the distinguishing game."""
    assert check_method.main(["--config-dir", str(CONF), f"method={name}", *SMALL]) == 0
