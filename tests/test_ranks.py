"""Several processes train what one does, stop and die as one, and go on in another number."""

import json
import os
import re
import signal
import subprocess
import time
from dataclasses import replace
from operator import ne
from pathlib import Path

import pytest
import torch
from torch import nn

from dpexp import cli, records
from dpexp.distributed.processes import launch
from dpexp.distributed.ranks import RankLost, Ranks, buckets, choose_device
from dpexp.privacy.sampling import poisson
from dpexp.training.gradient import PrivateGradient
from dpexp.training.ledger import surroundings_of
from dpexp.training.train import make_mechanism, train
from dpexp.types import ConfigError
from tests.marks import few, long
from tests.programs import by_hand, by_torchrun
from tests.runs import CONFIGS, execute, of, one_thread, with_words  # noqa: F401 (a fixture)

ROOT = Path(__file__).resolve().parents[1]
CPU = torch.device("cpu")
# At a rate of 2: rounding moves ReLUs, and longer steps make more of it
# (docs/decisions/runs.md, "Ranks equal one process to rounding").
DIGITS = ["task=digits", "profile=embedded", "device=cpu", "model=wrn10_1", "optimizer.lr=2"]
TWENTY = [*DIGITS, "batch_size=72", "epochs=1"]  # 20 steps
WORDS = {
    "dpsgd": TWENTY,
    "rgp": TWENTY,
    "lsg": TWENTY,
    "gep": [*TWENTY, "public=shapes", "method.m=40", "method.k=10"],
    "rgp_core": [*TWENTY, "public=shapes", "method.public_examples=20", "method.rank=4"],
    "rgp, a few examples": [*DIGITS, "batch_size=2", "epochs=0.0278", "optimizer.lr=0.05"],
    "rgp in float64": TWENTY,
}
BOUNDS = {name: 1e-12 if "float64" in name else 1e-5 for name in WORDS}


# What is trained


class Smooth(nn.Module):
    """Has no ReLU, across whose zero float32's rounding would move an activation now and then."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1, bias=False)
        self.head = nn.Linear(16, 10, bias=False)

    def forward(self, x):
        return self.head(self.conv2(self.conv1(x).tanh()).tanh().mean((2, 3)))


def but_weights(privacy):
    """Return a certificate without its hash of weights, which ranks' sums round otherwise."""
    return {key: value for key, value in privacy.items() if key != "weights_sha256"}


def parts_of(name, job):
    """Build a run's parts: of a network without kinks, or of the suite's own in float64."""
    parts = cli.build_parts(job, CPU)
    if "float64" not in name:
        torch.manual_seed(0)
        parts.model = Smooth()
        return parts
    parts.model.double()
    train_set, test_set = (
        replace(some, inputs=some.inputs.double()) for some in (parts.task.train, parts.task.test)
    )
    parts.task = replace(parts.task, train=train_set, test=test_set)
    return parts


def composed(name, results, epochs=1):
    """Compose a run of WORDS, or a part of an epoch of those that have a whole one."""
    words = [word.replace("epochs=1", f"epochs={epochs}") for word in WORDS[name]]
    words = [f"method={re.split('[ ,]', name)[0]}", *words, f"results={results}"]
    return CONFIGS.compose_anew(words)


def place(folder, name):
    """Say where a run of WORDS is kept: two are one run by their config, in another precision."""
    return folder / str([*WORDS].index(name))


def train_all(ranks, config):
    """Do every run of WORDS on these ranks; the first writes the weights."""
    torch.set_num_threads(1)
    folder = Path(config["folder"])
    for name, job in config["jobs"].items():
        parts = parts_of(name, job)
        train(job, parts, ranks)
        if ranks.is_first:
            torch.save(parts.model.state_dict(), folder / f"{name}.pt")
    torch.save(halved(ranks, config["jobs"]["dpsgd"]), folder / f"halved by {ranks.rank}.pt")
    alike, other = (
        surroundings_of({"model": {}}, data, nn.Linear(1, 1), ranks, {})["other_ranks"]
        for data in ("data", f"data of {ranks.rank}")
    )
    assert len(other) == ranks.size - 1 and all(map(ne, alike, other))
    tensors = reducible(ranks.rank)
    ranks.all_reduce(tensors)
    if not ranks.is_first:
        torch.save(tensors, folder / "reduced.pt")
    added = reducible(ranks.rank)
    ranks.reduce(added)
    if ranks.is_first:
        torch.save(added, folder / "added.pt")
    for alone in (False, True):  # a tensor alone in its call is sent as it lies, where it can be
        given = varied(ranks.rank)
        for some in [[tensor] for tensor in given] if alone else [given]:
            ranks.broadcast(some)
        assert all(map(torch.equal, given, varied(0)))


