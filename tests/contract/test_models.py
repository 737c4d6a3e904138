"""What every model promises: its outputs, its seed, its names; and tasks it does not fit."""

import pytest
import torch

from dpexp import cli
from dpexp.cli.config_cache import Configs
from dpexp.training.train import named_parameters
from dpexp.types import ConfigError
from tests.contract.cases import FOLDERS, MODELS
from tests.marks import few, some_long
from tests.steps import CPU
from tests.texts import real_model

CONFIGS = Configs(own=FOLDERS)
FEW = ["task.dataset_size=60", "task.test_size=30"]


def config_of(model, task, *words):
    words = [f"model={model}", f"task={task}", *(FEW if task != "digits" else []), *words]
    return CONFIGS.compose_anew(["method=dpsgd", "profile=embedded", *words])


def takes_texts(model):
    return "tokenizer" in config_of(model, "digits")["model"]


def built(model, **settings):
    """Build a model for the generated task of its kind; skip where its weights are not here."""
    config = config_of(model, "sentiment" if takes_texts(model) else "shapes")
    if repo := config["model"].get("repo"):
        root = real_model(repo)
        for group in ("model", "task"):
            config[group]["model_root"] = root
    return cli.build_parts(config | settings, CPU)


LARGE = ("wrn28_10", "wrn40_4", "wrn28_4", "wrn16_4", "roberta_large")
"""Of classes that others are of."""


@pytest.mark.parametrize("model", MODELS if FOLDERS else some_long(MODELS, {*MODELS} - {*LARGE}))
def test_a_model_gives_every_example_outputs_of_its_own_and_its_seed_decides_it(model):
    parts, again, other = (built(model, seed=seed) for seed in (0, 0, 1))
    weights = [dict(one.model.state_dict()) for one in (parts, again, other)]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    is_drawn = any(value.any() for value in weights[0].values())  # a linear one begins with zeros
    assert is_drawn != all(torch.equal(v, weights[2][name]) for name, v in weights[0].items())
    inputs = parts.task.train.batch(torch.arange(4)).inputs
    parts.model.eval()
    with torch.no_grad():
        outputs, alone = parts.model(inputs), parts.model(inputs[2:3])
    assert outputs.shape == (4, parts.task.num_classes) and outputs.isfinite().all()
    # Products of some language models are in bfloat16, of 8 bits.
    precision = config_of(model, "digits")["model"].get("precision", "float32")
    bound = 1e-5 if precision == "float32" else 0.05
    torch.testing.assert_close(outputs[2:3], alone, rtol=bound, atol=bound)
    names = {name for name, _ in parts.model.named_parameters()}
    trainable, frozen = named_parameters(parts.model, parts.method)
    assert trainable.keys() | frozen.keys() == names
    head = config_of(model, "digits")["model"]["head"]
    assert {name for name in names if name.startswith(f"{head}.")} <= trainable.keys()


KINDS = ("linear", "resnet20", "bert_tiny", "minilm")


@pytest.mark.parametrize("model", MODELS if FOLDERS else few(MODELS, KINDS))
def test_a_task_of_another_kind_is_refused_in_one_line(model):
    task, kind = ("digits", "no texts") if takes_texts(model) else ("sentiment", "texts")
    said = f"for task {task}, which is of {kind}; got model={model}. Set model."
    with pytest.raises(ConfigError, match=said) as raised:
        cli.build_parts(config_of(model, task), CPU)
    assert "\n" not in str(raised.value)
