"""Fine-tune MiniLM on SST-2 by DP-SGD with fastDP or private-transformers, if it is installed.

Both attach an engine to an optimizer and clip by book-keeping or ghost norms. Neither has a Poisson
sampler: batches are shuffled, as in their examples, while their accountants count on Poisson's.
"""

import sys
import time

BEGAN = time.perf_counter()
if __name__ == "__main__":  # texts need no torchvision, which transformers would import
    sys.modules["torchvision"] = None

import importlib  # noqa: E402
import warnings  # noqa: E402

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import AutoTokenizer, logging  # noqa: E402

from scripts.bench.peers.clock import Clock, report, words  # noqa: E402
from scripts.bench.peers.minilm import Classifier  # noqa: E402
from scripts.bench.peers.sentences import Sentences, collate, evaluate  # noqa: E402

SETTINGS = {
    "fastDP": {"clipping_mode": "MixOpt", "clipping_fn": "Abadi", "loss_reduction": "mean"},
    "private_transformers": {"clipping_mode": "ghost"},
}


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    train, test = (Sentences(given.data, split, tokenizer) for split in ("train", "validation"))
    loader = DataLoader(
        train, batch_size=min(given.physical, given.batch), shuffle=True, collate_fn=collate
    )
    parts = -(-given.batch // given.physical)
    model = Classifier(given.model).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=given.lr)
    engine = importlib.import_module(given.library).PrivacyEngine(
        model,
        batch_size=given.batch,
        sample_size=len(train),
        epochs=given.epochs,
        max_grad_norm=given.clip_norm,
        target_epsilon=given.eps,
        target_delta=given.delta,
        **SETTINGS[given.library],
    )
    engine.attach(optimizer)
    clock.end("setup")
    steps = seen = 0
    for _ in range(given.epochs):
        for part, (inputs, labels) in enumerate(loader, 1):
            losses = F.cross_entropy(model(inputs), labels, reduction="none")
            is_last = part % parts == 0 or part == len(loader)
            if given.library == "fastDP":
                losses.mean().backward()
                if is_last:
                    optimizer.step()
                    optimizer.zero_grad()
            elif is_last:
                optimizer.step(loss=losses)
                optimizer.zero_grad()
            else:
                optimizer.virtual_step(loss=losses)
            steps, seen = steps + is_last, seen + len(labels)
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict()},
            given.out / "checkpoint.pt",
        )
    clock.end("train")
    told = engine.get_privacy_spent()
    epsilon = next(float(value) for key, value in told.items() if key.startswith("eps"))
    engine.detach()
    accuracy = evaluate(model, test)
    clock.end("evaluate")
    report(
        clock,
        model,
        steps=steps,
        seen=seen,
        accuracy=accuracy,
        tested=len(test),
        epsilon=epsilon,
        delta=given.delta,
        noise_multiplier=engine.noise_multiplier,
        sampling="shuffle",
    )


if __name__ == "__main__":
    main()
