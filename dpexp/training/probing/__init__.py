"""Check model, loss, data, augmentation and clipping rule before the first step."""

from dpexp.training.probing.check import check_model
from dpexp.training.probing.options import check_loss, check_rule, check_views
from dpexp.training.probing.own_sets import check_examples

__all__ = ["check_examples", "check_loss", "check_model", "check_rule", "check_views"]
