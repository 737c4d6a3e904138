"""Verification: check a finished run against an independent statement of its releases."""