def halved(ranks, config):
    """Take a step for which the second rank alone has too little memory; give the size after it."""

    def run_out(_, __, output):
        if len(output) > 5:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GB. GPU 0")

    parts = parts_of("dpsgd", config)
    if ranks.rank == 1:
        parts.model.head.register_forward_hook(run_out)
    state, task = parts.method.start(parts.model), parts.task
    mechanism = make_mechanism(config, task.dataset_size, parts.method, state, ranks)
    with PrivateGradient(parts.model, parts.method, mechanism, ranks, 80) as gradient:
        gradient(state, task.train, 0)
        return gradient.micro_batch


def reducible(rank):
    """Make tensors of several shapes and kinds, other numbers on every rank."""
    gen = torch.Generator().manual_seed(rank)
    kinds = (torch.float32, torch.float64, torch.float32, torch.float64)
    shapes = ((3, 4), (5,), (0, 2), (2, 1, 2))
    return [torch.randn(s, generator=gen, dtype=k) for s, k in zip(shapes, kinds, strict=True)]


def varied(rank):
    """Make tensors of every layout and kind, other numbers on every rank."""
    gen = torch.Generator().manual_seed(rank)
    plain = torch.randn(4, 6, generator=gen)
    whole = torch.randint(-9, 10, (7,), generator=gen)
    strided = [plain.clone().T, plain.clone()[:, :1], plain.clone()[::2], plain.clone()[:, 1:4]]
    return [plain, *strided, plain.double(), plain.sum(), plain[:0], whole, whole > rank - 1]


def distance(one, other):
    """Return the largest difference of two models' weights."""
    return max(float((one[name] - other[name]).abs().max()) for name in one)


SHORT = ["dpsgd", "gep", "rgp, a few examples", "rgp in float64"]
"""Those that the short test does: the others' steps are made as one of these is."""


@pytest.mark.parametrize(("epochs", "names"), [(0.25, SHORT), long(1, [*WORDS])])
def test_three_ranks_train_the_weights_that_one_process_does(epochs, names, tmp_path):
    """One test, since starting ranks takes longer than all that they do; two are tried below."""
    folders = {size: tmp_path / str(size) for size in (1, 3)}
    for size, folder in folders.items():
        folder.mkdir()
        jobs = {name: composed(name, place(folder, name), epochs) for name in names}
        asked = {"device": "cpu", "ranks": size, "folder": str(folder), "jobs": jobs}
        launch(train_all, asked)
    for name in names:
        alone, shared = (torch.load(folder / f"{name}.pt") for folder in folders.values())
        assert distance(alone, shared) <= BOUNDS[name], name
        config = composed(name, "nowhere", epochs)
        first = parts_of(name, config).model.state_dict()
        assert distance(alone, first) > 0.01, name  # it was trained
        (_, result, privacy), (_, _, same) = (
            of(records.locate(place(folders[n], name), config)) for n in (3, 1)
        )
        steps = 20 if "few" in name else 20 * epochs
        assert (result["ranks"], result["steps"]) == (3, steps)
        assert but_weights(privacy) == but_weights(same), name  # the same mechanism and noise
    expected = [sum(each) for each in zip(*map(reducible, range(3)), strict=True)]
    for name in ("reduced", "added"):
        for total, right in zip(torch.load(folders[3] / f"{name}.pt"), expected, strict=True):
            torch.testing.assert_close(total, right)
    assert {torch.load(folders[3] / f"halved by {n}.pt") for n in range(3)} == {5}
    assert torch.load(folders[1] / "halved by 0.pt") == 80


