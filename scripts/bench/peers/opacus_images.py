"""Train WRN-16-4 on CIFAR10 by DP-SGD with Opacus, by its hooks or by ghost clipping."""

import time

BEGAN = time.perf_counter()

import warnings  # noqa: E402

import torch  # noqa: E402
from opacus import PrivacyEngine  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

from scripts.bench.peers import opacus_rule  # noqa: E402, F401
from scripts.bench.peers.clock import Clock, report, words  # noqa: E402
from scripts.bench.peers.images import Images, evaluate  # noqa: E402
from scripts.bench.peers.opacus_training import epoch, privacy_of  # noqa: E402
from scripts.bench.peers.wrn import WideResNet  # noqa: E402


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    warnings.simplefilter("ignore")
    torch.manual_seed(given.seed)
    train, test = Images(given.data, "train"), Images(given.data, "test")
    model = WideResNet(given.depth, given.width).train()
    engine = PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=given.lr, momentum=0.9),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(train, batch_size=given.batch),
        epochs=given.epochs,
        target_epsilon=given.eps,
        target_delta=given.delta,
        max_grad_norm=given.clip_norm,
        grad_sample_mode=given.mode,
    )
    clock.end("setup")
    steps = seen = 0
    for _ in range(given.epochs):
        more, examples = epoch(engine, private, given.physical)
        steps, seen = steps + more, seen + examples
        torch.save(
            {"model": model.state_dict(), "optimizer": private[1].state_dict()},
            given.out / "checkpoint.pt",
        )
    clock.end("train")
    accuracy = evaluate(model, test)
    clock.end("evaluate")
    told = privacy_of(engine, private, given.delta)
    report(clock, model, steps=steps, seen=seen, accuracy=accuracy, tested=len(test), **told)


if __name__ == "__main__":
    main()
