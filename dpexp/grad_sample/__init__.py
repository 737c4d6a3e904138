"""The tape: hooks on the layers, and one rule per layer type."""

from dpexp.grad_sample import (  # each registers its rules
    attention,
    conv1d,
    conv2d,
    convolutions,
    embedding,
    linear,
    norm,
)
from dpexp.grad_sample.rules import rule, rule_of
from dpexp.grad_sample.settling import Try, settle
from dpexp.grad_sample.tape import Tape

__all__ = [
    "Tape",
    "Try",
    "attention",
    "conv1d",
    "conv2d",
    "convolutions",
    "embedding",
    "linear",
    "norm",
    "rule",
    "rule_of",
    "settle",
]
