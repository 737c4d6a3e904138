"""The privacy mechanism of a run: sampler, noise and accountant from one frozen object."""

from dpexp.mechanism.calibration import build, num_steps, whole_batch
from dpexp.mechanism.certificate import ANALYSED, PrivacyError, verify
from dpexp.mechanism.mechanism import Mechanism
from dpexp.mechanism.room import require_room, size_of_release
from dpexp.mechanism.votes import NoisyVotes, build_votes

__all__ = [
    "ANALYSED",
    "Mechanism",
    "NoisyVotes",
    "PrivacyError",
    "build",
    "build_votes",
    "num_steps",
    "require_room",
    "size_of_release",
    "verify",
    "whole_batch",
]
