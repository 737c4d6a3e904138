"""Check that a finished run that is looked up used the data and weights that are here.

A config names data, weights, tokenizers and the user's own code, but the files behind a name may
have changed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tqdm import tqdm

from dpexp.cli import made_data
from dpexp.cli.fingerprints import pretrained, tokenizers_named, weights_named
from dpexp.cli.named_folders import require_named
from dpexp.records.keeping import KEEP, WEIGHTS
from dpexp.records.rounded import at_least, at_most
from dpexp.reporting.text import clean

if TYPE_CHECKING:
    from dpexp import records


LEFT_BY = {"wandb": "wandb", "tensorboard": "tensorboard", "csv": "metrics.csv"}
"""What tracking leaves in a run's folder."""


def done_before(config: dict[str, Any]) -> str:
    """Return a line about the run if it is done, else "".

    Raises:
        ConfigError: if it used other data, weights, tokenizers or code of the user's than are here.
        RecordError: if its result.json has an entry of the wrong type.
    """
    before = finished(config)
    if before is None:
        return ""
    found, unknown = before
    result = found.result
    metric = result.get("metric", "an accuracy that is not named")
    value = "no number" if result.get(metric) is None else f"{result[metric]:.4g}"
    known = ", ".join([_spent(found), *_found(result)])
    where = clean(result.get("device", "a device that is not named"))
    line = (
        f"done before: {clean(metric)} {value}, {known}, on {where}{_deviations(found)}; "
        f"{_whence(found.directory)}; "
        "results=FOLDER runs it anew"
    )
    if lacking := _lacking(config, found.directory):
        line += f", {lacking}, which this record lacks"
    return f"{line}. Note: {unknown}" if unknown else line


def finished(config: dict[str, Any]) -> tuple[records.Record, str] | None:
    """Return a finished run's record, and what of it could not be compared; None if there is none.

    Raises:
        ConfigError: as `done_before`.
        RecordError: as `done_before`.
    """
    from dpexp import records

    found = records.find(config["results"], config)
    if found is None:
        return None
    bytes_here = compare(config, found.result)
    refuse_other(found.directory, bytes_here)
    return found, bytes_here.unknown


def _lacking(config: Mapping[str, Any], directory: Path) -> str:
    """Return what is asked for beside the result and a look-up does not give; "" if nothing."""
    is_model_due = config["weights"] == KEEP and not (directory / WEIGHTS).exists()
    asked = ["and keeps its model"] if is_model_due else []
    chosen = [*config.get("tracking", {}), *(["wandb"] if _is_sent(config) else [])]
    untracked = [name for name in chosen if not (directory / LEFT_BY.get(name, name)).exists()]
    if untracked:
        asked.append(f"and tracks it by {' and '.join(untracked)}")
    return " ".join(asked)


def _is_sent(config: Mapping[str, Any]) -> bool:
    return config.get("wandb", {}).get("mode", "disabled") != "disabled"


def outcome(directory: Path) -> str:
    """Return a line about a run that has just been finished: score, epsilon, time and folder."""
    from dpexp import records

    record = records.read(directory)
    assert record is not None
    result = record.result
    score = result[result["metric"]]
    parts = [f"{result['metric']} {'no number' if score is None else f'{score:.4g}'}"]
    parts += [_spent(record), *_found(result), duration(result["wall_s"])]
    return f"done: {', '.join(parts)}{_deviations(record)}; in {directory}"


def _spent(record: records.Record) -> str:
    """Return what a run has spent, of what, and at which delta."""
    from dpexp.privacy.certificate import without_held_out

    spent, result = record.metrics[-1].get("epsilon"), record.result
    if spent is None:
        return "no epsilon"
    target = "" if result.get("eps") is None else f" of {result['eps']:g}"
    of = without_held_out(record.privacy)
    return f"eps {at_most(spent)}{target} at delta {record.privacy['delta']:g}{of}"


def _found(result: Mapping[str, Any]) -> list[str]:
    """Return what an audit and an attack of the run have found."""
    found = []
    if (bound := result.get("audit_epsilon_lower")) is not None:
        sure = f"at {100 * result['audit_confidence']:g} % confidence"
        found.append(f"audit: eps at least {at_least(bound, 2)} {sure}")
    if (success := result.get("attack_success")) is not None:
        error = result["attack_success_se"]
        found.append(f"attack: {success:.1f} % right, standard error {error:.1f}")
    return found


