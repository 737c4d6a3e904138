"""Architectures that people use, built small and with random weights, from their libraries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from dpexp.models import fixing
from dpexp.models.adapting import COLOURS, returns_logits, takes_images, takes_texts
from dpexp.models.wrn import WideResNet

NUM_CLASSES = 3

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


ONE_LENGTH = {
    "MobileBert": "with texts of one length: it reads each token beside its neighbours, padding "
    "among them (`trigram_input`), so that a text would hang on how long the others of its batch "
    "are. Cut or pad all texts to one length and hand them to `dpexp.train`",
}
"""Of transformers that take no batch of texts of several lengths: why, and what to do."""


class Recurrent(nn.Module):
    """A recurrent classifier of tokens."""

    def __init__(self, kind: Callable[..., nn.RNNBase]) -> None:
        """Build it of two layers."""
        super().__init__()
        self.embedding, self.out = nn.Embedding(40, 8), nn.Linear(8, NUM_CLASSES)
        self.layers = kind(8, 8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits [n, classes] of each text's last state, for tokens [n, 3, t]."""
        states, last = self.layers(self.embedding(x[:, 0]))[0], x[:, 1].sum(1) - 1
        return self.out(states[torch.arange(len(x)), last])


@dataclass(frozen=True)
class Architecture:
    """A small model with random weights.

    Attributes:
        name: of its family.
        make: builds it.
        is_text: whether it reads tokens; else images.
        one_length: why texts have to be of one length; "" where they need not.
    """

    name: str
    make: Callable[[], nn.Module]
    is_text: bool
    one_length: str = ""

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
            channels_last=False,
            own=None,
            task=(None, None),
        )
    returns_logits(model)
    return model


def _of_torchvision(name: str) -> nn.Module:
    from torchvision import models

    if name == "vit":
        return models.VisionTransformer(32, 8, 2, 2, 16, 24, num_classes=NUM_CLASSES)
    if name == "densenet":
        model = models.DenseNet(4, (2, 2, 2), 8, num_classes=NUM_CLASSES)
        fixing.fix(model, how=True)
        return model
    norm = partial(nn.GroupNorm, 1)
    if name == "efficientnet":
        sizes = [(1, 3, 1, 8, 8, 1), (4, 3, 2, 8, 16, 1), (4, 5, 2, 16, 16, 2)]
        blocks = [models.efficientnet.MBConvConfig(*size, 1.0, 1.0) for size in sizes]
        return models.EfficientNet(blocks, 0.0, 0.0, NUM_CLASSES, norm, last_channel=32)
    if name == "mobilenet":
        stages = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]
        return models.MobileNetV2(NUM_CLASSES, 0.25, stages, norm_layer=norm, dropout=0.0)
    resnet = models.resnet18(norm_layer=norm)
    resnet.layer3, resnet.layer4 = nn.Sequential(), nn.Sequential()  # the first two stages
    resnet.fc = nn.Linear(128, NUM_CLASSES)
    return resnet


def _wide_resnet() -> nn.Module:
    return WideResNet(10, 1, 2, False, COLOURS, NUM_CLASSES)


def architectures() -> list[Architecture]:
    """Return all that are tried."""

    def of_library(known: Any, task: str, argument: str, is_text: bool) -> list[Architecture]:
        return [
            Architecture(
                name,
                partial(_of_transformers, name, settings, task, argument),
                is_text,
                ONE_LENGTH.get(name, ""),
            )
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
            ("ResNet-18 (torchvision, GroupNorm)", "resnet"),
            ("MobileNetV2 (torchvision, GroupNorm)", "mobilenet"),
            ("DenseNet (torchvision, GroupNorm)", "densenet"),
            ("EfficientNet (torchvision, GroupNorm)", "efficientnet"),
            ("ViT (torchvision)", "vit"),
        )
    ]
    wide = Architecture("WRN-10-1 (dpexp)", _wide_resnet, is_text=False)
    return [*of_texts, *recurrent, *of_images, *small, wide]
