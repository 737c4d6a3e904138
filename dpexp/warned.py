"""Warn whoever called dpexp, at the line that did."""

from __future__ import annotations

import os
import sys
import warnings


def warn_caller(message: str) -> None:
    """Warn, and name the line of the user's that called dpexp, whatever was called between."""
    own, frame, level, called = os.path.dirname(__file__) + os.sep, sys._getframe(), 1, 1
    while frame.f_back is not None:
        frame, level = frame.f_back, level + 1
        if frame.f_code.co_filename.startswith(own):
            called = level
    warnings.warn(message, stacklevel=called + 1)