def _deviations(record: records.Record) -> str:
    deviations = record.privacy.get("deviations")
    return f" ({clean('; '.join(deviations))})" if deviations else ""


def duration(seconds: float) -> str:
    """Return a time as people read it: 5.9 s, 12:34 or 1:23:45."""
    return f"{seconds:.1f} s" if seconds < 60 else tqdm.format_interval(seconds)


def _whence(directory: Path) -> str:
    """Return whose record a finished run is: the repository's, or made here; and of when."""
    result = directory / "result.json"
    committed = ["git", "-C", str(directory), "log", "-1", "--format=%as", "--", result.name]
    try:
        done = subprocess.run(committed, capture_output=True, text=True, timeout=10)
        day = done.stdout.strip() if done.returncode == 0 else ""
    except (OSError, subprocess.TimeoutExpired):
        day = ""
    if day:
        return f"the record is the repository's, committed on {day}: {directory}"
    made = datetime.fromtimestamp(result.stat().st_mtime)
    return f"the record was made on {made:%Y-%m-%d at %H:%M}: {directory}"


class Comparison(NamedTuple):
    """How a finished run's data and weights compare with those here.

    Attributes:
        other: what differs, in words; "" if no difference is known.
        unknown: what could not be compared, and why; "" if everything was.
    """

    other: str
    unknown: str


def compare(config: Mapping[str, Any], result: Mapping[str, Any]) -> Comparison:
    """Compare a finished run's data and weights with those that its config reads here.

    Data are read as a run would read them, but nothing is downloaded.

    Args:
        config: of the run that is looked up.
        result: the finished run's result.json, which anyone may have written.

    Raises:
        ConfigError: if the config names a folder that does not exist.
        RecordError: if an entry of the result has the wrong type.
    """
    from dpexp.records import RecordError, wrong_kinds

    require_named(config)
    if wrong := wrong_kinds(result):
        raise RecordError(
            f"Expected a finished run as one is written; {clean(wrong[0])}. Set results=FOLDER to "
            "run it anew, or remove the record."
        )
    compared = [
        _compare_data(config, result),
        _compare_pretrained(config, result),
        _compare_own_code(config, result),
        (_compare_precision(config, result), ""),
    ]
    other, unknown = ("; ".join(filter(None, parts)) for parts in zip(*compared, strict=True))
    return Comparison(other, unknown)


def refuse_other(directory: Path, found: Comparison) -> None:
    """Refuse a finished run whose data or weights differ from those here.

    Args:
        directory: the finished run's.
        found: how its data and weights compare.

    Raises:
        ConfigError: if a difference is known.
    """
    from dpexp.types import ConfigError

    if found.other:
        raise ConfigError(
            f"Expected the bytes that the finished run {directory} was made of; "
            f"{found.other}. Set results=FOLDER to run on these, or put the former back."
        )


def require_here(configs: Iterable[Mapping[str, Any]]) -> None:
    """Check which of these runs are done, and that they used the data and weights here.

    Print once on stderr what could not be compared.

    Raises:
        ConfigError: if a run used other data, weights or tokenizers.
    """
    from dpexp import records

    unknown: Counter[str] = Counter()
    for config in configs:
        done = records.find(config["results"], config)
        if done is None:
            continue
        found = compare(config, done.result)
        refuse_other(done.directory, found)
        unknown.update([found.unknown] * bool(found.unknown))
    for words, count in unknown.items():
        print(f"note: {count} finished runs: {words}", file=sys.stderr)


def _compare_data(config: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, str]:
    name, recorded = config["task"]["name"], result.get("data_fingerprint")
    if recorded is None:
        return "", f"the record does not say of which data of {name} it is"
    here, reason = _of_data(_deciding(config))
    if not here:
        return "", f"the data of {name} were not compared ({reason})"
    if here != recorded:
        return f"the data of {name} were {clean(recorded[:12])}… and are {here[:12]}… here", ""
    return "", ""


