"""Check a model on synthetic examples before the first step."""

from dpexp.training.probing.check import check_model

__all__ = ["check_model"]