def test_among_these_draws_are_shares_without_examples():
    draws = [len(poisson(0, step, 1437, 2 / 1437)) for step in range(20)]
    assert {0, 1, 2} <= set(draws)


def test_tensors_share_a_call_up_to_a_size_and_with_their_kind():
    kinds = [torch.float32, torch.float64, torch.float32, torch.float32, torch.float32]
    tensors = [torch.zeros(n, dtype=k) for n, k in zip([3, 1, 4, 20, 2], kinds, strict=True)]
    of_lists = [[len(tensor) for tensor in each] for each in buckets(tensors, size=10)]
    assert of_lists == [[3, 4], [20], [2], [1]]


# How runs end


def command(results, *words):
    usual = [*DIGITS, "method=rgp", "batch_size=72", "eval_every=0.1", f"results={results}"]
    return with_words(usual, words)


def lasting(results):
    """Say a run on two ranks that would take minutes, and starts soon."""
    quick = ["method=nonprivate", "task=shapes", "profile=embedded", "device=cpu", "model=cnn"]
    quick += ["model.channels=[4,8]", "batch_size=72", "eval_every=0.1", "epochs=100", "ranks=2"]
    return ["run.py", *quick, f"results={results}"]


def struck(programs, arguments, strike, ignored=()):
    """Start a run on two ranks, strike once it trains, and give how it ended.

    As from a shell's foreground; what is put into the background ignores SIGINT.

    Returns:
        Exit code, what it said from then on, its ranks' process ids.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with programs.start(
        arguments, env=environment, stderr=subprocess.PIPE, ignored=ignored
    ) as process:
        for line in process.stderr:
            if "step " in line:
                break
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        ranks = [int(child) for child in children if is_rank(child)]
        strike(process.pid, ranks)
        said = [line.rstrip() for line in process.stderr if "examples/s" not in line]
    return process.wait(), said, ranks


def sent(number, whom):
    """Make a strike: a signal to the process that started the ranks, a rank, or all."""

    def strike(pid, ranks):
        for each in {"parent": [pid], "second": ranks[1:], "all": [pid, *ranks]}[whom]:
            os.kill(each, number)

    return strike


def is_rank(pid):
    """Return whether a process lives and is a spawned one; what is dead has no command line."""
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs Linux")


@pytest.mark.long
@needs_proc
def test_a_killed_rank_ends_the_run_with_one_line_and_leaves_nobody(tmp_path, programs):
    code, said, ranks = struck(programs, lasting(tmp_path), sent(signal.SIGKILL, "second"))
    assert code == 2
    (line,) = said
    assert line.startswith("error: Rank 1 of 2 died, and the run with it: SIGKILL")
    assert line.endswith("Run it again to go on from its last checkpoint.")
    assert len(ranks) == 2 and not any(map(is_rank, ranks))
    assert (tmp_path / "embedded").is_dir()
    assert not any((tmp_path / "embedded" / "locks").glob("*"))


@pytest.mark.long
@needs_proc
def test_ranks_do_not_outlive_the_process_that_started_them(tmp_path, programs):
    left = []

    def strike(pid, ranks):
        os.kill(pid, signal.SIGKILL)
        tries = 100
        while tries and any(map(is_rank, ranks)):
            time.sleep(0.1)
            tries -= 1
        left.extend(filter(is_rank, ranks))
        for rank in left:
            os.kill(rank, signal.SIGKILL)

    code, _, ranks = struck(programs, lasting(tmp_path), strike, ignored=[signal.SIGINT])
    assert code == -signal.SIGKILL
    assert len(ranks) == 2 and left == []


@pytest.mark.long
@needs_proc
def test_ctrl_c_is_one_line(tmp_path, programs):
    interrupt = sent(signal.SIGINT, "all")  # as a terminal does
    code, said, ranks = struck(programs, lasting(tmp_path), interrupt)
    assert code == 128 + signal.SIGINT
    (line,) = said
    assert line.startswith("error: Interrupted. The same command goes on from the last checkpoint")
    assert not any(map(is_rank, ranks))


def train_smooth(ranks, config):
    torch.set_num_threads(1)
    train(config, parts_of("rgp", config), ranks)


SMOOTH = """
import json, logging, signal, sys
signal.signal(signal.SIGUSR2, lambda *_: sys.exit(75))  # as submitit queues a job again
from dpexp.distributed.processes import launch
from tests.test_ranks import train_smooth
logging.basicConfig(level=logging.INFO, format="%(message)s")
launch(train_smooth, json.loads(sys.argv[1]))
"""


@needs_proc
def test_ranks_that_are_stopped_save_and_one_process_goes_on(tmp_path, programs):
    """By Slurm's signal at a time limit, which every process gets; the ranks hear SIGTERM."""
    there, other = (
        cli.compose(command(tmp_path / name, "epochs=2", "ranks=2")) for name in ("there", "other")
    )
    stop = sent(signal.SIGUSR2, "all")
    code, said, ranks = struck(programs, ["-c", SMOOTH, json.dumps(there)], stop)
    assert code == 75
    assert re.fullmatch(r"stopped at step \d+; run it again to go on", said[-1]) and len(said) == 1
    assert not any(map(is_rank, ranks))
    weights, ends = [], []
    for config in (there, other):
        parts = parts_of("rgp", config)
        train(config, parts, Ranks(0, 1, CPU))
        weights.append(parts.model.state_dict())
        ends.append(of(records.locate(config["results"], config)))
    assert distance(*weights) <= 1e-5
    assert ends[0][1]["steps"] == 40
    assert but_weights(ends[0][2]) == but_weights(ends[1][2])
    for one, two in zip(ends[0][0], ends[1][0], strict=True):
        assert one == pytest.approx(two, rel=1e-5)


