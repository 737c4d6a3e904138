"""Train one model with one method on one task within one privacy budget.

python run.py method=rgp task=cifar10 eps=8
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from scripts import mistakes
from scripts.mistakes import CONF
from scripts.quotes import readable
from scripts.targets import admit, loop_of, make, parameters, said


def up_to(value: Any, *choices: Any) -> Any:
    """Choose by a number, in conf: `${up_to:${eps},2,20,50}` is 20 for eps <= 2, else 50.

    Args:
        value: what is no number, such as None, takes the last choice.
        choices: bounds in ascending order, each before what it stands for; then the rest's.
    """
    if isinstance(value, int | float):
        for bound, chosen in zip(choices[::2], choices[1::2], strict=False):
            if value <= bound:
                return chosen
    return choices[-1]


OmegaConf.register_new_resolver("up_to", up_to, replace=True)
OmegaConf.register_new_resolver(
    "options", lambda group: ", ".join(mistakes.options_of(group)), replace=True
)

# Launchers' configs bear their plugins' names on purpose: `hydra/launcher=joblib` means either.
warnings.filterwarnings("ignore", r"\s*'hydra/launcher/\w+' is validated against ConfigStore")


def compose(overrides: Sequence[str]) -> dict[str, Any]:
    """Compose a run's plain config from command-line words, e.g. ["method=rgp", "task=digits"]."""
    from dpexp.types import ConfigError

    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        try:
            cfg = hydra.compose("config", readable(overrides))
        except ValueError as error:
            if str(error).startswith(mistakes.NAMELESS):
                raise ConfigError(mistakes.unnamed(overrides) or str(error)) from None
            raise
        return plain(cfg, overrides)


def plain(cfg: DictConfig, overrides: Sequence[str]) -> dict[str, Any]:
    """Resolve a config, composed from these overrides, to dicts and lists.

    Raises:
        ConfigError: if method or task is not chosen, or has no default model under the profile; or
            for a setting that no run can mean.
    """
    from dpexp.records import present_names
    from dpexp.types import ConfigError

    for group in ("method", "task"):
        if group not in cfg:
            raise ConfigError(
                f"Expected a {group}: none was chosen. Set {group}, one of "
                f"{', '.join(mistakes.options_of(group))}."
            )
    if OmegaConf.is_missing(cfg.model, "name"):
        raise ConfigError(
            f"Expected a model: task {cfg.task.name} has no default one under profile "
            f"{cfg.profile.name}. Set model, one of {', '.join(mistakes.options_of('model'))}."
        )
    from scripts import settings

    settings.check_names(overrides)
    config = OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    config = settings.at_home(present_names(config))
    settings.check(config)
    return config


def execute(config: dict[str, Any]) -> Path:
    """Run what a config asks for, or look it up where it is done; return the run's directory.

    Raises:
        records.Busy: another process is doing it.
    """
    from dpexp import records
    from dpexp.distributed import processes

    admit(config["method"]["_target_"])  # a finished run is looked up, and may be verified
    results = config["results"]
    if processes.is_torchrun():
        processes.launch(_work_as_first_says, config)
    elif records.find(results, config) is None:
        with records.held(results, config):
            if records.find(results, config) is None:
                processes.launch(_work, config)
    return records.locate(results, config)


def _done_before(config: dict[str, Any]) -> str:
    """Say what is looked up, where the run is done; "" where it is not.

    Raises:
        ConfigError: if it was made of other bytes, of data, weights or a tokenizer, than are here.
        RecordError: if its result is none that a run writes.
    """
    from dpexp import records
    from dpexp.artifacts.plain import clean
    from scripts import sources

    found = records.find(config["results"], config)
    if found is None:
        return ""
    result = found.result
    bytes_here = sources.compare(config, result)
    sources.refuse_other(found.directory, bytes_here)
    metric = result.get("metric", "an accuracy that is not named")
    value = "no number" if result.get(metric) is None else f"{result[metric]:.4g}"
    spent = "" if result.get("eps") is None else f", eps {result['eps']:g}"
    where = clean(result.get("device", "a device that is not named"))
    line = f"done before: {clean(metric)} {value}{spent}, on {where}; results=FOLDER runs it anew"
    return f"{line}. Note: {bytes_here.unknown}" if bytes_here.unknown else line


def build_parts(config: dict[str, Any], device: Any) -> Any:
    """Instantiate task, model, method, optimizer and schedule; weights come from the seed."""
    import torch

    from dpexp.models.vocabulary import require_vocabulary
    from dpexp.privacy.seeds import generator
    from dpexp.training.train import Parts
    from scripts import sources

    method, analyses = _takers(config)
    task = build_task(config, device, method, analyses)
    fitted = _fit(config["model"], task)  # whether it is of the task's kind is said first
    torch.manual_seed(generator(config["seed"], "init", 0).initial_seed())
    model = make("model", config["model"], without=("name", "head", "tokenizer"), **fitted)
    require_vocabulary(model, task.train)
    model = model.to(device)
    if "prompts" in config:
        make("prompts", config["prompts"], given=(model, task.num_classes))
    if warm_start := config.get("warm_start"):
        make("warm_start", warm_start, given=(model, task))
    schedule = make("schedule", said(config["schedule"]))

    def make_optimizer(weights: list[Any]) -> Any:
        return make("optimizer", said(config["optimizer"]), params=weights)

    attack, weights = _attack(config), sources.pretrained(config)
    return Parts(task, model, method, make_optimizer, schedule, attack, analyses, weights)


