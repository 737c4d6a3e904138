"""What a model does with made-up examples, looked at before the first step."""

from dpexp.training.probing.check import check_model

__all__ = ["check_model"]