def fail_on_the_second(ranks, _):
    if ranks.rank == 1:
        raise ValueError("too\nmuch" * 20_000)  # more than fits between two processes unread
    ranks.all_reduce([torch.zeros(1)])


@pytest.mark.long
def test_an_error_on_one_rank_is_told_as_that_rank_s(caplog):
    with pytest.raises(RankLost, match="Rank 1 of 2 died.*: ValueError: too much"):
        launch(fail_on_the_second, {"device": "cpu", "ranks": 2})
    assert "in fail_on_the_second" in caplog.text  # where, for us


def test_a_mistake_under_several_processes_is_still_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"Set method\.rank"):
        execute(tmp_path, "method=rgp", *DIGITS, "method.rank=500", "ranks=2")


@pytest.mark.parametrize("start", few([by_torchrun, by_hand], [by_hand]))
def test_under_torchrun_the_first_rank_names_the_directory_and_the_run_is_the_same(
    start, tmp_path, programs
):
    words = ["epochs=0.2", "optimizer.lr=0.02"]
    shared = command(tmp_path / "two", *words)
    codes, printed = start(programs, shared)
    assert not any(codes)
    directory = records.locate(tmp_path / "two", cli.compose(shared))
    assert printed == f"{directory}\n"
    (lines, result, privacy) = of(directory)
    (right, _, same) = of(cli.execute(cli.compose(command(tmp_path / "one", *words))))
    assert result["ranks"] == 2 and but_weights(privacy) == but_weights(same)
    for one, two in zip(lines, right, strict=True):
        assert one["train_loss"] == pytest.approx(two["train_loss"], rel=1e-5)
        assert one["step"] == two["step"]
        assert one["epsilon"] == pytest.approx(two["epsilon"], rel=1e-12)  # torchrun's one thread


def test_a_gpu_that_the_machine_lacks_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1").index == 1 and choose_device("cuda").index is None
    for wanted in ("cuda:2", "cuda:99"):
        with pytest.raises(ConfigError, match="2 GPUs, numbered from 0"):
            choose_device(wanted)
    for wanted in ("cuda:999", "cpu:999"):  # which torch takes for -25
        with pytest.raises(ConfigError, match=f"got device={wanted}"):
            choose_device(wanted)
