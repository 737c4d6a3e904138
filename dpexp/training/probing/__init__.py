"""Check a model, an augmentation and a clipping rule before the first step, on made-up numbers."""

from dpexp.training.probing.check import check_model
from dpexp.training.probing.options import check_rule, check_views

__all__ = ["check_model", "check_rule", "check_views"]
