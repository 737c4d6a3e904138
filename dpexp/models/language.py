"""BERT, RoBERTa and similar encoders with a classifier (rgp Section 5.2, lsg Section 4.1)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dpexp.data.hub import model_folder
from dpexp.models.first_token import keep_first_token
from dpexp.models.precision import PRECISIONS, resolve
from dpexp.types import ConfigError, one_line, require_word
from dpexp.warned import warn_caller

POOLINGS = ("first", "mean")
ARCHITECTURES = ("bert", "roberta")
ATTENTIONS = ("sdpa", "eager")


class Head(nn.Module):
    """The classifier on a sentence's features, in one layer or two.

    BERT and RoBERTa are fine-tuned with two: dense and tanh before the last.
    """

    def __init__(self, width: int, num_classes: int, layers: int, dropout: float) -> None:
        """Build the layers.

        Args:
            width: of the features.
            num_classes: outputs.
            layers: 1 or 2.
            dropout: probability of dropping a feature before each layer.
        """
        super().__init__()
        self.dense = nn.Linear(width, width) if layers == 2 else None
        self.out = nn.Linear(width, num_classes)
        self.dropout = nn.Dropout(dropout)

    def forward(self, features: Tensor) -> Tensor:
        """Map features [n, width] to logits [n, num_classes]."""
        if self.dense is not None:
            features = torch.tanh(self.dense(self.dropout(features)))
        return self.out(self.dropout(features))


class TextClassifier(nn.Module):
    """A transformer encoder and a classifier."""

    def __init__(
        self,
        encoder: Any,
        num_classes: int,
        pooling: str,
        feature_norm: float,
        head_std: float,
        head_layers: int,
        dropout: float,
        precision: str,
        checkpointing: bool,
    ) -> None:
        """Put the classifier on an encoder.

        Args:
            encoder: of transformers, without its pooler.
            num_classes: outputs.
            pooling: "first" uses the first token's state, and the last layer computes no other;
                "mean" the mean over tokens, scaled to one norm, as sentence encoders are trained.
            feature_norm: that norm, > 0; it scales how much a step of the classifier changes its
                logits.
            head_std: initial standard deviation of the last layer's weights, > 0; the larger, the
                larger the encoder's part of a clipped gradient.
            head_layers: 1 or 2.
            dropout: before each layer of the classifier.
            precision: "float32", "bfloat16" for matrix products under autocast, or "auto" for
                bfloat16 where the device has units for it.
            checkpointing: whether to store only each encoder layer's input and recompute the layer
                in backward; gradients are bit-identical.

        Raises:
            ConfigError: for a value outside its range.
        """
        super().__init__()
        self.encoder: Any
        require_word("model.pooling", pooling, POOLINGS)
        require_word("model.precision", precision, PRECISIONS)
        for name, value in (("feature_norm", feature_norm), ("head_std", head_std)):
            if value <= 0:
                raise ConfigError(f"Expected model.{name} above 0; got {value}. Set model.{name}.")
        if head_layers not in (1, 2):
            raise ConfigError(
                f"Expected model.head_layers to be 1 or 2; got {head_layers}. "
                "Set model.head_layers."
            )
        self.encoder = encoder
        self.head = Head(encoder.config.hidden_size, num_classes, head_layers, dropout)
        self._feature_norm = feature_norm
        self._pooling, self._precision = pooling, precision
        if pooling == "first":
            keep_first_token(encoder)
        if checkpointing:
            for layer in encoder.encoder.layer:
                layer.gradient_checkpointing = True
                layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False)
        nn.init.normal_(self.head.out.weight, std=head_std)
        nn.init.zeros_(self.head.out.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map tokens [n, 3, t] (ids, mask, second text) to logits [n, num_classes]."""
        device = inputs.device
        is_half = self.precision_on(device) == torch.bfloat16
        with torch.autocast(device.type, torch.bfloat16, enabled=is_half):
            features = self.features(inputs)
            return self.head(features).to(torch.promote_types(features.dtype, torch.float32))

    def precision_on(self, device: torch.device) -> torch.dtype:
        """Return the least precise type of a forward pass on a device."""
        is_half = resolve(self._precision, device) == "bfloat16"
        return torch.bfloat16 if is_half else self.head.out.weight.dtype

    def features(self, inputs: Tensor) -> Tensor:
        """Map tokens [n, 3, t] to the classifier's input, [n, width]."""
        ids, mask, segments = inputs.unbind(1)
        states = self._encode(ids, mask, segments)
        return states[:, 0] if self._pooling == "first" else self._mean(states, mask)

    def _mean(self, states: Tensor, mask: Tensor) -> Tensor:
        mask = mask[..., None].to(states.dtype)
        mean = (states * mask).sum(1) / mask.sum(1)
        return self._feature_norm * F.normalize(mean, dim=1)

    def _encode(self, ids: Tensor, mask: Tensor, segments: Tensor) -> Tensor:
        config = self.encoder.config
        more = {}
        if config.type_vocab_size > 1:
            more["token_type_ids"] = segments
        else:
            more["token_type_ids"] = torch.zeros_like(ids)
        if config.model_type == "bert":
            # One row per example, because the position table's gradient is per example too.
            more["position_ids"] = torch.arange(ids.shape[1], device=ids.device).expand_as(ids)
        return self.encoder(input_ids=ids, attention_mask=mask, **more).last_hidden_state

    @property
    def _is_librarys(self) -> bool:
        """Whether transformers has a classifier that computes the same, dropout aside."""
        return self._pooling == "first" and self.head.dense is not None

    def name_in_library(self, name: str) -> str:
        """Return the name that transformers gives a parameter; the classifier's where it has it."""
        kind = self.encoder.config.model_type
        renamed = {"encoder.": f"{kind}."}
        if self._is_librarys:
            renamed |= {
                "bert": {"head.dense.": "bert.pooler.dense.", "head.out.": "classifier."},
                "roberta": {
                    "head.dense.": "classifier.dense.",
                    "head.out.": "classifier.out_proj.",
                },
            }[kind]
        for ours, theirs in renamed.items():
            if name.startswith(ours):
                return theirs + name.removeprefix(ours)
        return name

    def save_settings(self, folder: Path, classes: tuple[str, ...]) -> None:
        """Write config.json, from which transformers loads the encoder, or the whole classifier."""
        config = copy.deepcopy(self.encoder.config)
        stem = {"bert": "Bert", "roberta": "Roberta"}[config.model_type]
        what = "ForSequenceClassification" if self._is_librarys else "Model"
        config.architectures = [f"{stem}{what}"]
        config.num_labels = self.head.out.out_features
        if len(classes) == config.num_labels:
            config.id2label = dict(enumerate(classes))
            config.label2id = {name: index for index, name in enumerate(classes)}
        config.save_pretrained(folder)


