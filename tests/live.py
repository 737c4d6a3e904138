"""What tensors are alive, and the most that ever were: counted, so that a test can rely on it."""

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts the bytes of storages made within; what a library takes for itself is not seen.

    Attributes:
        now: bytes alive of what was made within.
        most: the largest `now` since the start.
    """

    def __init__(self):
        super().__init__()
        self.now = self.most = 0
        self._alive = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        known = {id(one) for one in self._storages((args, kwargs))}
        for storage in self._storages(made):
            if id(storage) not in known:
                self._see(storage)
        return made

    def _storages(self, values):
        tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]
        return [tensor.untyped_storage() for tensor in tensors]

    def _see(self, storage):
        if id(storage) in self._alive:
            return
        place, size = id(storage), storage.nbytes()

        def gone(_):
            del self._alive[place]
            self.now -= size

        self._alive[place] = weakref.ref(storage, gone)
        self.now += size
        self.most = max(self.most, self.now)
