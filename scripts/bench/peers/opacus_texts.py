"""Fine-tune MiniLM on SST-2 by DP-SGD with Opacus, by its hooks or by ghost clipping."""

import sys
import time

BEGAN = time.perf_counter()
if __name__ == "__main__":  # texts need no torchvision, which transformers would import
    sys.modules["torchvision"] = None

import warnings  # noqa: E402

import torch  # noqa: E402
from opacus import PrivacyEngine  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402
from transformers import AutoTokenizer, logging  # noqa: E402

from scripts.bench.peers.clock import Clock, report, words  # noqa: E402
from scripts.bench.peers.minilm import Classifier  # noqa: E402
from scripts.bench.peers.opacus_training import epoch, privacy_of  # noqa: E402
from scripts.bench.peers.sentences import Sentences, collate, evaluate  # noqa: E402


def main() -> None:
    """Train, evaluate and report."""
    given, clock = words(__doc__), Clock(BEGAN)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.manual_seed(given.seed)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    train, test = (Sentences(given.data, split, tokenizer) for split in ("train", "validation"))
    model = Classifier(given.model).train()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    engine = PrivacyEngine()
    private = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.AdamW(trained, lr=given.lr),
        criterion=nn.CrossEntropyLoss(),
        data_loader=DataLoader(train, batch_size=given.batch, collate_fn=collate),
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
