"""Which architectures train privately, and how exactly: docs/models.md.

python -m scripts.models

Each is built small, with random weights, from its library's configuration. Every example's gradient
of every parameter is compared with torch.autograd's of that example alone, in float64; so are the
low-rank products that RGP, LSG and DP-PowerSGD take of each weight matrix.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpexp.cli.arguments import exit_code_of
from dpexp.grad_sample import Tape, Try, settle
from dpexp.grad_sample.hooking import hooked_layers
from dpexp.grad_sample.shared_inputs import trial
from dpexp.models.adapting import COLOURS, returns_logits, takes_images, takes_texts
from dpexp.models.matrices import matrix_parameters
from dpexp.types import LayerGrads, full_name

PAGE = Path("docs/models.md")

BEGIN, END = "<!-- architectures -->", "<!-- end -->"
"""What the table stands between on the page; the rest is written by hand."""

NUM_EXAMPLES, NUM_CLASSES, RANK = 4, 3, 2

TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": 40,
    "max_position_embeddings": 32,
}
DRY: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
IMAGE: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "image_size": 32,
    "patch_size": 8,
}
STAGES: dict[str, Any] = {"depths": [1, 1], "num_stages": 2, "hidden_sizes": [8, 8]}
FOUR_STAGES: dict[str, Any] = {"depths": [1] * 4, "hidden_sizes": [8] * 4}
STILL: dict[str, Any] = {"drop_path_rate": 0.0}

TEXTS: dict[str, dict[str, Any]] = {
    "Bert": TEXT | DRY,
    "Roberta": TEXT | DRY,
    "DistilBert": {
        "dim": 16,
        "n_layers": 2,
        "n_heads": 2,
        "hidden_dim": 24,
        "vocab_size": 40,
        "max_position_embeddings": 32,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "seq_classif_dropout": 0.0,
    },
    "Electra": TEXT | DRY | {"embedding_size": 12},
    "Albert": TEXT | DRY | {"embedding_size": 12, "classifier_dropout_prob": 0.0},
    "Deberta": TEXT | DRY | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "DebertaV2": TEXT
    | DRY
    | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
    | {"norm_rel_ebd": "layer_norm", "share_att_key": True},
    "ModernBert": TEXT | {"global_attn_every_n_layers": 2, "local_attention": 4},
    "MobileBert": TEXT
    | DRY
    | {"embedding_size": 16, "true_hidden_size": 16, "intra_bottleneck_size": 16}
    | {"normalization_type": "layer_norm"},
    "SqueezeBert": TEXT
    | DRY
    | {"q_groups": 1, "k_groups": 1, "v_groups": 1, "embedding_size": 16}
    | {"post_attention_groups": 1, "intermediate_groups": 1, "output_groups": 1},
    "XLNet": {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24, "vocab_size": 40}
    | {"dropout": 0.0, "summary_last_dropout": 0.0},
    "T5": {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2}
    | {"vocab_size": 40, "dropout_rate": 0.0, "decoder_start_token_id": 0, "eos_token_id": 1},
    "GPT2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "vocab_size": 40, "n_positions": 32}
    | {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
    "OPT": {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 24}
    | {"vocab_size": 40, "max_position_embeddings": 32, "word_embed_proj_dim": 16, "dropout": 0.0},
    "Llama": TEXT | {"num_key_value_heads": 1},
    "Mistral": TEXT | {"num_key_value_heads": 1},
    "Qwen2": TEXT | {"num_key_value_heads": 1},
}
"""Of transformers, by the names of their classes."""

IMAGES: dict[str, dict[str, Any]] = {
    "ViT": IMAGE,
    "DeiT": IMAGE,
    "Beit": IMAGE | STILL | {"use_relative_position_bias": True},
    "Dinov2": IMAGE | STILL,
    "Swin": {"image_size": 32, "patch_size": 4, "embed_dim": 8, "depths": [1, 1]}
    | {"num_heads": [1, 2], "window_size": 4}
    | STILL,
    "ConvNext": STAGES | STILL,
    "ConvNextV2": STAGES | STILL,
    "PoolFormer": FOUR_STAGES | STILL,
    "Pvt": FOUR_STAGES | STILL | {"image_size": 32, "num_attention_heads": [1] * 4},
}
"""Of transformers, by the names of their classes."""


class Recurrent(nn.Module):
    """A recurrent classifier of tokens."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        """Build it of two layers."""
        super().__init__()
        self.embedding, self.out = nn.Embedding(40, 8), nn.Linear(8, NUM_CLASSES)
        self.layers = kind(8, 8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of the last state, for tokens [n, 3, t]."""
        return self.out(self.layers(self.embedding(x[:, 0]))[0][:, -1])


