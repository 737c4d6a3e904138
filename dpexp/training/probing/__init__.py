"""Check a model, and an augmentation, on synthetic examples before the first step."""

from dpexp.training.probing.check import check_model
from dpexp.training.probing.views import check_views

__all__ = ["check_model", "check_views"]
