"""Tokenised texts: how a draw is cut, what a batch holds, and what a tokenizer gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dpexp.data.text import WORDPIECES_AT_A_TIME, Encoded, Texts, Tokenizer, pack
from dpexp.types import ConfigError, MissingData
from tests.texts import SPECIAL, save_tokenizer, sentences

PAD = 0
SOME = st.lists(st.integers(1, 40), min_size=1, max_size=60)


def of_lengths(lengths, longest=40, seconds=None):
    """Texts whose k-th token of the i-th is 100 i + k + 1, never the padding's id."""
    rows = [[100 * index + at + 1 for at in range(n)] for index, n in enumerate(lengths)]
    encoded = pack(rows, list(lengths) if seconds is None else seconds, PAD)
    return Texts(encoded, torch.arange(len(lengths)) % 3, longest)


# Micro-batches


@settings(max_examples=200)
@given(lengths=SOME, size=st.integers(1, 20), seed=st.integers(0, 99), share=st.floats(0, 1))
def test_micro_batches_are_a_partition_of_the_draw_and_none_is_wider_than_the_budget(
    lengths, size, seed, share
):
    examples = of_lengths(lengths)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed))
    draw = order[: round(share * len(lengths))]
    pieces = list(examples.micro_batches(draw, size))
    assert sorted(torch.cat([draw[:0], *pieces]).tolist()) == sorted(draw.tolist())
    for piece in pieces:
        batch = examples.batch(piece)
        assert batch.inputs.shape[2] == max(lengths[index] for index in piece)
        assert batch.inputs[:, 0].numel() <= size * examples.longest
    # As full as may be: the next piece's first text would not have fitted.
    for piece, following in zip(pieces, pieces[1:], strict=False):
        first = min(lengths[index] for index in following)
        assert max(lengths[index] for index in piece) <= first
        assert (len(piece) + 1) * first > size * examples.longest


@given(longest=st.integers(1, 40), beyond=st.integers(1, 5))
def test_a_text_wider_than_the_budget_goes_alone(longest, beyond):
    examples = of_lengths([3, 50 + beyond, 2, 50, longest], longest=longest)
    pieces = [piece.tolist() for piece in examples.micro_batches(torch.arange(5), 1)]
    assert sorted(sum(pieces, [])) == [0, 1, 2, 3, 4]
    assert [3] in pieces and [1] in pieces


def test_an_empty_draw_gives_no_micro_batch():
    examples = of_lengths([3, 1, 2])
    assert list(examples.micro_batches(torch.arange(0), 5)) == []
    assert examples.batch(torch.arange(0)).inputs.shape == (0, 3, 1)


def test_little_is_padding():
    gen = torch.Generator().manual_seed(0)
    lengths = (4 + (torch.randn(2000, generator=gen).exp() * 12)).int().clamp(max=128).tolist()
    examples = of_lengths(lengths, longest=128)
    draw = torch.randperm(2000, generator=gen)[:1000]

    def padding(pieces):
        held = sum(examples.batch(piece).inputs[:, 0].numel() for piece in pieces)
        return 1 - sum(lengths[index] for index in draw) / held

    pieces = list(examples.micro_batches(draw, 32))
    assert padding(pieces) < 0.2 < 0.6 < padding(draw.split(32))
    assert len(pieces) < len(draw.split(32)) / 2


def test_the_same_draw_is_cut_alike_and_the_order_of_equals_is_the_draws():
    examples = of_lengths([5] * 30)
    draw = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    first, again = ([p.tolist() for p in examples.micro_batches(draw, 1)] for _ in range(2))
    assert first == again
    assert sum(first, []) == draw.tolist()


# Batches


@settings(max_examples=100)
@given(lengths=SOME, data=st.data())
def test_a_batch_holds_ids_mask_and_second_text_cut_to_its_longest(lengths, data):
    seconds = [data.draw(st.integers(0, n)) for n in lengths]
    examples = of_lengths(lengths, seconds=seconds)
    chosen = data.draw(st.lists(st.integers(0, len(lengths) - 1), min_size=1, max_size=8))
    batch = examples.batch(torch.tensor(chosen))
    width = max(lengths[index] for index in chosen)
    assert batch.inputs.shape == (len(chosen), 3, width) and batch.inputs.dtype == torch.int64
    for (ids, mask, second), index in zip(batch.inputs.tolist(), chosen, strict=True):
        n, begin, rest = lengths[index], seconds[index], width - lengths[index]
        assert ids == [100 * index + at + 1 for at in range(n)] + [PAD] * rest
        assert mask == [1] * n + [0] * rest
        assert second == [0] * begin + [1] * (n - begin) + [0] * rest
    assert batch.targets.tolist() == [index % 3 for index in chosen]


def test_taking_and_moving_keep_every_text_with_its_own():
    examples = of_lengths([4, 2, 6, 3], seconds=[2, 2, 1, 3])
    chosen = torch.tensor([3, 0, 2])
    taken = examples.take(chosen).to("cpu")
    assert len(taken) == 3 and taken.longest == examples.longest
    for index in range(3):
        one, other = taken.batch(torch.tensor([index])), examples.batch(chosen[[index]])
        assert torch.equal(one.inputs, other.inputs) and torch.equal(one.targets, other.targets)
    moved = examples.to("meta")
    assert all(tensor.device.type == "meta" for tensor in moved.tensors())
    assert all(tensor.device.type == "cpu" for tensor in examples.tensors())
    assert examples.nbytes == 4 * (4 * 6 + 4 + 4) + 8 * 4


