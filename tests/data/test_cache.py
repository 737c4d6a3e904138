import pytest
import torch

from dpexp.data import cache
from dpexp.records.caches import cache_dir


def entries(folder):
    return sorted((folder / "decoded").glob("*"))


def test_files_are_decoded_once(tmp_path, own_cache):
    file = tmp_path / "file"
    file.write_bytes(b"content")
    decodings = []

    def decode():
        decodings.append(1)
        return torch.arange(6, dtype=torch.uint8).view(2, 3), torch.tensor([0, 1])

    first, again = (cache.decoded([file], "recipe", decode) for _ in range(2))
    assert len(decodings) == 1
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    file.write_bytes(b"Content")
    cache.decoded([file], "recipe", decode)
    cache.decoded([file], "another recipe", decode)
    assert len(decodings) == 3 and len(entries(own_cache)) == 3


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "one bit", "another file"])
def test_a_damaged_entry_is_decoded_anew(damage, cifar, own_cache):
    honest = cifar()
    for entry in entries(own_cache):
        whole = bytearray(entry.read_bytes())
        if damage == "one bit":
            whole[len(whole) // 2] ^= 1
        if damage == "another file":
            torch.save({"inputs": torch.zeros(2), "targets": torch.zeros(2)}, entry)
            continue
        damaged = {"truncated": whole[:-100], "garbage": b"x" * 99, "empty": b"", "one bit": whole}
        entry.write_bytes(damaged[damage])
    task = cifar()
    assert task.fingerprint == honest.fingerprint
    assert torch.equal(task.train.inputs, honest.train.inputs)
    assert cifar().fingerprint == honest.fingerprint


def test_a_cache_that_cannot_be_written_costs_no_run(cifar, tmp_path, monkeypatch, caplog):
    (tmp_path / "a file").write_text("not a folder")
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "a file"))
    assert len(cifar().train) == 40
    assert caplog.text.count("Cannot cache decoded examples") == 1  # of two splits


def test_no_half_written_entry_is_left_behind(cifar, own_cache, monkeypatch):
    def full_disk(content, stream):
        stream.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    assert len(cifar().train) == 40
    assert entries(own_cache) == []


def test_the_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("DPEXP_CACHE", str(tmp_path / "own"))
    assert cache_dir() == tmp_path / "own"
    monkeypatch.delenv("DPEXP_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "dpexp"
