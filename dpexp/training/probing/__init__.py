"""Check model, loss, augmentation and clipping rule before the first step, on made-up numbers."""

from dpexp.training.probing.check import check_model
from dpexp.training.probing.options import check_loss, check_rule, check_views

__all__ = ["check_loss", "check_model", "check_rule", "check_views"]
