"""A step that is repeated after a kill releases what it released before, or nothing."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from dpexp import cli, records
from dpexp.records import LEDGER, Ledger, Mark, RecordError, read_mark
from dpexp.training.train import train
from tests.runs import ALONE, SHORT, Killed, die, interrupted, of, one_thread  # noqa: F401 (a fixture)

OUTSIDE = {"factor": 1.0}
"""What the user's code reads, and no checkpoint has: a file, a clock, a variable."""


def factor():
    return OUTSIDE["factor"]


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    OUTSIDE["factor"] = 1.0


class Counting(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, inputs):
        self.calls += 1
        return self.model(inputs) * (1 + self.calls / 1000)


def in_the_model(parts):
    return replace(parts, model=Counting(parts.model))


def in_the_loss(parts):
    loss = parts.task.loss
    return replace(parts, task=replace(parts.task, loss=lambda *its: loss(*its) * factor()))


def in_the_data(parts):
    class Fading:
        def __init__(self, examples):
            self.examples = examples

        def __getattr__(self, name):
            return getattr(self.examples, name)

        def __len__(self):
            return len(self.examples)

        def batch(self, indices):
            batch = self.examples.batch(indices)
            return replace(batch, inputs=batch.inputs / factor())

        def to(self, device):
            return self

    return replace(parts, task=replace(parts.task, train=Fading(parts.task.train)))


def in_the_views(parts):
    class Fading:
        multiplicity = 1

        def draws(self, num_examples, gen):
            return torch.zeros(num_examples, 1)

        def views(self, batch, draws):
            return replace(batch, inputs=batch.inputs / factor())

    return replace(parts, augmentation=Fading())


def in_the_clipping(parts):
    class Shrinking(type(parts.clipping)):
        def weights(self, norms, bound):
            return super().weights(norms, bound) / factor()

    return replace(parts, clipping=Shrinking())


def in_the_method(parts):
    reconstruct = parts.method.reconstruct

    class Fading:
        def __getattr__(self, name):
            return getattr(parts.method, name)

        def reconstruct(self, state, noisy):
            gradients, state = reconstruct(state, noisy)
            return {name: each / factor() for name, each in gradients.items()}, state

    return replace(parts, method=Fading())


def in_the_optimizer(parts):
    class Slowing(torch.optim.SGD):
        def __init__(self, weights):
            super().__init__(weights, lr=0.1)

        def step(self, closure=None):
            self.param_groups[0]["lr"] = 0.1 / factor()
            return super().step(closure)

    return replace(parts, make_optimizer=Slowing)


PLACES = [in_the_model, in_the_loss, in_the_data, in_the_views]
PLACES += [in_the_clipping, in_the_method, in_the_optimizer]


@pytest.mark.parametrize("place", PLACES)
def test_a_step_that_comes_out_otherwise_is_not_released_again(place, tmp_path):
    """Its two sums would have the same noise, and their difference none."""
    config = cli.compose([*SHORT, f"results={tmp_path}", "checkpoint.steps=4"])
    parts = partial(cli.build_parts, config, ALONE.device)
    with pytest.raises(Killed):
        interrupted(config, place(parts()), 10, die)
    directory = records.locate(tmp_path, config)
    OUTSIDE["factor"] = 1.25
    with pytest.raises(RecordError, match=r"Step (9|10) was released before .* otherwise") as said:
        train(config, place(parts()), ALONE)
    assert "\n" not in str(said.value)
    assert read_mark(directory).steps == 10
    with pytest.warns(UserWarning, match="[12] steps? after step [89] .* came out otherwise"):
        train(config, place(parts()), ALONE)
    privacy = of(directory)[2]
    assert privacy["lost_steps"] == 11 - int(str(said.value).split()[1])
    assert privacy["steps"] == privacy["noise_draws"] == 12


def test_what_was_released_is_remembered_through_several_kills(tmp_path):
    config = cli.compose([*SHORT, f"results={tmp_path}", "checkpoint.steps=4"])
    parts = partial(cli.build_parts, config, ALONE.device)
    for at in (10, 11):
        with pytest.raises(Killed):
            interrupted(config, in_the_loss(parts()), at, die)
    before = read_mark(records.locate(tmp_path, config))
    assert before.steps == 11 and {*map(int, before.released)} == {*range(1, 12)}
    OUTSIDE["factor"] = 1.25
    with pytest.raises(RecordError, match="Step 9 was released before"):
        train(config, in_the_loss(parts()), ALONE)


ONE, OTHER = "0123456789abcdef", "0123456789abcdee"


def test_a_ledger_tells_a_release_from_another(tmp_path):
    begun = Mark("data", 3, surroundings={"a": 1}, run="abc")
    ledger = Ledger(tmp_path, begun, is_durable=False)
    for step in (4, 5):
        ledger.note(step)
        ledger.note_release(step, ONE)
    ledger.note(6)  # killed before it was released: it may come out as it likes
    ledger.close()
    killed = read_mark(tmp_path)
    assert killed == replace(begun, steps=6, released={"4": ONE, "5": ONE})
    again = Ledger(tmp_path, killed.resumed(3, {"a": 1}), is_durable=False)
    again.note_release(4, ONE)
    again.note_release(6, OTHER)
    with pytest.raises(RecordError, match="Step 5 was released"):
        again.note_release(5, OTHER)
    assert not again.can_repeat
    again.note_release(5, OTHER)  # of steps that are not repeated nothing is kept
    again.close()
    refused = read_mark(tmp_path)
    assert refused == replace(begun, steps=6, surroundings=None)
    assert refused.resumed(3, {"a": 1}).begun_at == 6


def test_a_release_whose_line_was_torn_had_not_begun(tmp_path):
    ledger = Ledger(tmp_path, Mark("data", 3, surroundings={}, run="abc"), is_durable=False)
    ledger.note(4)
    ledger.note_release(4, ONE)
    ledger.close()
    whole = (tmp_path / LEDGER).read_bytes()
    for cut in range(1, len(ONE) + 8):
        (tmp_path / LEDGER).write_bytes(whole[:-cut])
        assert read_mark(tmp_path) == Mark("data", 4, surroundings={}, run="abc")
