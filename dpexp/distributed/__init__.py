"""Ranks, processes, signals and memory."""
