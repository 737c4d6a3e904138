"""Fine-tune MiniLM on SST-2 in plain PyTorch, without privacy."""

import sys
import time
from functools import partial

BEGAN = time.perf_counter()
if __name__ == "__main__":  # texts need no torchvision, which transformers would import
    sys.modules["torchvision"] = None

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from scripts.bench.peers.clock import Clock, finish, keep, words  # noqa: E402
from scripts.bench.peers.minilm import prepared  # noqa: E402
from scripts.bench.peers.sentences import evaluate, in_parts  # noqa: E402


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    model, trained, train, test = prepared(given)
    # A batch comes in parts, so that each is padded to its own longest sentence.
    cut = partial(in_parts, size=given.physical, is_sorted=given.by_length)
    loader = DataLoader(train, batch_size=given.batch, shuffle=True, collate_fn=cut)
    optimizer = torch.optim.AdamW(trained, lr=given.lr)
    clock.end("setup")
    steps = seen = 0
    for _ in range(given.epochs):
        for parts in loader:
            for inputs, labels in parts:
                loss = F.cross_entropy(model(inputs), labels, reduction="sum") / given.batch
                loss.backward()
                seen += len(labels)
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
        keep(model, optimizer, given.out)
    finish(clock, model, test, evaluate, steps=steps, seen=seen)


if __name__ == "__main__":
    main()
