"""Train one model with one method on one task within one privacy budget.

python run.py method=rgp task=cifar10 eps=8
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import hydra
from hydra.errors import ConfigCompositionException, HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

CONF = Path(__file__).parent.resolve() / "conf"


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a run's plain config from command-line words, e.g. ["method=rgp", "task=digits"]."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        return plain(hydra.compose("config", list(overrides)))


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Resolve a composed config to dicts and lists.

    Raises:
        ConfigError: if the task has no default model under the profile.
    """
    from dpexp.types import ConfigError

    try:
        return OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    except MissingMandatoryValue as error:
        if not str(error.full_key or "").startswith("model"):
            raise
        raise ConfigError(
            f"Expected a model: task {cfg.task.name} has no default one under profile "
            f"{cfg.profile.name}. Set model, one of {', '.join(_options('model'))}."
        ) from None


def execute(config: dict[str, Any]) -> Path:
    """Run what a config asks for, or look it up where it is done; return the run's directory."""
    from dpexp import ranks, records

    done = records.find(config["results"], config)
    if done is None:
        ranks.launch(_work, config)
        done = records.find(config["results"], config)
    return done.directory


def build_parts(config: dict[str, Any], device: Any) -> Any:
    """Instantiate task, model, method, optimizer and schedule; weights come from the seed."""
    import torch

    from dpexp.mechanism import generator
    from dpexp.train import Parts

    task = _make(config["task"])
    torch.manual_seed(generator(config["seed"], "init", 0).initial_seed())
    shape = {"in_channels": task.input_shape[0], "num_classes": task.num_classes}
    model = _make(config["model"], without=("name", "head"), **shape).to(device)
    method = _make(config["method"], without=("name",))
    schedule = _make(config["schedule"])

    def make_optimizer(weights: list[Any]) -> Any:
        return _make(config["optimizer"], params=weights)

    return Parts(task, model, method, make_optimizer, schedule)


def estimate(config: dict[str, Any]) -> tuple[float, float]:
    """Estimate a run's seconds and peak megabytes on this machine from a few real steps."""
    from dpexp import ranks, train

    device = ranks.choose_device(config["device"])
    return train.estimate(config, build_parts(config, device), ranks.Ranks(0, 1, device))


def _work(ranks: Any, config: dict[str, Any]) -> None:
    from dpexp.train import train

    train(config, build_parts(config, ranks.device), ranks)


def _make(node: dict[str, Any], without: Sequence[str] = (), **more: Any) -> Any:
    arguments = {key: value for key, value in node.items() if key not in without}
    try:
        return hydra.utils.instantiate(arguments, **more)
    except hydra.errors.InstantiationException as error:
        raise error.__cause__ or error from None


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Run one job; its directory is the last line printed."""
    print(execute(plain(cfg)), flush=True)


def explain(error: Exception) -> str:
    """Turn a composition error into one line with the nearest valid name."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        group, _, name = error.missing_cfg_file.rpartition("/")
        options = error.options or _options(group)
        if not group or not options:
            return " ".join(str(error).split())
        return (
            f"Expected {group} to be one of {', '.join(options)}; got {group}={name}."
            + _nearest(name, options)
        )
    cause = error.__cause__ or error
    if isinstance(cause, ConfigKeyError | ConfigAttributeError) and cause.parent_node is not None:
        valid = [str(key) for key in cause.parent_node]
        place = str(cause.full_key)
        nearest = _nearest(place.rpartition(".")[2], valid)
        return f"Unknown key {place}; valid here: {', '.join(valid)}.{nearest}"
    return str(error).partition("\n")[0]


def _nearest(name: str, options: Sequence[str]) -> str:
    near = get_close_matches(name, options, 1, 0.5)
    return f" Did you mean {near[0]}?" if near else ""


def _options(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem != "auto")


def guarded(program: Any) -> None:
    """Run a program; a user's mistake becomes one line and exit code 2."""
    if {"--help", "-h"} & set(sys.argv):  # Hydra shows help for a composed config only
        sys.argv += ["method=rgp", "task=cifar10"]
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # Hydra then raises instead of printing
    warnings.showwarning = lambda message, *_: print(f"warning: {message}", file=sys.stderr)
    try:
        program()
    except (HydraException, OmegaConfBaseException, ConfigCompositionException) as error:
        sys.exit(_fail(explain(error)))
    except Exception as error:
        from dpexp.mechanism import PrivacyError
        from dpexp.records import RecordError
        from dpexp.types import ConfigError

        if not isinstance(error, ConfigError | RecordError | PrivacyError):
            raise
        sys.exit(_fail(str(error)))


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    guarded(main)
