"""Texts as token ids, in micro-batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from dpexp.data.hub import model_folder
from dpexp.types import Batch, ConfigError, one_line

WORDPIECES_AT_A_TIME = 10_000
"""Texts per call of a tokenizer (ours)."""

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""A tokenizer needs one of these files."""

FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files that decide a tokenizer's behaviour."""

SPECIALS = ("[pad]", "[cls]", "[sep]")
"""Ids 0, 1 and 2 of `WordLevel` vocabularies; words follow in alphabetical order."""


class Encoded(NamedTuple):
    """Texts, or pairs of texts, as token ids.

    Attributes:
        ids: [n, t] int32, padded beyond a text's length.
        lengths: [n] int32, in tokens.
        seconds: [n] int32, position of a pair's second text; the length if there is none.
    """

    ids: Tensor
    lengths: Tensor
    seconds: Tensor


@dataclass(frozen=True, eq=False)
class Texts:
    """A set of tokenised texts.

    Attributes:
        encoded: the tokens.
        targets: [n], class indices.
        longest: most tokens a text may have; `micro_batches` counts in texts of this length.
        vocabulary: size of the tokenizer's vocabulary; 0: not known.
    """

    encoded: Encoded
    targets: Tensor
    longest: int
    vocabulary: int = 0

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """Memory of the examples, in bytes."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all tensors, to be hashed."""
        return (*self.encoded, self.targets)

    def to(self, device: torch.device | str) -> Texts:
        """Return the same examples on a device."""
        encoded = Encoded(*(tensor.to(device) for tensor in self.encoded))
        return replace(self, encoded=encoded, targets=self.targets.to(device))

    def take(self, indices: Tensor) -> Texts:
        """Return the examples of the indices [m]."""
        encoded = Encoded(*(tensor[indices] for tensor in self.encoded))
        return replace(self, encoded=encoded, targets=self.targets[indices])

    def batch(self, indices: Tensor) -> Batch:
        """Return the batch of the indices [m] (m may be 0), as long as its longest text.

        Returns:
            Inputs [m, 3, t] int64: token ids, attention mask, and 1 for tokens of the second text.
        """
        ids, lengths, seconds = self.encoded
        indices = indices.to(ids.device)
        lengths, seconds = lengths[indices, None], seconds[indices, None]
        longest = int(lengths.max()) if len(indices) else 1
        position = torch.arange(longest, device=ids.device)
        is_token = position < lengths
        planes = ids[indices, :longest], is_token, (position >= seconds) & is_token
        inputs = torch.stack([plane.long() for plane in planes], dim=1)
        return Batch(inputs, self.targets[indices])

    def micro_batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Split a batch into micro-batches of at most `size` times `longest` tokens.

        Texts are sorted by length, which reduces padding. Sampling does not depend on lengths.

        Args:
            indices: [m], of the batch.
            size: >= 1.
        """
        lengths = self.encoded.lengths[indices.to(self.targets.device)].cpu()
        order = torch.argsort(lengths, stable=True)
        budget, begin = size * self.longest, 0
        for end in range(1, len(order) + 1):
            # Micro-batch [begin, end] would be as wide as its last text, the longest.
            if end == len(order) or (end + 1 - begin) * int(lengths[order[end]]) > budget:
                yield indices[order[begin:end]]
                begin = end


@dataclass(frozen=True)
class Tokenizer:
    """A pretrained model's tokenizer.

    Attributes:
        files: that define it; their bytes are part of the key of cached texts.
        max_length: tokens to which texts are truncated, special ones included.
    """

    tokenizer: Any
    files: tuple[Path, ...]
    max_length: int

    @classmethod
    def load(cls, repo: str | None, model_root: str, max_length: int, task: str) -> Tokenizer:
        """Load a model's tokenizer.

        Args:
            repo: owner/name on the hub; None: the model has none.
            model_root: a folder laid out like hub snapshots, searched before the hub.
            max_length: >= 8.
            task: name of the task, for messages.

        Raises:
            MissingData: it was not found.
            ConfigError: the model takes no texts, max_length is too small, or the tokenizer cannot
                be read.
        """
        from transformers import AutoTokenizer

        if repo is None:
            raise ConfigError(
                f"Expected a pretrained language model for task {task}: its texts go through the "
                "model's tokenizer. Set model to minilm, bert, roberta or roberta_large, or "
                "model=hf repo=OWNER/NAME."
            )
        if max_length < 8:
            raise ConfigError(
                f"Expected task.max_length >= 8, the special tokens included; got {max_length}. "
                "Set task.max_length."
            )
        folder = model_folder(model_root, repo)
        files = tuple(path for path in (folder / name for name in FILES) if path.is_file())
        # Without a vocabulary file transformers returns a tokenizer with an empty vocabulary.
        if not any(path.name in VOCABULARIES for path in files):
            raise ConfigError(
                f"Expected a tokenizer, {' or '.join(VOCABULARIES)}, in {folder}; found none. "
                f"Put the files of {repo} there."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # damaged files raise many kinds of errors
            reason = one_line(error)
            raise ConfigError(f"Expected a readable tokenizer in {folder}; {reason}.") from error
        if tokenizer.pad_token_id is None:
            raise ConfigError(
                f"Expected a tokenizer with a padding token in {folder}; it has none. Name one as "
                "pad_token in its tokenizer_config.json, such as the end-of-text token, or set "
                "another model."
            )
        return cls(tokenizer, files, max_length)

    @property
    def vocabulary(self) -> int:
        """One more than the largest id, added tokens included."""
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    @property
    def recipe(self) -> str:
        """Description of whatever decides a text's tokens besides the files."""
        return f"{type(self.tokenizer).__name__} {self.max_length}"

    def encode(self, *columns: Sequence[str]) -> Encoded:
        """Return the ids of texts, or pairs of texts, truncated to max_length."""
        pad, rows, seconds = self.tokenizer.pad_token_id, [], []
        for begin in range(0, len(columns[0]), WORDPIECES_AT_A_TIME):
            some = [list(column[begin : begin + WORDPIECES_AT_A_TIME]) for column in columns]
            encoding = self.tokenizer(*some, truncation=True, max_length=self.max_length)
            for row, ids in enumerate(encoding["input_ids"]):
                parts = encoding.sequence_ids(row)
                rows.append(ids)
                # An empty second text still ends with its separator.
                second = len(ids) - (len(columns) - 1)
                seconds.append(parts.index(1) if 1 in parts else second)
        return pack(rows, seconds, pad)


