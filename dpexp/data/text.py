"""Texts as token ids: held at full length, handed out in micro-batches of like length."""

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
"""Texts a tokenizer gets at once (ours)."""

VOCABULARIES = ("tokenizer.json", "vocab.txt", "vocab.json")
"""Files of which a tokenizer needs one."""

FILES = (
    *VOCABULARIES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
"""Files that decide what a tokenizer does."""

SPECIALS = ("[pad]", "[cls]", "[sep]")
"""Ids 0, 1 and 2 of the vocabularies; words follow in alphabetical order."""


class Encoded(NamedTuple):
    """Some texts, or pairs of texts, as token ids.

    Attributes:
        ids: [n, t] int32; what lies beyond a text's length is padding.
        lengths: [n] int32, tokens of each.
        seconds: [n] int32, where the second text of a pair begins; the length where there is none.
    """

    ids: Tensor
    lengths: Tensor
    seconds: Tensor


@dataclass(frozen=True, eq=False)
class Texts:
    """A whole set of tokenised texts.

    Attributes:
        encoded: the tokens.
        targets: [n], class indices.
        longest: tokens a text may have; `micro_batches` counts in such texts.
        vocabulary: all ids that whoever made the tokens can give are below it; 0: not known.
    """

    encoded: Encoded
    targets: Tensor
    longest: int
    vocabulary: int = 0

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        """Count the bytes the examples take where they lie."""
        return sum(tensor.nbytes for tensor in self.tensors())

    def tensors(self) -> tuple[Tensor, ...]:
        """Return all that is held, to be hashed."""
        return (*self.encoded, self.targets)

    def to(self, device: torch.device | str) -> Texts:
        """Return the same examples on a device."""
        encoded = Encoded(*(tensor.to(device) for tensor in self.encoded))
        return replace(self, encoded=encoded, targets=self.targets.to(device))

    def take(self, indices: Tensor) -> Texts:
        """Return some of the examples, by index [m]."""
        encoded = Encoded(*(tensor[indices] for tensor in self.encoded))
        return replace(self, encoded=encoded, targets=self.targets[indices])

    def batch(self, indices: Tensor) -> Batch:
        """Gather examples by index [m] (m may be 0), cut to the longest among them.

        Returns:
            Inputs [m, 3, t] int64: token ids, 1 where there is a token, 1 in the second text.
        """
        ids, lengths, seconds = self.encoded
        indices = indices.to(ids.device)
        lengths, seconds = lengths[indices, None], seconds[indices, None]
        longest = int(lengths.max()) if len(indices) else 1
        at = torch.arange(longest, device=ids.device)
        is_token = at < lengths
        planes = ids[indices, :longest], is_token, (at >= seconds) & is_token
        inputs = torch.stack([plane.long() for plane in planes], dim=1)
        return Batch(inputs, self.targets[indices])

    def micro_batches(self, indices: Tensor, size: int) -> Iterator[Tensor]:
        """Cut a draw into pieces that hold as many tokens as `size` of the longest texts.

        Sorted by length first, so that little is padding; the draw itself never sees lengths.

        Args:
            indices: [m], whoever drew them.
            size: >= 1.
        """
        lengths = self.encoded.lengths[indices.to(self.targets.device)].cpu()
        order = torch.argsort(lengths, stable=True)
        budget, begin = size * self.longest, 0
        for end in range(1, len(order) + 1):
            # Piece [begin, end] would be as wide as its last text, the longest.
            if end == len(order) or (end + 1 - begin) * int(lengths[order[end]]) > budget:
                yield indices[order[begin:end]]
                begin = end


@dataclass(frozen=True)
class Tokenizer:
    """A pretrained model's tokenizer.

    Attributes:
        files: what defines it; their bytes name what it encoded.
        max_length: tokens at which texts are cut, special ones included.
    """

    tokenizer: Any
    files: tuple[Path, ...]
    max_length: int

    @classmethod
    def load(cls, repo: str | None, model_root: str, max_length: int, task: str) -> Tokenizer:
        """Find a model's tokenizer.

        Args:
            repo: owner/name on the hub; None: the model has none.
            model_root: a folder laid out like hub snapshots, looked at before the hub.
            max_length: >= 8.
            task: whose texts it is for.

        Raises:
            MissingData: it is nowhere to be found.
            ConfigError: the model takes no texts, or so short ones that nothing is left, or comes
                without a tokenizer that can be read.
        """
        from transformers import AutoTokenizer

        if repo is None:
            raise ConfigError(
                f"Expected a pretrained language model for task {task}: its texts go through the "
                "model's tokenizer. Set model to minilm, bert, roberta or roberta_large."
            )
        if max_length < 8:
            raise ConfigError(
                f"Expected task.max_length >= 8, the special tokens included; got {max_length}. "
                "Set task.max_length."
            )
        folder = model_folder(model_root, repo)
        files = tuple(path for path in (folder / name for name in FILES) if path.is_file())
        # Without a vocabulary transformers makes a tokenizer that knows no word.
        if not any(path.name in VOCABULARIES for path in files):
            raise ConfigError(
                f"Expected a tokenizer, {' or '.join(VOCABULARIES)}, in {folder}; found none. "
                f"Put the files of {repo} there."
            )
        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # a damaged file fails in as many ways as it can be damaged
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
        """Return the number that all ids are below, added tokens' too."""
        return 1 + max(self.tokenizer.get_vocab().values(), default=-1)

    @property
    def recipe(self) -> str:
        """Name what decides the tokens of a text besides the files."""
        return f"{type(self.tokenizer).__name__} {self.max_length}"

    def encode(self, *columns: Sequence[str]) -> Encoded:
        """Turn texts, or pairs of texts, into ids; those too long lose tokens at their ends."""
        pad, rows, seconds = self.tokenizer.pad_token_id, [], []
        for begin in range(0, len(columns[0]), WORDPIECES_AT_A_TIME):
            some = [list(column[begin : begin + WORDPIECES_AT_A_TIME]) for column in columns]
            encoding = self.tokenizer(*some, truncation=True, max_length=self.max_length)
            for row, ids in enumerate(encoding["input_ids"]):
                parts = encoding.sequence_ids(row)
                rows.append(ids)
                # An empty second text still has the separator that ends it.
                second = len(ids) - (len(columns) - 1)
                seconds.append(parts.index(1) if 1 in parts else second)
        return pack(rows, seconds, pad)


@dataclass(frozen=True)
class WordLevel:
    """A word an id: [cls] a [sep], or [cls] a [sep] b [sep].

    Attributes:
        words: what the ids stand for, special ones first.
    """

    words: tuple[str, ...]

    @property
    def vocabulary(self) -> int:
        """Return the number that all ids are below."""
        return len(self.words)

    def encode(self, *columns: Sequence[str]) -> Encoded:
        """Turn texts, or pairs of texts, into ids."""
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
    """Put texts of unlike length side by side.

    Args:
        rows: token ids of each text.
        seconds: where each one's second text begins.
        pad: the id that fills the rest.
    """
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int32)
    ids = torch.full((len(rows), int(lengths.max()) if rows else 0), pad, dtype=torch.int32)
    for row, some in zip(ids, rows, strict=True):
        row[: len(some)] = torch.tensor(some, dtype=torch.int32)
    return Encoded(ids, lengths, torch.tensor(seconds, dtype=torch.int32))
