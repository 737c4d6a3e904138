"""Small models of transformers in folders laid out like hub snapshots, and runs of them."""

import torch
import transformers

from dpexp import cli
from dpexp.cli.architectures import IMAGES, TEXTS
from tests.texts import save_tokenizer

MORE = {
    "Bart": {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}
    | {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    | {"max_position_embeddings": 40, "forced_eos_token_id": 2, "bos_token_id": 1},
}
"""Settings of models that the page does not list."""

CPU = torch.device("cpu")
WORDS = ["method=dpsgd", "profile=embedded", "eps=8", "epochs=0.5", "batch_size=64"]
WORDS += ["micro_batch=32", "device=cpu"]
TEXT = [*WORDS, "task=sentiment", "task.dataset_size=200", "task.test_size=20", "model=hf"]
TEXT += ["task.delta=1e-3", "model.tokenizer=null"]
IMAGE = [*WORDS, "task=digits"]


def save(root, name, *, weights=False, drop=0.0, **changes):
    """Save a small model's config.json, and its weights, as OWNER/name below a root."""
    is_text = name not in IMAGES
    settings = {**{**TEXTS, **IMAGES, **MORE}[name], **changes}
    if is_text:
        settings |= {"vocab_size": 60}
        positions = ("max_position_embeddings", "n_positions")
        settings |= {key: 40 for key in positions if key in settings and key not in changes}
    if drop:
        settings = {k: drop if "drop" in k and v == 0.0 else v for k, v in settings.items()}
    config = getattr(transformers, f"{name}Config")(**settings)
    folder = root / "tiny" / name.lower()
    if is_text:
        config.eos_token_id = 2 if name != "GPT2" else 50
        config.pad_token_id = None if name in ("GPT2", "Llama") else 0
        kind = "SequenceClassification"
        save_tokenizer(folder, "bert")
    else:
        kind = "ImageClassification"
    if weights:
        torch.manual_seed(7)
        config.num_labels = 5
        getattr(transformers, f"{name}For{kind}")(config).save_pretrained(folder)
    else:
        config.save_pretrained(folder)
    return f"tiny/{name.lower()}"


def parts(root, *words):
    """Build a config's parts."""
    return cli.build_parts(cli.compose([*words, f"model_root={root}"]), CPU)
