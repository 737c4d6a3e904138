"""Commands run from the repository's root: `python -m scripts.<name>`."""

import dpexp  # noqa: F401  (before torch, which the bench imports: it says how threads wait)
