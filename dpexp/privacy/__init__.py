"""The privacy mechanism of a run: sampler, noise and accountant from one frozen object."""

from dpexp.privacy.calibration import build, num_steps, whole_batch
from dpexp.privacy.certificate import ANALYSED, PrivacyError, verify
from dpexp.privacy.mechanism import Mechanism
from dpexp.privacy.room import require_room, size_of_release

__all__ = [
    "ANALYSED",
    "Mechanism",
    "PrivacyError",
    "build",
    "num_steps",
    "require_room",
    "size_of_release",
    "verify",
    "whole_batch",
]
