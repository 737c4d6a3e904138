"""Name typed settings that a run does not read, since another setting leaves them no part in it."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dpexp.cli.errors import nearest
from dpexp.privacy.stated import (
    class_of,
    public_examples,
    statement_of,
    states_public,
    unread_settings,
)
from dpexp.records import is_neutral
from dpexp.warned import warn_caller

OF_OWN_LOOP = ("epochs", "batch_size", "eval_every", "privacy.clip_norm")
"""Settings in whose place a method with its own loop reads the method's."""

OF_COMMON_STEPS = ("clip", "sampling", "privacy.clip", "privacy.sampling")
"""Settings of steps that a method with its own loop does not take."""

DELTA = ("privacy.delta", "task.delta")

OF_NOISE = {
    "dpexp.methods.compressive.Compressive": "bound",
    "dpexp.pate.PATE": "check_ratio",
}
"""Class of a method -> its setting that noise alone reads."""

DP_ZO = "dpexp.methods.dp_zo.DPZO"

OF_CLIPPING = {"dpexp.methods.gep.GEP": "residual_clip"}
"""Class of a method -> its setting that clipping and noise alone read."""

LEAST_WARM_UP = 0.1
"""(1 + t) / (10 + t) at the first step, at most which a decay is not held back by a warm-up."""

VARIABLES = ("DPEXP_CACHE", "DPEXP_DATA_ROOT", "DPEXP_MODEL_ROOT")
"""Variables of the environment that dpexp reads."""


def warn(config: Mapping[str, Any], overrides: Sequence[str], *, with_method: bool = True) -> None:
    """Warn of overrides that this run does not read, each in one line.

    Args:
        config: of the run, resolved.
        overrides: as typed.
        with_method: whether the method's class is asked, which imports torch.
    """
    warn_of(config, typed(overrides), with_method=with_method)


def warn_of_all(configs: Sequence[Mapping[str, Any]], overrides: Sequence[str]) -> None:
    """Warn of overrides that several runs have, and none of them reads."""
    if not configs:
        return
    said = typed(overrides)
    ignored = [unread(config, said) for config in configs]
    of_all = {place: word for place, word in said.items() if all(place in each for each in ignored)}
    warn_of(configs[0], of_all)


def typed(overrides: Sequence[str]) -> dict[str, str]:
    """Return a command line's words by the settings that they set."""
    return {word.lstrip("+").partition("=")[0]: word for word in overrides}


def warn_of(
    config: Mapping[str, Any], said: Mapping[str, str], *, with_method: bool = True
) -> None:
    """Warn of settings and variables that this run does not read, each in one line.

    Args:
        config: of the run, resolved.
        said: setting -> how it was said.
        with_method: whether the method's class is asked.
    """
    for name in sorted(os.environ):
        if name.startswith("DPEXP_") and name not in VARIABLES:
            warn_caller(f"{name} is set, and nothing reads it.{nearest(name, VARIABLES)}")
    beside = unread(config, said, with_method=with_method)
    for place, word in said.items():
        if place in beside:
            but = "" if is_neutral(place) else ", but changes the run's id"
            warn_caller(f"{word} has no effect with {beside[place]}{but}. Leave it out.")


def unread(
    config: Mapping[str, Any], among: Mapping[str, Any], *, with_method: bool = True
) -> dict[str, str]:
    """Return which of some settings a run does not read, and beside what, in words."""
    found: dict[str, str] = {}
    rules = [_of_the_run, _of_privacy, _of_parts, _of_filters, _of_length]
    if with_method and any(place.startswith("method.") for place in among):
        rules.append(_of_method)
    if with_method and any(place.partition(".")[0] == "public" for place in among):
        rules.append(_of_public)
    if with_method and "model.dropout" in among:
        rules.append(_of_dropout)
    for place, beside in (each for rule in rules for each in rule(config)):
        found.setdefault(place, beside)
    if not {*DELTA} <= found.keys() and {*DELTA} & among.keys() and _is_laplace(config):
        found |= dict.fromkeys(DELTA, "Laplace noise, whose guarantee has a delta of 0")
    return {place: beside for place, beside in found.items() if place in among}


