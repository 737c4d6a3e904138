"""The tape: hooks on the layers, and one rule per layer type."""

from dpexp.grad_sample.tape import Tape

__all__ = ["Tape"]