@dataclass(frozen=True)
class WordLevel:
    """A tokenizer with one id per word: [cls] a [sep], or [cls] a [sep] b [sep].

    Attributes:
        words: by id, special ones first.
    """

    words: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Number of ids."""
        return len(self.words)

    def encode(self, *columns: Sequence[str]) -> Encoded:
        """Return the ids of texts, or pairs of texts."""
        ids = {word: index for index, word in enumerate(self.words)}
        pad, cls, sep = (ids[special] for special in SPECIALS)
        rows, seconds = [], []
        for texts in zip(*columns, strict=True):
            row, begins = [cls], []
            for text in texts:
                begins.append(len(row))
                row += [*(ids[word] for word in text.split()), sep]
            rows.append(row)
            seconds.append(begins[1] if len(begins) == 2 else len(row))
        return pack(rows, seconds, pad)


def pack(rows: Sequence[Sequence[int]], seconds: Sequence[int], pad: int) -> Encoded:
    """Return texts of different lengths as padded tensors.

    Args:
        rows: token ids of each text.
        seconds: position of each one's second text.
        pad: the id of padding.
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    ids = torch.full((len(rows), int(lengths.max()) if rows else 0), pad, dtype=torch.int32)
    for row, some in zip(ids, rows, strict=True):
        row[: len(some)] = torch.tensor(some, dtype=torch.int32)
    return Encoded(ids, lengths, torch.tensor(seconds, dtype=torch.int32))
