"""Train a wide ResNet on CIFAR10 by DP-SGD with Opacus, by its hooks or by ghost clipping."""

import time

BEGAN = time.perf_counter()

import warnings  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from scripts.bench.peers import opacus_training  # noqa: E402
from scripts.bench.peers.clock import Clock, words  # noqa: E402
from scripts.bench.peers.images import Images, evaluate  # noqa: E402
from scripts.bench.peers.wrn import WideResNet  # noqa: E402


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    warnings.simplefilter("ignore")
    torch.manual_seed(given.seed)
    train, test = Images(given.data, "train"), Images(given.data, "test")
    model = WideResNet(given.depth, given.width, given.stem_stride).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9)
    loader = DataLoader(train, batch_size=given.batch)
    opacus_training.train(given, clock, model, optimizer, loader, test, evaluate)


if __name__ == "__main__":
    main()
