"""Build a config's model: what it names, with what mixes examples replaced, and what freezes.

One's own model comes by a door: hf, timm, torchvision or python (conf/model, docs/models.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dpexp.cli.instantiate import check_known, find_all, make, parameters

OF_NO_CONSTRUCTOR = ("name", "head", "tokenizer", "fix", "weight_standardization")
"""Settings of a model that its constructor does not take."""


class Door(NamedTuple):
    """A way for one's own model, a choice of conf/model.

    Attributes:
        key: the setting that names the model.
        word: how it is said.
    """

    key: str
    word: str


DOORS = {
    "hf": Door("repo", "repo=OWNER/NAME"),
    "timm": Door("architecture", "name=resnet18"),
    "torchvision": Door("architecture", "name=resnet18"),
    "python": Door("_target_", "target=package.Class"),
}


def is_of_door(node: Mapping[str, Any]) -> bool:
    """Return whether a model comes by a door, as its name says: hf:OWNER/NAME."""
    door, colon, _ = str(node.get("name")).partition(":")
    return bool(colon) and door in DOORS


class Built(NamedTuple):
    """A model, ready to train.

    Attributes:
        model: on the CPU.
        head: the classifier's name in it; "": none is named.
    """

    model: Any
    head: str


def build_model(config: Mapping[str, Any], task: Any, *, is_kept: bool = False) -> Built:
    """Return a config's model.

    Its weights are drawn from torch's generator.

    Args:
        config: of the run.
        task: whose shape it fits.
        is_kept: whether a run has kept it. Settings that the task's overruled are as they were.

    Raises:
        ConfigError: if it does not fit the task, or cannot be built.
    """
    node = config["model"]
    fitted = fit_to_task(node, task)  # first reports a model that does not fit the task
    settings = _arguments(node, {} if is_kept else fitted, fitted)
    model = make("model", settings, without=OF_NO_CONSTRUCTOR, **fitted)
    return prepare(model, config, task.num_classes)


def prepare(model: Any, config: Mapping[str, Any], num_classes: int) -> Built:
    """Change a model as configured.

    Standardise weights, replace what mixes examples, find the classifier and freeze what is to be.

    Args:
        model: changed in place; the one that is returned is what it is without torch.compile.
        config: of the run.
        num_classes: outputs.

    Raises:
        ConfigError: if a setting does not fit the model.
    """
    node = config["model"]
    require_sizes(model)
    if is_of_door(node):
        from dpexp.models.unwrapped import unwrapped

        model = unwrapped(model)
    head = str(node.get("head", ""))
    _require_head(model, head)
    if _is_standardized(node):
        from dpexp.models.standardized import standardize

        standardize(model)
    patterns = _patterns(config.get("method", {}).get("freeze"))
    if not (is_of_door(node) or node.get("fix") or patterns):
        return Built(model, head)
    from dpexp.models import adapting, classifier, fixing

    if node.get("fix"):
        fixing.fix(model, node["fix"])
    if is_of_door(node):
        adapting.returns_logits(model)
        if head == classifier.AUTO:
            head = ""  # methods that treat a classifier apart refuse
            if not classifier.is_bare(model, num_classes):
                head = classifier.find_head(model, num_classes)
                classifier.say_head(model, head)
        classifier.say_frozen(model)
    if patterns:
        classifier.freeze(model, patterns)
    return Built(model, head)


def _require_head(model: Any, head: str) -> None:
    """Refuse the name of a classifier that a model lacks, also under methods that read none.

    Raises:
        ConfigError: with the name that is spelt most alike.
    """
    from dpexp.methods.selection import classifier
    from dpexp.models.classifier import AUTO

    if head not in ("", AUTO):
        classifier(model, head)


def require_sizes(model: Any) -> None:
    """Refuse layers of torch that take their size from their first input, and have seen none.

    Raises:
        ConfigError: naming the first.
    """
    from torch.nn.parameter import is_lazy

    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            from dpexp.types import ConfigError

            layer = name.rpartition(".")[0]
            kind = type(model.get_submodule(layer)).__name__
            raise ConfigError(
                f"Expected a model whose layers have their sizes; {layer or 'the model'} is a "
                f"{kind} that has seen no input. Let the model take an input as it is built, or "
                "use a layer of a given size."
            )


def _is_standardized(node: Mapping[str, Any]) -> bool:
    """Return whether a model's weights are to be standardised.

    Raises:
        ConfigError: for another word.
    """
    found = node.get("weight_standardization", False)
    if not isinstance(found, bool):
        from dpexp.types import ConfigError

        raise ConfigError(
            f"Expected model.weight_standardization to be true or false; got {found}. Set "
            "model.weight_standardization."
        )
    return found


def make_method(config: Mapping[str, Any], kind: str = "") -> Any:
    """Return a config's method; what it may freeze is the model's matter."""
    method = make("method", config["method"], without=("name", "freeze"), kind=kind)
    if "loop" not in config:  # else it has other steps
        from dpexp.training.returned import require_steps

        require_steps(method)
    return method


def with_head(config: Mapping[str, Any], head: str) -> dict[str, Any]:
    """Return a config whose method and warm start name the classifier that was found."""
    from dpexp.models.classifier import AUTO

    return {
        key: {**node, "head": head} if isinstance(node, dict) and node.get("head") == AUTO else node
        for key, node in config.items()
    }


def _arguments(
    node: Mapping[str, Any], binding: Mapping[str, Any], fitted: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a model's settings, those in `args` among them where it has no such argument.

    Args:
        node: of the config.
        binding: arguments that may not be said otherwise.
        fitted: arguments that the task decides.
    """
    from dpexp.types import ConfigError

    args = node.get("args", {})
    if "args" not in node or "args" in parameters("model", node):
        _require_fitting("model", node, binding)
        return dict(node)
    if not isinstance(args, Mapping):
        raise ConfigError(
            f"Expected model.args to hold settings, as in model.args.width=64; got {args}. Set "
            "what is below it."
        )
    rest = {key: value for key, value in node.items() if key != "args"}
    check_known("model.args", find_all("model", rest), args, [*OF_NO_CONSTRUCTOR, *fitted])
    _require_fitting("model.args", args, binding)
    return rest | dict(args)


