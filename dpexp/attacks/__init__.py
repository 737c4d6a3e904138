"""Attacks on runs: membership inference and lower bounds on epsilon."""
