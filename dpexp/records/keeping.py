"""Whether a run keeps its model, in words, and the file that holds it."""

WEIGHTS = "model.safetensors"
"""A kept model's weights, under the name that libraries look for."""

KEEP, DISCARD, AUTO = WORDS = ("keep", "discard", "auto")
"""Values of `weights`; auto keeps the model unless the run is a table's."""