def _require_fitting(place: str, said: Mapping[str, Any], fitted: Mapping[str, Any]) -> None:
    """Refuse a setting that says otherwise than the task, whose word counts.

    Raises:
        ConfigError: naming the setting.
    """
    from dpexp.types import ConfigError

    for name in fitted.keys() & said.keys():
        takes = [*fitted[name]] if isinstance(fitted[name], tuple | list) else fitted[name]
        if said[name] not in (None, takes):
            has = "the task has none" if takes is None else f"the task's is {takes}"
            raise ConfigError(
                f"Expected no other {place}.{name} than the task's: {has}; got {said[name]}. Leave "
                "it out."
            )


def _patterns(said: Any) -> Sequence[str]:
    from dpexp.types import ConfigError

    patterns = [said] if isinstance(said, str) else said
    if patterns is None:
        return ()
    if not isinstance(patterns, list) or not all(isinstance(p, str) and p for p in patterns):
        raise ConfigError(
            "Expected method.freeze to be a pattern of parameters' names, or a list of them, as in "
            f"method.freeze=[conv1*,layer1]; got {said}. Set method.freeze."
        )
    return patterns


def fit_to_task(node: Mapping[str, Any], task: Any) -> dict[str, Any]:
    """Return the arguments of a model that depend on the task's shape."""
    from dpexp.types import ConfigError

    takes = parameters("model", node)
    channels, *size = task.input_shape
    longest = getattr(task.train, "longest", None)
    is_of_both = is_of_door(node)  # which says itself what does not fit
    if ("max_length" in takes) != (longest is not None) and not is_of_both:
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
        "task_mean": getattr(task.train, "mean", None),
        "task_std": getattr(task.train, "std", None),
    }
    return {name: value for name, value in known.items() if name in takes}
