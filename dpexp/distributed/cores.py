"""How many cores this process may compute on."""

from functools import cache


@cache
def cores() -> int:
    """Return the cores of the machine, or fewer where affinity or a container's limit says so."""
    from joblib import cpu_count  # a fifth of a second

    return max(1, cpu_count())