def build_task(
    config: dict[str, Any], device: Any, method: Any = None, analyses: Any = None
) -> Any:
    """Load a run's data: its task, the public set where something takes it, and features.

    Args:
        config: of the run, or what of it decides its data; without a method nothing is public.
        device: where features are computed.
        method: made from the config; None: made here, as are its analyses.
        analyses: likewise, by name.
    """
    if method is None and "method" in config:
        method, analyses = _takers(config)
    public_size = 0 if method is None else max(t.public_size for t in (method, *analyses.values()))
    if config.get("warm_start"):
        public_size = max(public_size, config["warm_start"]["examples"])
    task = _with_public(make("task", config["task"]), public_size, config)
    if "features" in config:
        task = make("features", config["features"], given=(task, device))
    return task


def _takers(config: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Instantiate what may take public examples: the method, and analyses by name."""
    chosen = config.get("analysis", {})
    analyses = {name: make(f"analysis.{name}", node) for name, node in chosen.items()}
    kind = "method of a loop" if "loop" in config else "method"
    return make("method", config["method"], without=("name",), kind=kind), analyses


def _attack(config: dict[str, Any]) -> Any:
    """Instantiate what measures the run's leakage, where it is to be measured."""
    from dpexp.types import ConfigError

    chosen = [group for group in ("attack", "audit") if group in config]
    if len(chosen) > 1:
        raise ConfigError("Expected an attack or an audit; got both. Leave one out.")
    return make(chosen[0], config[chosen[0]], without=("name",)) if chosen else None


def estimate(config: dict[str, Any]) -> tuple[float, float]:
    """Estimate a run's seconds and peak megabytes on this machine from a few real steps."""
    from dpexp.distributed import ranks

    device = ranks.choose_device(config["device"])
    parts = build_parts(config, device)
    return loop_of(config).estimate(config, parts, ranks.Ranks(0, 1, device))


def _work_as_first_says(ranks: Any, config: dict[str, Any]) -> None:
    """Do what one of torchrun's ranks has to; the others may not see the first one's disk."""
    from dpexp import records

    results = config["results"]
    with records.held(results, config) if ranks.is_first else nullcontext():
        if ranks.from_first(ranks.is_first and records.find(results, config) is None):
            _work(ranks, config)


def _work(ranks: Any, config: dict[str, Any]) -> None:
    from dpexp.distributed import memory
    from scripts import settings

    memory.keep_pages()
    remedy = "Set micro_batch=auto, a smaller model, or another device."
    with memory.in_one_line("the run", remedy):
        parts = build_parts(config, ranks.device)
        # Devices of different kinds round differently.
        if "warm_start" in config and ranks.size > 1:
            parts.model.load_state_dict(ranks.from_first(parts.model.state_dict()))
        if ranks.is_first and (line := settings.unscaled(config)):
            warnings.warn(line, stacklevel=2)
        takes_public = "public_size" in vars(parts.method)  # which its settings may make 0
        if ranks.is_first and "public" in config and parts.task.public is None and not takes_public:
            warnings.warn(
                f"public={config['public']['name']} has no effect: "
                f"method={config['method']['name']} takes no public examples as it is set.",
                stacklevel=2,
            )
        loop_of(config).train(config, parts, ranks)


def _with_public(task: Any, size: int, config: dict[str, Any]) -> Any:
    """Load the chosen public set where the method takes `size` examples of one."""
    if not size:
        return task
    from dpexp.data.public import require  # two seconds, which other runs can do without

    if "public" in config:
        task = make("public", config["public"], given=(task,))
    require(task, size)
    return task


def _fit(node: dict[str, Any], task: Any) -> dict[str, Any]:
    """Give what a model asks for of the task's shape."""
    from dpexp.types import ConfigError

    takes = parameters("model", node)
    channels, *size = task.input_shape
    longest = getattr(task.train, "longest", None)
    if ("max_length" in takes) != (longest is not None):
        kinds = ("texts", "a language model") if longest else ("no texts", "another model")
        raise ConfigError(
            f"Expected {kinds[1]} for task {task.name}, which is of {kinds[0]}; got "
            f"model={node['name']}. Set model."
        )
    if "in_channels" in takes and len(size) != 2:
        raise ConfigError(
            f"Expected a model for inputs of shape {tuple(task.input_shape)}, those of task "
            f"{task.name} here; model={node['name']} takes images. Set model=linear."
        )
    known = {
        "input_shape": task.input_shape,
        "in_channels": channels,
        "image_size": size,
        "num_classes": task.num_classes,
        "max_length": longest,
        "task": task.name,
    }
    return {name: value for name, value in known.items() if name in takes}


@hydra.main(config_path="conf", config_name="config", version_base="1.3")
def main(cfg: DictConfig) -> None:
    """Run one job; its directory is the last line printed."""
    try:
        from scripts import settings

        config = plain(cfg, HydraConfig.get().overrides.task)
        is_first = os.environ.get("RANK", "0") == "0"
        for word in settings.idle(config, HydraConfig.get().overrides.task) if is_first else ():
            warnings.warn(
                f"{word} has no effect with method={config['method']['name']} as it is set; it "
                "makes the run another one all the same. Leave it out.",
                stacklevel=1,
            )
        if is_first and (line := _done_before(config)):
            print(line, file=sys.stderr)
        directory = execute(config)
        if is_first:
            print(directory, flush=True)
    except Exception as error:
        line = mistakes.mistake(error)
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            # Hydra does the other jobs and tells of the first that failed; this tells of each.
            words = " ".join(HydraConfig.get().overrides.task)
            raise mistakes.told(words, line) from error
        if line is None:
            raise
        sys.exit(mistakes.fail(line))


if __name__ == "__main__":
    # What a launcher starts elsewhere finds `scripts` where this was found.
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(CONF.parent), os.environ.get("PYTHONPATH")])
    )
    if "WORLD_SIZE" in os.environ:
        from dpexp.distributed.processes import leave_after

        leave_after(lambda: mistakes.guarded(main))
    mistakes.guarded(main)
