"""Methods whose bases are computed together take the step that they take with bases one by one."""

import pytest
import torch

from dpexp import linalg
from tests.contract.cases import case
from tests.marks import few
from tests.steps import Setting, composed, distance

WITH_BASES = ["rgp", "rgp_random", "rgp_public", "lsg", "powersgd", "dp_powersgd", "gep"]


@pytest.mark.parametrize("method", few(WITH_BASES, ["rgp", "dp_powersgd", "gep"]))
def test_a_step_is_the_same_with_bases_by_cholesky_qr_and_together(method, monkeypatch):
    config = composed(method, *case(method).few, *case(method).narrow)
    alone = Setting(config, torch.float64).step(noise=False)
    calls, stacked = [], linalg.stacked_bases
    monkeypatch.setitem(linalg.HUGE, "cpu", 0)
    monkeypatch.setitem(linalg.AT_ONCE, "cpu", 2**26)
    monkeypatch.setattr(
        linalg, "stacked_bases", lambda each: calls.append(len(each)) or stacked(each)
    )
    together = Setting(config, torch.float64).step(noise=False)
    assert calls and alone.clipped == together.clipped
    assert distance(alone.gradients, together.gradients) < 1e-9