def _compare_pretrained(config: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, str]:
    recorded = result.get("pretrained_sha256")
    names = [config["features"]["encoder"]] if config.get("features") else []
    names += filter(None, [weights_named(config)])
    tokenizers = list(tokenizers_named(config))
    if not names and not tokenizers:
        return "", ""
    older = "the record is older and does not say which"
    if recorded is None:
        of_weights = [f"weights of {names[0]} it began with"] if names else []
        of_words = [f"tokenizer of {name} it read" for name in tokenizers]
        return "", f"{older} {', nor which '.join(of_weights + of_words)}"
    from dpexp.data.text import FILES
    from dpexp.types import ConfigError, one_line

    try:
        with _offline():
            here = pretrained(config)
    except (ConfigError, OSError) as error:
        what = f"weights of {names[0]}" if names else f"tokenizer of {tokenizers[0]}"
        return "", f"the {what} were not compared ({one_line(error)})"
    changed, unrecorded = [], []
    for name, files in here.items():
        before = recorded.get(name, {})
        if name in tokenizers and not {*FILES} & {*before}:
            unrecorded.append(f"tokenizer of {name} it read")
            files = {file: digest for file, digest in files.items() if file not in FILES}
        # A tokenizer file that is gone counts as changed, like a new one.
        both = [*files, *(file for file in FILES if file in before and file not in files)]
        changed += [f"{file} of {name}" for file in both if before.get(file) != files.get(file)]
    unknown = f"{older} {', nor which '.join(unrecorded)}" if unrecorded else ""
    return (f"here are others: {', '.join(changed)}" if changed else ""), unknown


def _compare_own_code(config: Mapping[str, Any], result: Mapping[str, Any]) -> tuple[str, str]:
    """Compare the user's own files: of a model, a method, whatever the config names."""
    from dpexp.records.own_code import changed_files, own_code

    here, recorded = own_code(config), result.get("own_code_sha256", {})
    gone = [name for name in recorded if name not in here]
    unknown = [
        f"the code of {clean(name)} was not compared (it is not found here)" for name in gone
    ]
    unknown += [
        f"the record is older and does not say of which code of {name} it is"
        for name in here
        if name not in recorded
    ]
    changed = ", ".join(f"{clean(file)} of {name}" for file, name in changed_files(recorded, here))
    return (f"its code is another: {changed}" if changed else ""), "; ".join(unknown)


def _compare_precision(config: Mapping[str, Any], result: Mapping[str, Any]) -> str:
    """Return how the precision asked for differs from the record's; auto takes either.

    In ids auto stands for bfloat16, also where it came to float32.
    """
    asked, recorded = config["model"].get("precision"), result.get("precision")
    if recorded is None or asked not in ("float32", "bfloat16") or asked == recorded:
        return ""
    return f"its products were in {clean(recorded)} and are to be in {asked} here"


def fingerprint_here(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the fingerprint of a config's data here and ""; or "" and why it is unknown."""
    import torch

    from dpexp.cli.parts import build_task
    from dpexp.data import features
    from dpexp.types import ConfigError, one_line

    try:
        with _offline(), features.unwanted(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return build_task(dict(config), torch.device("cpu")).fingerprint, ""
    except (ConfigError, OSError) as error:
        return "", one_line(error)


def read_anew() -> None:
    """Read data again where they are compared next: files may change while a notebook is open."""
    _of_data.cache_clear()


def examples_here(config: Mapping[str, Any]) -> str:
    """Return the fingerprint of the task's examples here, without public ones; "" if unknown.

    It is the same for all points of a grid, which may set features or a public set's size.
    """
    keys = ("task", "holdout")
    return _of_data(json.dumps({key: config[key] for key in keys if key in config}))[0]


@cache
def _of_data(text: str) -> tuple[str, str]:
    """Return `fingerprint_here`, computed once per process, and of made data once per machine."""
    config = json.loads(text)
    kept = made_data.kept_for(config)
    if known := made_data.fingerprint(kept, text):
        return known, ""
    here, reason = fingerprint_here(config)
    if kept is not None and here:
        kept.put(text, here)
    return here, reason


def _deciding(config: Mapping[str, Any]) -> str:
    """Return as JSON what decides a run's data: task, features, holdout, public set and its users.

    Settings stay in their order, which may be that of a table's columns.
    """
    keys: tuple[str, ...] = ("task", "features", "holdout")
    if "public" in config:
        keys += ("public", "method", "analysis", "warm_start")
    return json.dumps({key: config[key] for key in keys if key in config})


@contextmanager
def _offline() -> Iterator[None]:
    """Forbid downloads: a look-up must not need the network."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
