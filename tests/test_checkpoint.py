"""Checkpoints survive kills, torn files and full disks."""

import os
import pickle
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch

from dpexp.records.weights import digest
from dpexp.training import checkpoint

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


def state(step):
    return {"step": step, "weights": {"w": torch.full((300,), float(step))}, "names": ["a", "b"]}


def assert_is(loaded, step):
    assert loaded["step"] == step and loaded["names"] == ["a", "b"]
    assert torch.equal(loaded["weights"]["w"], state(step)["weights"]["w"])


def test_a_state_comes_back_as_it_was(path):
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    saved = {"optimizer": optimizer.state_dict(), "rng": torch.get_rng_state(), "step": 1}
    checkpoint.save(path, saved)
    loaded = checkpoint.load(path)
    torch.testing.assert_close(loaded["optimizer"], saved["optimizer"])
    assert torch.equal(loaded["rng"], saved["rng"])


def test_the_last_two_are_kept(path):
    assert checkpoint.load(path) is None
    for step in (1, 2, 3):
        checkpoint.save(path, state(step))
    assert_is(checkpoint.load(path), 3)
    assert sorted(os.listdir(path.parent)) == ["checkpoint.prev.pt", "checkpoint.pt"]
    path.unlink()
    assert_is(checkpoint.load(path), 2)


def torn(data):
    return data[: len(data) // 2]


def flipped(data):
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


@pytest.mark.filterwarnings("ignore:Checkpoint .*checkpoint.pt is damaged")
@pytest.mark.parametrize("damage", [torn, flipped, lambda data: b"", lambda data: data[:-1]])
def test_a_damaged_file_is_noticed_and_the_one_before_it_used(path, damage):
    checkpoint.save(path, state(1))
    checkpoint.save(path, state(2))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.warns(UserWarning, match="checkpoint.pt is damaged"):
        assert_is(checkpoint.load(path), 1)
    checkpoint.previous(path).write_bytes(b"")
    with pytest.warns(UserWarning, match="checkpoint.prev.pt is damaged"):
        assert checkpoint.load(path) is None


def test_a_kill_between_the_two_renames_loses_nothing(path):
    checkpoint.save(path, state(1))
    checkpoint.save(path, state(2))
    path.rename(path.with_name("checkpoint.next.pt"))
    assert_is(checkpoint.load(path), 2)
    checkpoint.save(path, state(3))
    assert_is(checkpoint.load(path), 3)
    assert not path.with_name("checkpoint.next.pt").exists()


def test_a_kill_before_the_first_rename_loses_nothing(path):
    checkpoint.save(path, state(1))
    before = path.read_bytes()
    checkpoint.save(path, state(2))
    path.rename(path.with_name("checkpoint.next.pt"))
    path.write_bytes(before)
    assert_is(checkpoint.load(path), 2)


FILL = """
import resource, sys, torch
from dpexp.training import checkpoint
from dpexp.records import RecordError
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
try:
    checkpoint.save(sys.argv[1], {"weights": torch.zeros(100_000)})
except RecordError as error:
    print(error)
"""


def test_a_full_disk_leaves_the_earlier_checkpoint(path, programs):
    checkpoint.save(path, state(1))
    done = programs.run(["-c", FILL, str(path)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Cannot write ") and done.stdout.count("\n") == 1
    assert "File too large" in done.stdout
    assert os.listdir(path.parent) == ["checkpoint.pt"]
    assert_is(checkpoint.load(path), 1)


SAVE_FOREVER = """
import sys, torch
from dpexp.training import checkpoint
step = 0
while True:
    step += 1
    state = {"step": step, "weights": {"w": torch.full((300,), float(step))}, "names": ["a", "b"]}
    checkpoint.save(sys.argv[1], state)
    print(step, flush=True)
"""


def test_a_kill_at_any_moment_leaves_a_whole_checkpoint(path, programs):
    command = ["-c", SAVE_FOREVER, str(path)]
    with programs.start(command, stdout=subprocess.PIPE) as process:
        for _ in range(20):
            process.stdout.readline()
        time.sleep(0.0123)
        process.send_signal(signal.SIGKILL)
        said = process.stdout.read().split()
    last = int(said[-1]) if said else 20
    loaded = checkpoint.load(path)
    assert loaded["step"] in (last, last + 1)
    assert_is(loaded, loaded["step"])


def test_nothing_but_plain_data_is_loaded(path):
    checkpoint.save(path, {"path": Path("x")})
    with pytest.raises(pickle.UnpicklingError, match="weights_only|Weights only"):
        checkpoint.load(path)


def test_a_hash_tells_any_bit_any_name_and_any_shape(path):
    tensors = {"a": torch.randn(3, 4), "b": torch.arange(5)}
    same = {"b": torch.arange(5), "a": tensors["a"].t().contiguous().t()}  # laid out otherwise
    assert digest(tensors) == digest(same)
    bit = tensors["a"].clone()
    bit.view(torch.int32)[1, 2] ^= 1
    others = [{"a": bit}, {"a": tensors["a"].view(4, 3)}, {"b": torch.arange(5).int()}]
    renamed = {"a": tensors["a"], "c": tensors["b"]}
    hashes = {digest(some) for some in (tensors, *[tensors | o for o in others], renamed)}
    assert len(hashes) == 5
    checkpoint.save(path, tensors)
    assert digest(checkpoint.load(path)) == digest(tensors)
