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

from dpexp import cli, records
from dpexp.distributed.ranks import Ranks, choose_device
from dpexp.training.train import make_mechanism

BRIEF = ["task=digits", "profile=embedded", "device=cpu", "model=cnn", "model.channels=[4,8]"]
BRIEF += ["batch_size=100", "epochs=0.7", "eval_every=0.2", "checkpoint.steps=1"]
KILLS_A_RUN = 3
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
    _, status = os.waitpid(fork(config), 0)
    assert status == 0, status


def steps_noted(directory):
    mark = records.read_mark(directory)
    return mark.steps if mark else 0


def end_at(config, step, delay):
    """Kill a run `delay` seconds after it noted `step`; the wait's status, 0 if it ended before.

    On a busy machine one run's seconds tell nothing of another's; its steps do.
    """
    directory, pid = records.locate(config["results"], config), fork(config)
    while steps_noted(directory) < step:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.001)
    time.sleep(delay)
    os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def said(name, config, kills):
    print(json.dumps([name, str(records.locate(config["results"], config)), kills]), flush=True)


def main(results, seed, kills):
    moments, steps, seconds = random.Random(int(seed)), {}, {}
    for name in METHODS:
        config = compose(name, f"{results}/unbroken")
        warm(config)
        began = time.monotonic()
        finish(config)
        steps[name] = steps_noted(records.locate(config["results"], config))
        seconds[name] = (time.monotonic() - began) / steps[name]
        said(name, config, [])
    left, chain = int(kills), 0
    while left:
        name = list(METHODS)[chain % len(METHODS)]
        config = compose(name, f"{results}/{chain}")
        noted, status = [], -1
        for step in sorted(moments.sample(range(steps[name]), min(left, KILLS_A_RUN))):
            status = end_at(config, step, delay=moments.uniform(0, seconds[name]))
            if not status:
                break
            assert os.WTERMSIG(status) == signal.SIGKILL, status
            noted.append(steps_noted(records.locate(config["results"], config)))
        left -= len(noted)
        if status:
            finish(config)
        said(name, config, noted)
        chain += 1


if __name__ == "__main__":
    main(*sys.argv[1:])