def test_no_texts_at_all_can_be_packed():
    assert pack([], [], PAD).ids.shape == (0, 0)


# Tokenizers


def encoded(tiny_models, architecture, *columns, max_length=12):
    tokenizer = Tokenizer.load(f"tiny/{architecture}", str(tiny_models), max_length, "sst2")
    return tokenizer, tokenizer.encode(*columns)


def rows(encoding):
    return [ids[:n].tolist() for ids, n in zip(encoding.ids, encoding.lengths, strict=True)]


@pytest.mark.parametrize("architecture", ["bert", "roberta"])
def test_single_texts_are_framed_and_have_no_second(architecture, tiny_models):
    tokenizer, got = encoded(tiny_models, architecture, ["good film", "the unheard plot is bad"])
    special, of = list(SPECIAL[architecture]), tokenizer.tokenizer.get_vocab()
    cls, sep, unk, pad = (special.index(kind) for kind in ("cls", "sep", "unk", "pad"))
    assert rows(got) == [
        [cls, of["good"], of["film"], sep],
        [cls, of["the"], unk, of["plot"], of["is"], of["bad"], sep],
    ]
    assert got.ids[0, 4:].tolist() == [pad] * 3
    assert got.seconds.tolist() == got.lengths.tolist() == [4, 7]


def test_the_second_text_begins_where_berts_segments_say(tiny_models):
    firsts, others = sentences(30, 1), sentences(30, 2)
    tokenizer, got = encoded(tiny_models, "bert", firsts, others, max_length=16)
    plain = tokenizer.tokenizer(firsts, others, return_token_type_ids=True)
    texts = Texts(got, torch.zeros(30, dtype=torch.int64), 16)
    for index, segments in enumerate(plain["token_type_ids"]):
        assert texts.batch(torch.tensor([index])).inputs[0, 2].tolist() == segments
        assert rows(got)[index] == plain["input_ids"][index]


def test_a_pair_with_an_empty_text_still_has_its_separators(tiny_models):
    _, got = encoded(tiny_models, "bert", ["good film", ""], ["", "bad"])
    assert got.lengths.tolist() == [5, 4]
    assert got.seconds.tolist() == [4, 2]  # after the first separator, as BERT's segments say


def test_long_texts_lose_their_ends_and_pairs_those_of_the_longer(tiny_models):
    long = "good bad film the a plot is not very dull fine was good bad film"
    tokenizer, got = encoded(tiny_models, "bert", [long, "good"], max_length=8)
    whole = rows(encoded(tiny_models, "bert", [long], max_length=64)[1])[0]
    assert rows(got)[0] == [*whole[:7], whole[-1]] and got.lengths.tolist() == [8, 3]
    _, pair = encoded(tiny_models, "bert", [long], ["good film"], max_length=10)
    assert pair.lengths.tolist() == [10] and pair.seconds.tolist() == [10 - 3]
    _, pair = encoded(tiny_models, "roberta", ["good film"], [long], max_length=10)
    assert pair.lengths.tolist() == [10] and pair.seconds.tolist() == [5]


def test_many_texts_come_out_as_few_at_a_time_do(tiny_models):
    num = WORDPIECES_AT_A_TIME + 20
    firsts, others = sentences(num, 3), sentences(num, 4)
    tokenizer, whole = encoded(tiny_models, "roberta", firsts, others)
    assert isinstance(whole, Encoded) and len(whole.ids) == num
    first = tokenizer.encode(firsts[:5000], others[:5000])
    second = tokenizer.encode(firsts[5000:], others[5000:])
    assert rows(whole) == rows(first) + rows(second)
    assert torch.equal(whole.seconds, torch.cat([first.seconds, second.seconds]))


def test_a_tokenizers_files_and_length_name_what_it_encodes(tiny_models, tmp_path):
    one, other = (Tokenizer.load("tiny/bert", str(tiny_models), n, "sst2") for n in (8, 9))
    assert one.recipe != other.recipe and one.files == other.files
    assert {path.name for path in one.files} == {"tokenizer.json", "tokenizer_config.json"}
    save_tokenizer(tmp_path, "bert", words=["good", "bad"])
    assert (tmp_path / "tokenizer.json").read_bytes() != one.files[0].read_bytes()


def test_what_is_no_tokenizer_is_refused_in_one_line(tiny_models, tmp_path, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(ConfigError, match="Expected a pretrained language model for task sst2"):
        Tokenizer.load(None, str(tiny_models), 12, "sst2")
    with pytest.raises(ConfigError, match="task.max_length >= 8.* got 7"):
        Tokenizer.load("tiny/bert", str(tiny_models), 7, "sst2")
    with pytest.raises(MissingData, match="model tiny/gone in") as raised:
        Tokenizer.load("tiny/gone", str(tiny_models), 12, "sst2")
    assert "\n" not in str(raised.value)


def test_a_model_without_its_tokenizer_is_one_line_naming_the_folder(tiny_models, tmp_path):
    folder = tmp_path / "tiny" / "bert"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes(
        (tiny_models / "tiny" / "bert" / "config.json").read_bytes()
    )
    for damaged in (False, True):
        if damaged:
            (folder / "tokenizer.json").write_text("{")
        with pytest.raises(ConfigError, match="Expected a (readable )?tokenizer") as raised:
            Tokenizer.load("tiny/bert", str(tmp_path), 12, "sst2")
        assert str(folder) in str(raised.value) and "\n" not in str(raised.value)
