"""Tiny language models and texts, and folders of both laid out like hub snapshots."""

import os
from pathlib import Path

import datasets
import pytest
import tokenizers
import torch
import transformers
import yaml
from tokenizers import models, pre_tokenizers, processors

from dpexp import cli
from dpexp.data.text import Texts, pack
from dpexp.models.language import from_scratch, pretrained

VOCABULARY, LONGEST, CLASSES = 23, 9, 3
SHAPE = {"layers": 2, "width": 16, "attention_heads": 2, "feed_forward": 24}
KINDS = {
    "bert": {"architecture": "bert", "pooling": "first", "head_layers": 2},
    "roberta": {"architecture": "roberta", "pooling": "first", "head_layers": 2},
    "minilm": {"architecture": "bert", "pooling": "mean", "head_layers": 1},
}
WORDS = "a the film plot good bad dull fine is was not very".split()
SPECIAL = {  # in the order of their ids: padding is 0 in one, 1 in the other
    "bert": {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]"},
    "roberta": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"},
}
PAIRS = {"bert": "{cls} $A {sep} $B:1 {sep}:1", "roberta": "{cls} $A {sep} {sep} $B {sep}"}


def real_model(repo):
    """The root below which a real model lies: DPEXP_MODEL_ROOT, or shared/models beside here."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "models"
    root = Path(os.environ.get("DPEXP_MODEL_ROOT", beside))
    if not (root / repo / "config.json").is_file():
        pytest.skip(f"needs {repo}: set DPEXP_MODEL_ROOT to a folder laid out like hub snapshots")
    return str(root)


def shaken(model, seed=0, scale=0.3):
    """Draw all weights anew, so large that attention looks somewhere and no gradient vanishes."""
    gen = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=gen))
            if name.endswith("LayerNorm.weight"):
                parameter.add_(1.0)
    return model


def tiny(kind="bert", **changes):
    """Build a model of two layers with random weights, in float64."""
    settings = {
        **SHAPE,
        **KINDS[kind],
        "vocabulary": VOCABULARY,
        "feature_norm": 1.0,
        "head_std": 0.02,
        "dropout": 0.0,
        "precision": "float32",
        "checkpointing": False,
        "num_classes": CLASSES,
        "max_length": LONGEST,
    }
    return shaken(from_scratch(**settings | changes)).double()


def from_hub(kind, root, **changes):
    """Load the model that `save_model` put below a root, in float64."""
    settings = {
        "repo": f"tiny/{KINDS[kind]['architecture']}",
        "pooling": KINDS[kind]["pooling"],
        "head_layers": KINDS[kind]["head_layers"],
        "feature_norm": 1.0,
        "head_std": 0.02,
        "dropout": 0.0,
        "precision": "float32",
        "checkpointing": False,
        "attention": "sdpa",
        "seen": [],
        "model_root": str(root),
        "num_classes": CLASSES,
        "task": "sst2",
        "max_length": LONGEST,
    }
    return pretrained(**settings | changes).double()


def save_model(root, architecture, longest=LONGEST):
    """Save an encoder with its pooler, and a tokenizer of whole words, as the hub has them."""
    folder = root / "tiny" / architecture
    config = transformers.AutoConfig.for_model(
        architecture,
        num_hidden_layers=SHAPE["layers"],
        hidden_size=SHAPE["width"],
        num_attention_heads=SHAPE["attention_heads"],
        intermediate_size=SHAPE["feed_forward"],
        vocab_size=VOCABULARY,
        max_position_embeddings=longest + 2 * (architecture == "roberta"),
        type_vocab_size=2 if architecture == "bert" else 1,
    )
    encoder = shaken(transformers.AutoModel.from_config(config))
    encoder.save_pretrained(folder)
    save_tokenizer(folder, architecture)
    return encoder


def save_distilbert(root):
    """Save a small classifier of transformers beside tiny/bert's tokenizer, as the hub has them."""
    save_model(root, "bert", longest=64)
    config = transformers.DistilBertConfig(
        dim=16, n_heads=2, n_layers=1, hidden_dim=32, vocab_size=40, max_position_embeddings=64
    )
    model = transformers.DistilBertForSequenceClassification(config)
    model.save_pretrained(root / "tiny" / "bert")


def save_tokenizer(folder, architecture, words=WORDS):
    special = SPECIAL[architecture]
    vocabulary = {word: index for index, word in enumerate([*special.values(), *words])}
    tokenizer = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token=special["unk"]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="{cls} $A {sep}".format(**special),
        pair=PAIRS[architecture].format(**special),
        special_tokens=[(special[kind], vocabulary[special[kind]]) for kind in ("cls", "sep")],
    )
    named = {f"{kind}_token": word for kind, word in special.items()}
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **named)
    whole.save_pretrained(folder)


def sentences(count, seed=0):
    """Draw sentences of 1 to 5 words."""
    gen = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 6, (count,), generator=gen).tolist()
    drawn = (torch.randint(len(WORDS), (n,), generator=gen).tolist() for n in lengths)
    return [" ".join(WORDS[word] for word in some) for some in drawn]


def save_glue(root, task, counts):
    """Write random texts where GLUE on the hub has a task's, as `conf/task` says; give the rows."""
    settings = yaml.safe_load((cli.CONF / "task" / f"{task}.yaml").read_text())
    folder = root / settings["repo"] / settings["config"]
    folder.mkdir(parents=True, exist_ok=True)
    written = {}
    for seed, (split, count) in enumerate(counts.items()):
        columns = settings["text_columns"]
        rows = {name: sentences(count, 10 * seed + k) for k, name in enumerate(columns)}
        gen = torch.Generator().manual_seed(seed)
        rows["label"] = torch.randint(settings["num_classes"], (count,), generator=gen).tolist()
        rows["idx"] = list(range(count))
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"{split}-00000-of-00001.parquet")
        written[split] = rows
    return written


def texts(kind, lengths, seed=0, longest=LONGEST, vocabulary=VOCABULARY):
    """Draw texts of given lengths; the latter half of each is a second text."""
    gen = torch.Generator().manual_seed(seed)
    rows = [torch.randint(4, vocabulary, (n,), generator=gen).tolist() for n in lengths]
    pad = list(SPECIAL[KINDS[kind]["architecture"]]).index("pad")
    targets = torch.randint(CLASSES, (len(rows),), generator=gen)
    return Texts(pack(rows, [(n + 1) // 2 for n in lengths], pad), targets, longest)
