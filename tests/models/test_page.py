"""What docs/models.md shows is what happens."""

import os
import re
import shlex
import sys

import pytest
import torch
import torchvision
from safetensors.torch import save_file

from dpexp import cli, records
from dpexp.cli.building import DOORS
from tests.doors import save
from tests.marks import some_long

PAGE = (cli.CONF.parent / "docs" / "models.md").read_text(encoding="utf-8")
timm = pytest.importorskip("timm")
COMMANDS = re.findall(r"^    python run\.py (.*)$", PAGE, re.M)
QUICK = [
    each for each in COMMANDS[::2] if "name=resnet18" not in each
]  # which test_own_runs trains
# The second block is a layer's rule, which tests/grad_sample/test_own_rules.py tries.
CODE, _ = re.findall(r"^```python\n(.*?)^```$", PAGE, re.M | re.S)
SHORT = ["profile=embedded", "epochs=0.1", "batch_size=64", "micro_batch=16", "device=cpu"]
OF_TEXTS = ["task.dataset_size=200", "task.test_size=20", "task.delta=1e-3", "task.max_length=40"]
OF_IMAGES = ["task.dataset_size=1737", "task.test_size=60"]
FEW_WORDS = ["model.tokenizer=null", "model.args.dropout=0"]


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A model_root with small or random models under the names of the page, and its module."""
    root = tmp_path_factory.mktemp("models")
    tiny = save(root, "DistilBert", weights=True)
    (root / "distilbert").mkdir()
    (root / tiny).rename(root / "distilbert" / "distilbert-base-uncased")
    for name, model in (
        ("timm/resnet18.a1_in1k", timm.create_model("resnet18")),
        ("torchvision/resnet18", torchvision.models.resnet18()),
    ):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
        save_file(model.state_dict(), root / name / "model.safetensors")
    name = f"nets_of_the_page_{os.getpid()}"
    (root / f"{name}.py").write_text(CODE)
    sys.path.insert(0, str(root))
    yield root, name
    sys.path.remove(str(root))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("command", some_long(COMMANDS, QUICK))
def test_every_command_trains_and_is_named(command, root, tmp_path):
    folder, module = root
    words = [word.replace("nets.Net", f"{module}.Net") for word in shlex.split(command)]
    rank = ["method.rank=2"] if {"method=rgp", "method=lsg"} & set(words) else []
    more = [*OF_TEXTS, *FEW_WORDS] if "task=sentiment" in words else OF_IMAGES
    config = cli.compose(
        [*words, *SHORT, *more, *rank, f"model_root={folder}", f"results={tmp_path}"]
    )
    record = records.read(cli.execute(config))
    door, named = (
        next(w.partition("=")[2] for w in words if w.startswith(k))
        for k in ("model=", ("repo=", "name=", "target="))
    )
    assert record.result["model"].startswith(f"{door}:{named}")
    assert record.result["model_as_run"]["classifier"]


def test_the_page_names_all_doors():
    doors = {re.search(r"model=(\w+)", command)[1] for command in COMMANDS}
    assert doors == set(DOORS)


def test_a_published_classifier_is_drawn_anew_and_all_else_is_loaded(root):
    folder, _ = root
    words = ["method=dpsgd", "task=sentiment", *SHORT, *OF_TEXTS, *FEW_WORDS, "model=hf"]
    words += ["repo=distilbert/distilbert-base-uncased", f"model_root={folder}"]
    models = [cli.build_parts(cli.compose([*words, f"seed={k}"]), "cpu").model for k in (0, 0, 1)]
    first, same, other = (dict(model.named_parameters()) for model in models)
    assert all(torch.equal(each, same[name]) for name, each in first.items())
    drawn = {name for name, each in first.items() if not torch.equal(each, other[name])}
    assert drawn == {"classifier.weight"}  # its bias begins with zeros
