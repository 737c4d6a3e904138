"""Analyses of a run's private gradients during training; the certificate lists them."""
