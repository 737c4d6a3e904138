"""Ranks, their processes and signals, and memory."""