def pretrained(
    *,
    repo: str,
    pooling: str,
    feature_norm: float,
    head_std: float,
    head_layers: int,
    dropout: float,
    precision: str,
    checkpointing: bool,
    attention: str,
    seen: Sequence[str],
    model_root: str,
    num_classes: int,
    task: str,
    max_length: int,
) -> TextClassifier:
    """Load an encoder from the hub and put a new classifier on it.

    Args:
        repo: owner/name on the hub.
        pooling: see `TextClassifier`.
        feature_norm: see `TextClassifier`.
        head_std: see `TextClassifier`.
        head_layers: see `TextClassifier`; BERT's first is its pretrained pooler.
        dropout: probability everywhere in encoder and classifier, in [0, 1).
        precision: see `TextClassifier`.
        checkpointing: see `TextClassifier`.
        attention: transformers' implementation: "sdpa", or "eager", which is faster in bfloat16 on
            a CPU.
        seen: tasks whose sources the encoder was pretrained on.
        model_root: a folder laid out like hub snapshots, searched before the hub.
        num_classes: outputs.
        task: name of the task; one that the encoder has seen gives a warning.
        max_length: tokens of the longest text.

    Raises:
        MissingData: the encoder was not found.
        ConfigError: it is not a BERT or RoBERTa, does not support texts as long as the task's, or
            lacks weights.
    """
    if task in seen:
        warn_caller(
            f"{repo} was pretrained on pairs from the sources of {', '.join(seen)}: its accuracy "
            f"on {task} is no evidence about private learning."
        )
    require_word("model.attention", attention, ATTENTIONS)
    folder = model_folder(model_root, repo)
    config = transformers.AutoConfig.from_pretrained(folder)
    require_word("the encoder's model_type", config.model_type, ARCHITECTURES)
    if config.is_decoder:
        raise ConfigError(
            f"Expected an encoder; {repo} is a decoder (is_decoder in its config.json). "
            "Set model.repo."
        )
    config.hidden_dropout_prob = config.attention_probs_dropout_prob = dropout
    room = config.max_position_embeddings - (2 if config.model_type == "roberta" else 0)
    if max_length > room:
        raise ConfigError(
            f"Expected task.max_length <= {room}, the positions that {repo} supports; got "
            f"{max_length}. Set task.max_length."
        )
    needs_pooler = head_layers == 2 and config.model_type == "bert"
    encoder = _load(folder, config, attention, needs_pooler)
    pooler, encoder.pooler = encoder.pooler, None
    model = TextClassifier(
        encoder,
        num_classes,
        pooling,
        feature_norm,
        head_std,
        head_layers,
        dropout,
        precision,
        checkpointing,
    )
    if model.head.dense is not None and config.model_type == "bert" and pooler is not None:
        model.head.dense.load_state_dict(pooler.dense.state_dict())
    return model


