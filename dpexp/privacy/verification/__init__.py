"""Verification: a finished run held to a second statement of what its config releases."""
