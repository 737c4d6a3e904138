"""Train a wide ResNet on CIFAR10 in plain PyTorch, without privacy."""

import time

BEGAN = time.perf_counter()

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from scripts.bench.peers.clock import Clock, finish, keep, words  # noqa: E402
from scripts.bench.peers.images import Images, evaluate  # noqa: E402
from scripts.bench.peers.wrn import WideResNet  # noqa: E402


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    torch.manual_seed(given.seed)
    train, test = Images(given.data, "train"), Images(given.data, "test")
    loader = DataLoader(train, batch_size=given.batch, shuffle=True)
    model = WideResNet(given.depth, given.width, given.stem_stride)
    if given.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    clock.end("setup")
    steps = seen = 0
    for _ in range(given.epochs):
        model.train()
        for images, labels in loader:
            # Gradients of a large batch, added up over parts that stay in the processor's caches.
            for some, theirs in zip(
                images.split(given.physical), labels.split(given.physical), strict=True
            ):
                loss = F.cross_entropy(model(some), theirs, reduction="sum") / len(images)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            steps, seen = steps + 1, seen + len(images)
        keep(model, optimizer, given.out)
    finish(clock, model, test, evaluate, steps=steps, seen=seen)


if __name__ == "__main__":
    main()
