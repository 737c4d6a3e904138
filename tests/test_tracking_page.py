"""What docs/tracking.md says can be typed."""

import importlib.util
import re
import shlex
from pathlib import Path

from dpexp import cli
from tests.runs import SHORT


def commands():
    """Yield the commands of run.py in docs/tracking.md, and the words that it explains."""
    page = (Path(__file__).parents[1] / "docs" / "tracking.md").read_text(encoding="utf-8")
    for command in re.findall(r"^    python run.py (.*)$", page, re.MULTILINE):
        yield [word for word in shlex.split(command) if "=" in word and "hydra" not in word]
    for word in re.findall(r"`'?((?:tracking|model\.precision|wandb\.mode)=[^`']*)'?`", page):
        model = ["model=bert_tiny", "task=sentiment"] if word.startswith("model") else []
        yield from ([*SHORT, *model, one] for one in expanded(word))


def expanded(word):
    key, _, values = word.partition("=")
    return [f"{key}={value}" for value in values.split("\\|")]


def test_what_the_page_says_can_be_typed():
    found = list(commands())
    assert len(found) > 8
    if not importlib.util.find_spec("tensorboard"):
        found = [words for words in found if "tensorboard" not in words[-1]]
    for words in found:
        first = [re.sub(r"=interval.*", "=1", word) for word in words]
        cli.compose([word.partition(",")[0] if "[" not in word else word for word in first])