@dataclass(frozen=True)
class Architecture:
    """A small model with random weights.

    Attributes:
        name: of its family.
        make: builds it.
        is_text: whether it reads tokens; else images.
    """

    name: str
    make: Callable[[], nn.Module]
    is_text: bool

    def inputs(self, num_examples: int) -> Tensor:
        """Draw inputs, the example on the first axis."""
        if not self.is_text:
            return torch.randn(num_examples, 3, 32, 32, dtype=torch.float64)
        ids = torch.randint(2, 40, (num_examples, 7))
        return torch.stack([ids, torch.ones_like(ids), torch.zeros_like(ids)], 1)


def _of_transformers(name: str, settings: dict[str, Any], suffix: str, reads: str) -> nn.Module:
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings, num_labels=NUM_CLASSES)
    if reads == "input_ids":
        for token in ("pad", "bos", "eos", "cls", "sep"):
            wanted = 0 if token == "pad" else 1
            setattr(config, f"{token}_token_id", wanted)
        config._attn_implementation = "eager"
    model = getattr(transformers, f"{name}For{suffix}")(config)
    if reads == "input_ids":
        takes_texts(model, config)
    else:
        takes_images(
            model,
            size=(32, 32),
            channels=COLOURS,
            reads=reads,
            resize=None,
            normalise="task",
            own=None,
            task=(None, None),
        )
    returns_logits(model)
    return model


def _of_torchvision(name: str) -> nn.Module:
    from torchvision import models

    if name == "vit":
        return models.VisionTransformer(32, 8, 2, 2, 16, 24, num_classes=NUM_CLASSES)
    dry = {"dropout": 0.0} if name == "mobilenet_v2" else {}
    norm = partial(nn.GroupNorm, 1)
    return getattr(models, name)(num_classes=NUM_CLASSES, norm_layer=norm, **dry)


def architectures() -> list[Architecture]:
    """Return all that are tried."""

    def of_library(known: Any, task: str, argument: str, is_text: bool) -> list[Architecture]:
        return [
            Architecture(name, partial(_of_transformers, name, settings, task, argument), is_text)
            for name, settings in known.items()
        ]

    of_texts = of_library(TEXTS, "SequenceClassification", "input_ids", is_text=True)
    of_images = of_library(IMAGES, "ImageClassification", "pixel_values", is_text=False)
    recurrent = [
        Architecture(kind.__name__, partial(Recurrent, kind), is_text=True)
        for kind in (nn.LSTM, nn.GRU)
    ]
    small = [
        Architecture(label, partial(_of_torchvision, name), is_text=False)
        for label, name in (
            ("ResNet-18 (torchvision, GroupNorm)", "resnet18"),
            ("MobileNetV2 (torchvision, GroupNorm)", "mobilenet_v2"),
            ("ViT (torchvision)", "vit"),
        )
    ]
    return [*of_texts, *recurrent, *of_images, *small]


@dataclass(frozen=True)
class Found:
    """How exact an architecture's gradients are.

    Attributes:
        full: largest error of an example's gradient, over its largest entry.
        low_rank: likewise of dW_i R^T and L^T dW_i, of weight matrices.
        by_torch_func: types of its modules that have no rule.
    """

    full: float
    low_rank: float
    by_torch_func: tuple[str, ...]