def _of_the_run(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "loop" in config:
        as_set = f"method={config['method']['name']} as it is set"
        yield from ((place, as_set) for place in OF_OWN_LOOP)
    if config["wandb"]["mode"] == "disabled":
        yield from (
            (f"wandb.{name}", "wandb.mode=disabled, which tracking=wandb changes")
            for name in ("project", "entity")
        )


def _of_privacy(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    privacy, method = config["privacy"], config["method"]
    if privacy["noise"]:
        return
    places = (*DELTA, "privacy.budget", "clipping.count_noise")
    yield from ((place, "noise=false") for place in places)
    if name := OF_NOISE.get(method["_target_"]):
        yield f"method.{name}", "noise=false"
    # Of one number the norm is the number, which both kinds of noise clip alike.
    if method["_target_"] == DP_ZO and (method["directions"] == 1 or not privacy["clip"]):
        yield "method.noise", "noise=false"
    if "loop" in config:  # refuses other values where it has noise
        as_set = f"method={method['name']} and noise=false"
        yield from ((place, as_set) for place in OF_COMMON_STEPS)
    if privacy["clip"]:
        return
    if name := OF_CLIPPING.get(method["_target_"]):
        yield f"method.{name}", "noise=false and clip=false"
    # Noise is in units of the clip norm, and so may be another bound.
    if "xi" not in method:
        yield "privacy.clip_norm", f"method={method['name']} as it is set"


def _of_parts(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if config["schedule"].get("fractions") == []:
        yield "schedule.factor", "schedule.fractions=[]"
    if config["optimizer"].get("momentum") == 0:
        yield "optimizer.dampening", "optimizer.momentum=0"
    if config["model"].get("pooling") == "first":
        yield "model.feature_norm", "model.pooling=first"
    if config["task"].get("test_size", 0) is None:
        yield "task.split_seed", "the data's own test set"


def _of_filters(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what hands on gradients or weights as they are."""
    denoise, averaging = config.get("denoise") or {}, config.get("averaging") or {}
    if denoise.get("name") == "disk" and denoise.get("kappa") == 1:
        yield "denoise", "denoise.kappa=1"
    if denoise.get("name") == "disk" and _steps(config) == 1:
        yield "denoise", "a run of 1 step"
    if denoise.get("name") == "doppler":
        a, b = denoise.get("a"), denoise.get("b")
        if (
            isinstance(a, list)
            and isinstance(b, list)
            and not any(a)
            and b[:1] == [1]
            and not any(b[1:])
        ):
            yield "denoise", "denoise.a=[] and denoise.b=[1]"
    if averaging.get("name") == "ema" and averaging.get("decay") == 0:
        yield "averaging", "averaging.decay=0"
    decay = averaging.get("decay") if averaging.get("name") == "ema" else None
    if decay is not None and _is_number(decay) and 0 <= decay <= LEAST_WARM_UP:
        yield "averaging.warm_up", f"averaging.decay={decay:g}"


def _of_length(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what is meant for later steps than a run has."""
    steps = _steps(config)
    if steps is None:
        return
    averaging = config.get("averaging") or {}
    if averaging.get("name") == "ema" and averaging.get("warm_up") is True:
        largest = steps / (steps + 9)  # (1 + t) / (10 + t) at the last step
        # 1 or more is refused by who reads it.
        if _is_number(averaging.get("decay")) and largest <= averaging["decay"] < 1:
            yield "averaging.decay", f"averaging.warm_up=true in a run of {steps} steps"
    share = averaging.get("share") if averaging.get("name") == "last" else None
    if share is not None and _is_number(share) and 0 < share * steps <= 1.5:
        yield "averaging", f"averaging.share={share:g}, of {steps} steps the last one alone"


def _of_method(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield what the method's class states; importing it takes a second or more."""
    steps, begins = _steps(config), math.inf
    if steps is not None:
        begins = (steps - 1) * config["batch_size"] / config["task"]["dataset_size"]
    try:
        found = unread_settings(config["method"], steps or math.inf, begins)
    except (TypeError, ValueError, KeyError):  # a value of a wrong kind: refused by who reads it
        return
    for name, beside in found.items():
        yield f"method.{name}", beside


def _of_public(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield a public set that nothing takes.

    Beside a method of one's own that does not state it, a run says so once its data are known.
    """
    method = config["method"]
    if "public" not in config:  # public=none, as without the word
        return
    try:
        if not knows_public(config) or public_examples(config):
            return
    except (TypeError, ValueError, KeyError):  # as in `_of_method`
        return
    takes_some = states_public(method)
    beside = f"method={method['name']}" + (
        " as it is set" if takes_some else ", which takes no public examples"
    )
    yield from ((f"public{key}", beside) for key in ("", *(f".{k}" for k in config["public"])))


def knows_public(config: Mapping[str, Any]) -> bool:
    """Return whether it is known before a run which public examples it takes."""
    takers = [config["method"], *(config.get("analysis") or {}).values()]
    return "loop" not in config and all(
        states_public(each) or str(each["_target_"]).startswith("dpexp.") for each in takers
    )


def _of_dropout(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield dropout where steps take losses alone, of a model in eval mode."""
    method = config["method"]
    is_trained = not getattr(class_of(method["_target_"]), "is_forward_only", False)
    if not (is_trained or "warm_start" in config):
        yield "model.dropout", f"method={method['name']}, whose passes leave dropout off"


def _steps(config: Mapping[str, Any]) -> int | None:
    """Return how many steps a run takes; None for another loop, or a size that is not known."""
    numbers = config["epochs"], config["task"].get("dataset_size"), config["batch_size"]
    if "loop" in config or not all(_is_number(each) and each > 0 for each in numbers):
        return None
    epochs, size, batch = numbers
    if config["privacy"]["sampling"] == "shuffle":
        return math.ceil(epochs * math.ceil(size / batch))
    return math.ceil(round(epochs * size / batch, 9))


def _is_laplace(config: Mapping[str, Any]) -> bool:
    """Return whether the method states that its noise is Laplace noise."""
    try:
        releases = statement_of(config).releases(config, 1)
    except Exception:  # of settings that are refused as the run begins, or of a method of one's own
        return False
    return any(release.noise == "laplace" for release in releases)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
