"""The card of a kept model: what it is, and what its privacy claim covers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from dpexp.privacy.certificate import why_no_claim
from dpexp.records.rounded import at_most

FILE = "README.md"

RECIPE = (
    "method",
    "optimizer",
    "schedule",
    "augmentation",
    "clipping",
    "denoise",
    "averaging",
    "warm_start",
)
"""Parts of a config that a card states with their settings, those that a run has."""


def text(
    run: str,
    config: Mapping[str, Any],
    result: Mapping[str, Any],
    certificate: Mapping[str, Any],
    classes: Sequence[str],
    loads: str = "",
) -> str:
    """Return a model's card in Markdown, with the front matter that the hub reads.

    Args:
        run: its id.
        config: of its run.
        result: contents of result.json.
        certificate: contents of privacy.json.
        classes: names by index; empty where they have none.
        loads: what `loading` returns.
    """
    method, model, task = (config[group]["name"] for group in ("method", "model", "task"))
    parts = [
        _front(config, method),
        f"# {model} on {task}, trained by {method}",
        _what(result, classes, is_secret=not certificate["replayable"]),
        "## Privacy",
        _privacy(certificate, why_no_claim(certificate)),
        "## Use",
        _use(
            run,
            is_buildable="initial_weights" not in config["model"] or bool(loads),
            calls_other=not (loads or str(config["model"]["_target_"]).startswith("dpexp.models.")),
        )
        + (f"\n\n{loads}" if loads else ""),
        "## Training",
        _training(config, result, certificate),
    ]
    return "\n\n".join(parts) + "\n"


def _front(config: Mapping[str, Any], method: str) -> str:
    said: dict[str, Any] = {
        "library_name": "dpexp",
        "tags": ["differential-privacy", "dpexp", method],
    }
    if (data := _data_of(config["task"])) is not None:
        said["datasets"] = [data]
    if _is_hub_id(repo := config["model"].get("repo")):
        said["base_model"] = repo
    return f"---\n{yaml.safe_dump(said, sort_keys=False, allow_unicode=True)}---"


def _data_of(task: Mapping[str, Any]) -> str | None:
    """Return the hub's name of a task's data; None for data that it does not have."""
    if _is_hub_id(repo := task.get("repo")):
        return repo
    data = task.get("data")
    if isinstance(data, str) and _is_hub_id(data) and not Path(data).expanduser().exists():
        return data
    return None


def _is_hub_id(name: Any) -> bool:
    """Return whether a name is owner/name as the hub allows; it refuses cards with others."""
    if not isinstance(name, str) or name.count("/") != 1:
        return False
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # a run's first step need not wait for it

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def _what(result: Mapping[str, Any], classes: Sequence[str], *, is_secret: bool) -> str:
    value = result.get(result["metric"])
    number = "not a number" if value is None else f"{value:.4g}"
    lines = [
        f"- {result['metric']}: **{number}**"
        f" (seed {result['seed']}; one run, without a spread over seeds)",
        f"- input: {result['input_shape']}; outputs: {result['num_classes']}",
        f"- weights: SHA-256 of all tensors `{result['weights_sha256']}`",
    ]
    if not is_secret:  # a fingerprint confirms a guess at an example
        lines.append(f"- training and test data: fingerprint `{result['data_fingerprint']}`")
    if classes:
        lines.insert(1, f"- classes: {', '.join(classes)}")
    if pretrained := result.get("pretrained_sha256"):
        lines.append(f"- it began with the weights or tokenizers of {', '.join(pretrained)}")
    return "\n".join(lines)


def _privacy(certificate: Mapping[str, Any], reasons: Sequence[str]) -> str:
    deviations = certificate["deviations"]
    if reasons:
        claim = f"No privacy is claimed: {'; '.join(reasons)}."
    else:
        spent = [value for value in certificate["epsilon"].values() if value is not None]
        claim = (
            f"The weights are ({certificate['target_epsilon']:g}, {certificate['delta']:g})-"
            f"differentially private ({at_most(spent[0])} was spent). Neighbouring data sets: "
            f"{certificate['neighbouring']}. Sampling: {certificate['sampling']}."
        )
    lines = [claim, ""]
    lines += [f"- deviation: {words}" for words in deviations]
    if not reasons and (held := certificate.get("holdout")):
        lines.append(
            f"- {held['examples']} of {held['of']} training examples were held out: the claim is "
            f"for the {certificate['dataset_size']} that are left, and nothing is claimed of the "
            "others; settings chosen by how they score are not counted"
        )
    if not reasons and certificate["replayable"]:
        lines.append(
            "- **the claim does not hold against someone who has the seed, and `config.yaml` "
            "holds it: where the data are private, do not publish this folder, and train with "
            "`noise=secret`**"
        )
    lines += [
        "- accuracies and losses above and in metrics.jsonl may be computed from private data "
        f"without noise{'' if reasons else '; the claim covers the weights alone'}",
        "- `privacy.json` is the certificate; `dpexp verify .` recomputes it from `config.yaml` "
        "with another accountant, and compares the weights with their hash",
    ]
    return "\n".join(lines)


def _use(run: str, *, is_buildable: bool, calls_other: bool) -> str:
    """Return how the folder is loaded; of a model from memory the config cannot build another.

    Args:
        run: its id.
        is_buildable: whether the config says how to build the model.
        calls_other: whether that calls code other than dpexp's or a library's of models.
    """
    if not is_buildable:
        return f"""```python
import dpexp

model = dpexp.load("{run}", Model())  # this folder, and a model of the same architecture
model.predict(inputs)  # as those that it was trained on: the most probable class of each
model.module  # a torch.nn.Module in eval mode, with the trained weights
```"""
    trust, word = (", trust=True", " trust=true") if calls_other else ("", "")
    note = "; it calls the code that the config names" if calls_other else ""
    return f"""```python
import dpexp

model = dpexp.load("{run}"{trust})  # this folder{note}
model.predict(["..."])  # the names of the classes, most probable first
model.module  # a torch.nn.Module in eval mode
```

