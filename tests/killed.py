"""Runs killed at random moments and begun again until they finish, each in a fork of one process.

python -m tests.killed RESULTS SEED KILLS prints one JSON line a run: its words, its directory, and
for every kill the number of steps that had been noted. The first of each method is not killed.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from dpexp import cli, records
from dpexp.distributed.ranks import Ranks, choose_device
from dpexp.training.train import make_mechanism

BRIEF = ["task=digits", "profile=embedded", "device=cpu", "model=cnn", "model.channels=[4,8]"]
BRIEF += ["batch_size=100", "epochs=0.7", "eval_every=0.2", "checkpoint.steps=1"]
METHODS = {  # each with a state: historic updates behind a warm-up, a mask's scores, anchors
    "rgp": ["method=rgp", "method.rank=4", "method.warm_up_steps=5"],
    "lsg": ["method=lsg", "method.rank=4"],
    "gep": ["method=gep", "public=shapes", "method.m=40", "method.k=10"],
}


def compose(name, results):
    return cli.compose([*METHODS[name], *BRIEF, f"results={results}"])


def warm(config):
    """Compute once what every fork would; nothing here may start a thread."""
    device = choose_device("cpu")
    parts = cli.build_parts(config, device)
    parts.make_optimizer(list(parts.model.parameters()))  # torch imports its compiler here
    state = parts.method.start(parts.model)
    mechanism = make_mechanism(
        config, parts.task.dataset_size, parts.method, state, Ranks(0, 1, device)
    )
    mechanism.certificate(steps=mechanism.num_steps, noise_draws=0, trainable={}, frozen={})
    records.code_sha256(), records.versions()


def fork(config):
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        cli.execute(config)
        code = 0
    finally:
        os._exit(code)


def finish(config):
    """Let a run come to its end; give the seconds it took."""
    began = time.monotonic()
    _, status = os.waitpid(fork(config), 0)
    assert status == 0, status
    return time.monotonic() - began


def said(name, config, kills):
    print(json.dumps([name, str(records.locate(config["results"], config)), kills]), flush=True)


def main(results, seed, kills):
    moments, lasts = random.Random(int(seed)), {}
    for name in METHODS:
        config = compose(name, f"{results}/unbroken")
        warm(config)
        lasts[name] = finish(config)
        said(name, config, [])
    left, chain = int(kills), 0
    while left:
        name = list(METHODS)[chain % len(METHODS)]
        config = compose(name, f"{results}/{chain}")
        directory, noted, status = records.locate(config["results"], config), [], -1
        while left and status:
            pid = fork(config)
            time.sleep(moments.uniform(0, lasts[name]))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            if status:
                assert os.WTERMSIG(status) == signal.SIGKILL, status
                mark = records.read_mark(Path(directory))
                noted.append(mark.steps if mark else 0)
                left -= 1
        if status:
            finish(config)
        said(name, config, noted)
        chain += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
