"""Fine-tune MiniLM on SST-2 by DP-SGD with Opacus, by its hooks or by ghost clipping."""

import sys
import time

BEGAN = time.perf_counter()
if __name__ == "__main__":  # texts need no torchvision, which transformers would import
    sys.modules["torchvision"] = None

import warnings  # noqa: E402

import torch  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from scripts.bench.peers import opacus_training  # noqa: E402
from scripts.bench.peers.clock import Clock, words  # noqa: E402
from scripts.bench.peers.minilm import prepared  # noqa: E402
from scripts.bench.peers.sentences import collate, evaluate  # noqa: E402


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    warnings.simplefilter("ignore")
    model, trained, train, test = prepared(given)
    optimizer = torch.optim.AdamW(trained, lr=given.lr)
    loader = DataLoader(train, batch_size=given.batch, collate_fn=collate)
    opacus_training.train(given, clock, model, optimizer, loader, test, evaluate)


if __name__ == "__main__":
    main()
