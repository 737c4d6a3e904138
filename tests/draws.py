"""Hears every random number that torch draws, and from which state of which generator."""

import hashlib
import sys
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode

ROOT = Path(__file__).resolve().parents[1]
WORDS = slice(24, 24 + 8 * 624)  # the Mersenne twister's own in a saved state; before it, the place


def place(*, but=""):
    """Name the function of ours that draws, e.g. "dpexp/privacy/sampling.py:poisson".

    Args:
        but: a file whose functions stand for those that call them.
    """
    frame = sys._getframe()
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in ("dpexp", "run.py"):
            if str(path.relative_to(ROOT)) != but:
                return f"{path.relative_to(ROOT)}:{frame.f_code.co_name}"
        frame = frame.f_back
    return "elsewhere"


@dataclass
class Draws(TorchDispatchMode):
    """Notes every draw of the thread that enters it.

    Attributes:
        places: that drew, each with how often.
        shared: of a state that was drawn from twice, who did.
    """

    places: dict = field(default_factory=dict)
    shared: set = field(default_factory=set)
    _drawn: dict = field(default_factory=dict)
    _owners: dict = field(default_factory=dict)

    def __post_init__(self):
        super().__init__()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if torch.Tag.nondeterministic_seeded not in func.tags:
            return func(*args, **kwargs)
        given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Generator)]
        gen = given[0] if given else torch.default_generator
        before = gen.get_state()
        drawn = func(*args, **kwargs)
        if not torch.equal(before, gen.get_state()):
            self._note(gen, before, place())
        return drawn

    def _note(self, gen, state, who):
        self.places[who] = self.places.get(who, 0) + 1
        state = state.numpy()
        whole, words = (
            hashlib.sha256(some).digest() for some in (state[: WORDS.stop], state[WORDS])
        )
        # The same words at another place are the same stream, which its own generator alone may
        # go on with.
        owner, before = self._owners.setdefault(words, (gen, who))
        if whole in self._drawn or owner is not gen:
            self.shared.add(frozenset({who, self._drawn.get(whole, before)}))
        self._drawn[whole] = who