def examine(architecture: Architecture) -> Found:
    """Compare every example's gradients with autograd's of that example alone."""
    torch.manual_seed(0)
    model = architecture.make().double().train()
    x, y = architecture.inputs(NUM_EXAMPLES), torch.arange(NUM_EXAMPLES) % NUM_CLASSES
    names = [name for name, _ in model.named_parameters()]
    some = NUM_EXAMPLES - 1
    with trial():
        settle(model, names, [Try(lambda: F.cross_entropy(model(x[:some]), y[:some]), some)])
    matrices = set(matrix_parameters(model, "none"))
    got: dict[str, Tensor] = {}
    low: dict[str, tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    def take(layer: str, layer_grads: LayerGrads) -> None:
        for own in layer_grads.parameters:
            name = full_name(layer, own)
            got[name] = layer_grads.gradient(own).materialize()
            if name in matrices:
                p, d = model.get_parameter(name).flatten(1).shape
                left, right = (torch.randn(*s).double() for s in ((p, RANK), (RANK, d)))
                low[name] = (
                    left,
                    right,
                    layer_grads.left(right).materialize(),
                    layer_grads.right(left).materialize(),
                )

    with trial(), Tape(model, names, take) as tape:
        tape.expect(NUM_EXAMPLES)
        tape.backward(F.cross_entropy(model(x), y, reduction="sum"))
    full = low_rank = 0.0
    for i in range(NUM_EXAMPLES):
        loss = F.cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        weights = [model.get_parameter(name) for name in names]
        alone = torch.autograd.grad(loss, weights, materialize_grads=True)
        for name, each in zip(names, alone, strict=True):
            full = max(full, _error(got[name][i].view_as(each), each))
            if name in low:
                left, right, d_left, d_right = low[name]
                matrix = each.flatten(1)
                low_rank = max(low_rank, _error(d_left[i], matrix @ right.T))
                low_rank = max(low_rank, _error(d_right[i], left.T @ matrix))
    hooked = hooked_layers(model, names).values()
    return Found(
        full,
        low_rank,
        tuple(sorted({type(each.module).__name__ for each in hooked if not each.has_rule})),
    )


def _error(got: Tensor, expected: Tensor) -> float:
    return float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-8))


def page() -> str:
    """Return docs/models.md with its table made anew."""
    rows = []
    for architecture in architectures():
        found = examine(architecture)
        slow = ", ".join(found.by_torch_func) or "none"
        rows.append(
            f"| {architecture.name} | {_power(found.full)} | {_power(found.low_rank)} | {slow} |"
        )
    block = "\n".join(
        [
            f"Each of these {len(rows)} was built small, with random weights, and trained nowhere: "
            "`python -m scripts.models` compares every example's gradient of every parameter with "
            "torch.autograd's of that example alone, in float64. Errors are relative to a "
            "gradient's largest entry, rounded up to a power of ten. The third column is of "
            "dW_i Rᵀ and Lᵀ dW_i, which RGP, LSG and DP-PowerSGD take of each weight matrix. "
            "Modules in the last column have no rule: torch.func takes their gradients, which is "
            "slower, and their dropout has to be 0. torchvision's networks are built with "
            "GroupNorm in BatchNorm's place. Names without a library are transformers' and, of "
            "LSTM and GRU, torch's.",
            "",
            "| architecture | whole gradients | low-rank products | by torch.func |",
            "| --- | ---: | ---: | --- |",
            *rows,
        ]
    )
    text = PAGE.read_text(encoding="utf-8")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def _power(error: float) -> str:
    return "0" if error == 0 else f"< 1e{math.floor(math.log10(error)) + 1:d}"


def main(words: Sequence[str]) -> int:
    """Write the page; return the exit code."""
    return exit_code_of(_main, words, __doc__)


def _main(words: Sequence[str]) -> int:
    if words:
        print(f"error: Expected no words; got {' '.join(words)}.", file=sys.stderr)
        return 2
    PAGE.write_text(page(), encoding="utf-8")
    print(PAGE)
    return 0