def _load(
    folder: Path, config: transformers.PretrainedConfig, attention: str, needs_pooler: bool
) -> Any:
    """Load an encoder in float32 and training mode; raise if any weight is missing or unused."""
    # Its report of unused weights and its progress bar would hide an error's one line.
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        encoder, loading = transformers.AutoModel.from_pretrained(
            folder,
            config=config,
            attn_implementation=attention,
            dtype=torch.float32,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # reported below, by name
        )
    except Exception as error:  # damaged files raise many kinds of errors
        reason = one_line(error)
        raise ConfigError(
            f"Expected readable weights in {folder}; {reason}. Fetch the folder again."
        ) from error
    for name, actual, expected in sorted(loading["mismatched_keys"]):
        raise ConfigError(
            f"Expected {name} of shape {tuple(expected)}, as in config.json, in {folder}; its "
            f"weights have {tuple(actual)}. Put config.json and weights of one model there."
        )
    dropped = sorted(name for name in loading["unexpected_keys"] if _is_encoders(name, encoder))
    if dropped:
        raise ConfigError(
            f"Expected no weights of the encoder beyond those that config.json in {folder} names; "
            f"{len(dropped)} more are there, {dropped[0]} among them, and would be dropped. Put "
            "config.json and weights of one model there (num_hidden_layers?)."
        )
    absent = sorted(loading["missing_keys"])
    if needs_pooler and any(name.startswith("pooler.") for name in absent):
        warn_caller(
            f"The weights in {folder} lack BERT's pooler: the classifier's first layer is "
            "initialised at random. Set model.head_layers=1, or put weights with a pooler there."
        )
    lacking = [name for name in absent if not name.startswith("pooler.")]
    if lacking:
        raise ConfigError(
            f"Expected all weights of the encoder in {folder}; it lacks {len(lacking)}, "
            f"{lacking[0]} among them. Put the files of the whole model there."
        )
    return encoder.train()  # transformers returns it in eval mode, without dropout


def _is_encoders(name: str, encoder: nn.Module) -> bool:
    """Return whether a weight in a file belongs to the encoder.

    Buffers of position numbers do not, nor do heads such as that of masked language modelling.
    """
    weight = name.removeprefix(f"{encoder.base_model_prefix}.")
    return weight.startswith(("encoder.", "embeddings.")) and not weight.endswith("position_ids")


def from_scratch(
    *,
    architecture: str,
    layers: int,
    width: int,
    attention_heads: int,
    feed_forward: int,
    vocabulary: int,
    pooling: str,
    feature_norm: float,
    head_std: float,
    head_layers: int,
    dropout: float,
    precision: str,
    checkpointing: bool,
    num_classes: int,
    max_length: int,
) -> TextClassifier:
    """Build an encoder of any shape with random weights.

    Args:
        architecture: "bert" or "roberta".
        layers: number of encoder layers, >= 1.
        width: of a token's state, >= 1.
        attention_heads: a divisor of the width, >= 1.
        feed_forward: hidden width of the feed-forward layers, >= 1.
        vocabulary: number of token ids, >= 1.
        pooling: see `TextClassifier`.
        feature_norm: see `TextClassifier`.
        head_std: see `TextClassifier`.
        head_layers: see `TextClassifier`.
        dropout: probability everywhere in encoder and classifier, in [0, 1).
        precision: see `TextClassifier`.
        checkpointing: see `TextClassifier`.
        num_classes: outputs.
        max_length: tokens of the longest text.

    Raises:
        ConfigError: for a value outside its range.
    """
    require_word("model.architecture", architecture, ARCHITECTURES)
    sizes = {"layers": layers, "width": width, "attention_heads": attention_heads}
    for name, size in (sizes | {"feed_forward": feed_forward, "vocabulary": vocabulary}).items():
        if size < 1:
            raise ConfigError(f"Expected model.{name} >= 1; got {size}. Set model.{name}.")
    if width % attention_heads:
        raise ConfigError(
            f"Expected model.width to be a multiple of model.attention_heads={attention_heads}; "
            f"got {width}. Set model.width."
        )
    config = transformers.AutoConfig.for_model(
        architecture,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=attention_heads,
        intermediate_size=feed_forward,
        vocab_size=vocabulary,
        max_position_embeddings=max_length + 2,
        type_vocab_size=2 if architecture == "bert" else 1,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    encoder = transformers.AutoModel.from_config(config, attn_implementation="sdpa")
    encoder.pooler = None
    return TextClassifier(
        encoder,
        num_classes,
        pooling,
        feature_norm,
        head_std,
        head_layers,
        dropout,
        precision,
        checkpointing,
    )


def in_place_of_pretrained(
    *, attention: str, num_classes: int, max_length: int, **shape: Any
) -> TextClassifier:
    """Build a model with random weights that takes the time of a pretrained one.

    Args:
        attention: see `pretrained`.
        num_classes: outputs.
        max_length: tokens of the longest text.
        shape: what else `from_scratch` takes.
    """
    model = from_scratch(num_classes=num_classes, max_length=max_length, **shape)
    model.encoder.set_attn_implementation(attention)
    return model
