"""Adapters in a folder of their own, as the library peft reads them onto the model without them."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from dpexp.models import low_rank
from dpexp.models.adapters import Adapted, adapter_parameters, places_of
from dpexp.models.transformers_layers import is_transposed

log = logging.getLogger("dpexp")

FOLDER = "adapter"
"""Where adapters are saved by themselves."""

INSTEAD = "Load the run's own weights instead, which have"


def save_adapters(
    model: nn.Module,
    folder: Path,
    base: str | None,
    trained: Iterable[str] = (),
    changed: str = "",
) -> None:
    """Write a model's adapters and what else it has trained, its classifier, for peft.

    Names are those of the model without adapters; a classifier of dpexp around an encoder of
    transformers has those of the library's classifier where that computes the same, else of the
    encoder alone, without the classifier. A layer that stands in several places is written under
    each of its names. peft adapts the first place alone, unless it is a module around the layer
    that stands in several. What peft has no place for is left out, and a warning says so.

    Args:
        model: any; one without adapters writes nothing.
        folder: the run's.
        base: the pretrained model's name on the hub; None: there is none.
        trained: names of the parameters that were trained.
        changed: why the model beneath the adapters is not the one that peft would put them onto;
            nothing is written then. "": it is.
    """
    found = {each: names for each, names in places_of(model).items() if isinstance(each, Adapted)}
    if changed and found:
        log.warning(
            "%s/ is not written: %s, and peft on the model as it was would compute something "
            "else. %s all",
            FOLDER,
            changed,
            INSTEAD,
        )
        return
    found = _without_odd(model, found)
    if not found:
        return
    _say_shared(model, found.values())
    whole = _of_one_place(model, _modules(set(trained) - set(adapter_parameters(model))))
    rename = _names(model, whole)
    if without := [name for name in whole if rename(name) is None]:
        _leave_out(without, "which the encoder alone has no place for")
    layers = {name: each for each, names in found.items() for name in map(rename, names) if name}
    plain = {rename(name) or "": each for name, each in _plain(model)}
    modules = _whole([name for name in map(rename, whole) if name], plain, layers)
    layers = {name: each for name, each in layers.items() if name not in modules}
    if not layers:
        return
    first = next(iter(found))
    rank = first.lora_B.weight.shape[1]
    settings: dict[str, Any] = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": first.scale * rank,
        "target_modules": _targets(sorted(layers), plain),
        "bias": "none",
        "task_type": None,
        "inference_mode": True,
    }
    if any(is_transposed(layer.base_layer) for layer in found):
        settings["fan_in_fan_out"] = True
    if modules:
        settings["modules_to_save"] = sorted(modules)
    tensors = {
        f"{name}.{part}.weight": getattr(layer, part).weight
        for name, layer in layers.items()
        for part in ("lora_A", "lora_B")
    }
    for name, module in modules.items():
        tensors |= {f"{name}.{own}": value for own, value in _state(module).items()}
    (folder / FOLDER).mkdir(exist_ok=True)
    save_file(_prefixed(tensors), folder / FOLDER / "adapter_model.safetensors")
    path = folder / FOLDER / "adapter_config.json"
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def _prefixed(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"base_model.model.{k}": each.detach().cpu().clone() for k, each in tensors.items()}


def _without_odd(model: nn.Module, found: dict[Adapted, list[str]]) -> dict[Adapted, list[str]]:
    """Leave out what peft adapts otherwise or not at all, and say so."""
    within = [name.replace("parametrizations.", "") for name, *_ in low_rank.adapted(model)]
    if within:
        log.warning(
            "%s/ leaves out adapters of single parameters (%s ...), which peft has no place for in "
            "such layers. %s them all",
            FOLDER,
            within[0].removesuffix(".0"),
            INSTEAD,
        )
    dilated = {
        each: names
        for each, names in found.items()
        if isinstance(each.base_layer, nn.Conv2d) and set(each.base_layer.dilation) != {1}
    }
    if dilated:
        log.warning(
            "%s/ leaves out adapters of convolutions with dilation (%s ...), which peft does not "
            "take. %s them all",
            FOLDER,
            next(iter(dilated.values()))[0],
            INSTEAD,
        )
    return {each: names for each, names in found.items() if each not in dilated}


def _say_shared(model: nn.Module, found: Iterable[list[str]]) -> None:
    """Say which layers stand in several places, where peft adapts one."""
    for names in found:
        paths = [name.rpartition(".") for name in names]
        if len({(model.get_submodule(parent), own) for parent, _, own in paths}) > 1:
            log.warning(
                "%s/ has the adapter of %s, one layer, under each of these names; peft adapts the "
                "first alone. %s it in all",
                FOLDER,
                " and ".join(names),
                INSTEAD,
            )


def _modules(parameters: Iterable[str]) -> list[str]:
    """Return the names of the modules whose own parameters these are."""
    return sorted({name.rpartition(".")[0] for name in parameters} - {""})


def _of_one_place(model: nn.Module, whole: list[str]) -> list[str]:
    """Return those of the modules whose parameters stand nowhere else; of others say so."""
    places = Counter(
        id(parameter)
        for _, module in model.named_modules(remove_duplicate=False)
        for parameter in module.parameters(recurse=False)
    )
    elsewhere = [
        name
        for name in whole
        if any(places[id(each)] > 1 for each in model.get_submodule(name).parameters(recurse=False))
    ]
    if elsewhere:
        _leave_out(elsewhere, "whose numbers stand in other places too, where peft changes none")
    return [name for name in whole if name not in elsewhere]


def _leave_out(names: Iterable[str], why: str) -> None:
    """Say that modules which were trained as a whole are not in the folder."""
    said = " and ".join(sorted(names))
    log.warning("%s/ leaves out %s, trained as a whole, %s. %s it", FOLDER, said, why, INSTEAD)


def _names(model: nn.Module, whole: list[str]) -> Callable[[str], str | None]:
    """Return what renames a module as the model without adapters has it; None: it has none."""
    library = getattr(model, "name_in_library", None)
    if library is None:  # no classifier of dpexp around an encoder
        return str
    if whole and all(library(f"{name}.") != f"{name}." for name in whole):
        return lambda name: library(f"{name}.").removesuffix(".")
    prefix = "encoder."
    return lambda name: name.removeprefix(prefix) if name.startswith(prefix) else None


def _whole(
    trained: Collection[str], plain: Mapping[str, nn.Module], layers: Iterable[str]
) -> dict[str, nn.Module]:
    """Return the modules that are saved as a whole, by name.

    peft takes every module whose name ends with one, so that those are saved with their adapter
    in them; it adapts none whose path has one in it. Where these hold others, what is trained is
    left out, and a warning says so.
    """
    taken = {name: each for name, each in plain.items() if any(map(name.endswith, trained))}
    if all(_is_leaf(each) for each in taken.values()) and not any(
        re.match(rf"(^|.*\.){re.escape(name)}($|\..*)", layer)
        for name in taken
        for layer in set(layers) - set(taken)
    ):
        return taken
    _leave_out(trained, "whose name peft would take for other modules' too")
    return {}


def _is_leaf(module: nn.Module) -> bool:
    return isinstance(module, Adapted) or not [*module.children()]


def _targets(names: list[str], plain: Collection[str]) -> list[str] | str:
    """Return adapted layers' names, or a pattern of them where peft would take others' for them.

    Of a list peft takes every module whose name ends with one of its names.
    """
    others = set(plain) - set(names)
    if any(other.endswith(f".{name}") for other in others for name in names):
        return "|".join(map(re.escape, names))
    return names


def _plain(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that the model has without adapters, with their names."""
    for name, module in model.named_modules():
        if not re.search(r"\.(base_layer|lora_A|lora_B)$", name):
            yield name, module


def _state(module: nn.Module) -> dict[str, Tensor]:
    """Return a module's tensors, with its adapter in them."""
    if not isinstance(module, Adapted):
        return module.state_dict()
    return {**module.base_layer.state_dict(), "weight": module.weight}