or `dpexp predict {run} FILES{word}`."""


def loading(library: str | None, kind: str, other: str) -> str:
    """Return how a model's own library loads the folder, or why it cannot; "" without a library.

    Args:
        library: transformers or timm; None: neither.
        kind: the model's class.
        other: why the library's own model would compute something else; "": it does not.
    """
    if library is None:
        return ""
    if other:
        return f"{library} cannot load this folder: {other}."
    calls = {
        "transformers": f'transformers.{kind}.from_pretrained("FOLDER")',
        "timm": 'timm.create_model("local-dir:FOLDER", pretrained=True)',
    }
    return f"{library} loads this folder too: `{calls[library]}`."


def _training(
    config: Mapping[str, Any], result: Mapping[str, Any], certificate: Mapping[str, Any]
) -> str:
    keys = ("sampling", "q", "dataset_size", "batch_size", "steps", "noise_multiplier")
    said = {key: certificate[key] for key in keys if certificate.get(key) is not None}
    if correlation := certificate.get("correlation"):
        said["correlated noise"] = f"{correlation['bands']} bands; {correlation['participation']}"
    for release in certificate["releases"]:
        said[f"release {release['name']}"] = ", ".join(
            f"{key} {value}" for key, value in release.items() if key != "name"
        )
    if config["model"].get("weight_standardization"):
        said["convolutions"] = "of standardised weights"
    rows = {
        **said,
        **{part: json.dumps(config[part]) for part in RECIPE if config.get(part)},
        "versions": ", ".join(f"{name} {of}" for name, of in result["versions"].items()),
        "device": result["device"],
        "commit": result.get("git_commit") or "not known",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return f"| | |\n| --- | --- |\n{table}"
