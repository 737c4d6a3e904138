"""`dpexp.train`: any module, on examples in memory."""

import copy
import functools
import math
import multiprocessing
import pickle
import re
import shutil
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from torch.utils.data import DataLoader, TensorDataset

import dpexp
from dpexp import records
from dpexp.cli.groups import CONF
from dpexp.cli.verify import verify
from dpexp.models.copies import copied
from dpexp.privacy.certificate import COUNTED
from dpexp.records.keyed import KEY
from dpexp.types import ConfigError
from tests.marks import few, long
from tests.runs import one_thread  # noqa: F401 (a fixture)


def blobs(count, seed, classes=3, shape=(1, 4, 4)):
    """Draw images whose class is where they are bright."""
    gen = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (count,), generator=gen)
    inputs = 0.3 * torch.rand(count, *shape, generator=gen)
    for index, target in enumerate(targets.tolist()):
        inputs[index, :, target] += 0.7
    return inputs, targets


TRAIN, TEST = blobs(200, 0), blobs(100, 1)
FLAT = {name: (part[0][:, 0, 0], part[1]) for name, part in (("train", TRAIN), ("test", TEST))}


def network(seed=0, classes=3):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, classes)
    )


@pytest.fixture
def trained(tmp_path):
    """Trains with short settings, others on request."""

    def train(model=None, train=TRAIN, test=TEST, **changes):
        said = {"method": "dpsgd", "eps": 8, "epochs": 2, "batch_size": 50, "lr": 0.5}
        said |= {"device": "cpu", "results": tmp_path} | changes
        return dpexp.train(network() if model is None else model, train, test, **said)

    return train


class Shifted(nn.Module):
    """Adds a parameter that no gradient reaches: what DP-ZO alone can train."""

    def __init__(self):
        super().__init__()
        self.shift, self.inner = nn.Parameter(torch.zeros(3)), network()

    def forward(self, x):
        return self.inner(x) + self.shift.detach()


@pytest.mark.parametrize("method", ["dpsgd", "dp_zo"])
def test_what_no_gradient_reaches_is_told_of_where_a_method_takes_gradients(method, trained):
    settings = {} if method == "dpsgd" else {"optimizer": "sgd_plain"}
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        trained(Shifted(), method=method, lr=1e-3, **settings)
    told = [str(each.message) for each in said if "shift" in str(each.message)]
    assert len(told) == (method == "dpsgd"), told
    assert all("shift has no gradient" in each for each in told)


TRAINED = ["dpsgd", "rgp", "lsg", "dp_powersgd", "sparse_dpsgd"]


@pytest.mark.parametrize("method", few(TRAINED, ["dpsgd", "lsg"]))
def test_it_trains_a_copy_within_the_budget_and_the_record_holds(method, trained):
    model = network()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ranked = method in ("rgp", "lsg", "dp_powersgd")
    settings = {"method.rank": 2} if ranked else {}
    run = trained(model, method=method, settings=settings)
    assert run.epsilon <= 8 and run.certificate["target_epsilon"] == 8
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    with torch.no_grad():
        right = (run.model(TEST[0]).argmax(1) == TEST[1]).float().mean()
    assert 100 * float(right) == pytest.approx(run.accuracy, abs=1e-4)
    assert not torch.equal(run.model[0].weight, before["0.weight"])
    assert verify(run.directory)[0] == 0
    assert run.certificate["delta"] == 1e-3  # the largest power of ten up to 1 / 400
    assert run.certificate["deviations"] == [COUNTED]
    declared = trained(model, method=method, dataset_size=200, settings=settings)
    assert declared.certificate["deviations"] == [] and declared.directory != run.directory
    assert not multiprocessing.active_children()


MOMENTA = [("dpsgd", 0.9), ("rgp", 0.9), ("dp_grape", 0.0), ("dp_zo", 0.0)]


@pytest.mark.parametrize(("method", "momentum"), few(MOMENTA, [MOMENTA[0], MOMENTA[2]]))
def test_without_an_optimizer_a_method_has_its_own(method, momentum, trained):
    settings = {"method.rank": 2} if method in ("rgp", "dp_grape") else {}
    run = trained(method=method, lr=0.01, epochs=1, settings=settings)
    assert run.config["optimizer"]["momentum"] == momentum
    asked = trained(method=method, lr=0.01, epochs=1, optimizer="sgd", settings=settings)
    assert asked.config["optimizer"]["momentum"] == 0.9


COMPUTED = {
    "weight norm": nn.utils.weight_norm,
    "pruned": lambda layer: prune.random_unstructured(layer, "weight", 0.3),
    "spectral norm": nn.utils.spectral_norm,
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize("averaging", few([None, "ema", "last"], ["ema"]))
@pytest.mark.parametrize("computed", COMPUTED)
def test_a_model_may_keep_a_computed_weight_as_an_attribute(computed, averaging, trained):
    """torch copies no such tensor."""
    model = network()
    COMPUTED[computed](model[3])
    settings = {"averaging": averaging} if averaging else {}
    if computed == "spectral norm":
        with pytest.raises(ConfigError):
            trained(model, settings=settings)  # its weights change in every forward pass
        return
    run = trained(model, settings=settings)
    with torch.no_grad():
        right = (run.model(TEST[0]).argmax(1) == TEST[1]).float().mean()
    assert 100 * float(right) == pytest.approx(run.accuracy, abs=1e-4)
    assert run.certificate["trainable"].keys() > {"0.weight"}


class Keeping(nn.Module):
    """Keeps what it last computed, with its history."""

    def __init__(self, kept):
        super().__init__()
        self.body, self.kept, self.last = network(), kept, None

    def forward(self, x):
        self.last = self.body(x)
        if isinstance(self.kept, dict):
            self.kept["last"] = self.last
        else:
            self.kept[:] = [(self.last,)]
        return self.last


@pytest.mark.parametrize("kept", [[], {}], ids=["in a list", "in a dict"])
def test_a_model_that_was_run_and_keeps_what_it_put_out_is_copied(kept, trained):
    model = Keeping(kept)
    model(TRAIN[0])
    run = trained(model, settings={"averaging": "ema"})
    assert run.model is not model and run.accuracy > 0


def test_a_method_has_its_own_schedule_too(trained):
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    run = trained(model, method="compressive", epochs=1, batch_size=200, lr=0.1)
    assert run.config["schedule"]["_target_"].endswith("InverseRoot")
    assert trained().config["schedule"]["fractions"] == []


class Scaled(nn.Module):
    """A network whose output one number scales, behind whole numbers that stand first."""

    def __init__(self, classes=3):
        super().__init__()
        torch.manual_seed(0)
        self.order = nn.Parameter(torch.arange(15, -1, -1), requires_grad=False)
        self.inner, self.scale = nn.Linear(16, 8), nn.Parameter(torch.tensor(2.0))
        self.mask = nn.Parameter(torch.ones(8, dtype=torch.bool), requires_grad=False)
        self.none, self.out = nn.Parameter(torch.empty(0)), nn.Linear(8, classes)

    def forward(self, x):
        inner = torch.tanh(self.inner(x.flatten(1)[:, self.order])) + self.none.sum()
        return self.out(self.scale * inner * self.mask)


NUMBERED = {
    "dpsgd": {},
    "dpsgd, masked": {"clipping": "normalize"},
    "dpsgd, by layer": {"clipping": "per_layer"},
    "dpsgd, averaged": {"averaging": "ema"},
    "dpsgd, the last averaged": {"averaging": "last"},
    "sparse_dpsgd": {},
    "dp_powersgd": {"method.rank": 2},
    "dp_grape": {"method.rank": 2},
    "dp_zo": {"method.directions": 2, "optimizer.lr": 1e-3},
    "rgp": {"method.rank": 2},
    "lsg": {"method.rank": 2},
    "gep": {"method.basis": "random", "method.k": 6, "method.groups": "all"},
    "bitfit": {},
}


SHORT = ["dpsgd, masked", "dp_zo", "rgp"]


@pytest.mark.parametrize("name", few(NUMBERED, SHORT))
def test_a_model_may_hold_single_numbers_and_whole_ones(name, trained):
    settings = dict(NUMBERED[name])
    lr = settings.pop("optimizer.lr", 0.5)
    run = trained(Scaled(), method=name.partition(",")[0], settings=settings, lr=lr)
    before = Scaled()
    for kept in ("order", "mask"):
        assert torch.equal(getattr(run.model, kept), getattr(before, kept))
    assert not torch.equal(run.model.out.weight, before.out.weight)
    assert (run.model.scale.item() != 2.0) == ("scale" in run.certificate["trainable"])
    assert verify(run.directory)[0] == 0


@pytest.mark.parametrize("is_trained", [True, False])
def test_complex_weights_are_refused_in_a_line(is_trained, trained):
    model = Scaled()
    model.turn = nn.Parameter(torch.ones(3, dtype=torch.complex64), requires_grad=is_trained)
    for method in ("dpsgd", "dp_zo"):
        with pytest.raises(ConfigError, match="real numbers; turn is in torch.complex64"):
            trained(model, method=method, settings={})


def test_numbers_of_numpy_and_torch_and_paths_are_numbers_and_words(trained, tmp_path):
    words = {
        "eps": np.float32(8),
        "lr": torch.tensor(0.5),
        "batch_size": np.int64(50),
        "epochs": np.int32(2),
        "seed": np.array(0),
        "clip_norm": np.float64(1),
        "dataset_size": np.int64(200),
        "delta": np.float64(1e-3),
        "device": torch.device("cpu"),
        "settings": {"micro_batch": np.int16(50), "checkpoint": np.str_("none")},
    }
    del words["settings"]["checkpoint"]
    run = trained(**words)
    plain = trained(eps=8, clip_norm=1.0, seed=0, dataset_size=200, settings={"micro_batch": 50})
    assert run.directory == plain.directory


def test_a_setting_that_is_no_number_or_word_is_named(trained):
    with pytest.raises(
        ConfigError, match="Expected .*micro_batch.* to be a number, a word.*object"
    ):
        trained(settings={"micro_batch": object()})


def test_noise_may_be_correlated_across_steps(trained):
    run = trained(settings={"noise": "correlated", "noise.bands": 2})
    assert run.certificate["correlation"]["bands"] == 2 and run.certificate["sampling"] == "cyclic"
    assert 7 < run.epsilon <= 8 and verify(run.directory)[0] == 0


def test_inputs_that_are_all_nan_are_told_of_once(trained, caplog):
    run = trained(train=(TRAIN[0] * np.nan, TRAIN[1]), test=(TEST[0] * np.nan, TEST[1]))
    said = [r.message for r in caplog.records if "not finite" in r.message]
    assert len(said) == 2 and {line.split(" ")[0] for line in said} == {"Gradients", "Outputs"}
    assert run.accuracy == 0 and not any(ch.isdigit() for line in said for ch in line)


def test_without_noise_it_learns(trained):
    run = trained(eps=None, epochs=20, method="nonprivate", lr=0.2)
    assert run.accuracy > 90 and run.epsilon is None


@pytest.mark.parametrize("method", few(["dpsgd", "dp_lora", "rgp"], ["dpsgd"]))
def test_a_model_that_is_not_kept_is_in_memory_alone(method, trained, tmp_path):
    more = {"method.rank": 2} if method != "dpsgd" else {}
    said = {"method": method, "settings": {"weights": "discard", "averaging": "ema", **more}}
    run, kept = (
        trained(**said),
        trained(
            **said
            | {"results": tmp_path / "kept", "settings": {**said["settings"], "weights": "keep"}}
        ),
    )
    for name, each in kept.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], each)
    assert not run.model.training
    with torch.no_grad():
        right = (run.model(TEST[0]).argmax(1) == TEST[1]).float().mean()
    assert 100 * float(right) == pytest.approx(run.accuracy)
    again = trained(**said)
    assert again.directory == run.directory and again.accuracy == run.accuracy
    for ask in (lambda: again.model, lambda: dpexp.load(run.directory)):
        with pytest.raises(ConfigError, match="Expected a run that kept its model; .* holds none"):
            ask()


def test_called_again_it_is_looked_up_and_goes_on_where_it_stopped(trained, tmp_path):
    heard = []

    def stop(line):
        heard.append(line["step"])
        if line["step"] == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(callbacks=[stop])
    run = trained(callbacks=[stop])
    assert heard == [4, 8]
    whole = trained(results=tmp_path / "at once")
    assert run.result["weights_sha256"] == whole.result["weights_sha256"]
    again = trained(callbacks=[stop])
    assert again == run and heard == [4, 8]
    theirs = run.model.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in again.model.state_dict().items())


class Net(nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.out, self.scale = nn.Linear(16, 3), scale

    def forward(self, x):
        return self.out(x.flatten(1)) * self.scale


class Other(Net):
    def forward(self, x):
        return self.out(x.flatten(1)) * self.scale + 1


def test_words_for_no_choice_leave_the_run_as_it_is(trained):
    """As a loop over runs with and without a choice says them."""
    groups = ("averaging", "features", "holdout", "prompts", "public", "warm_start")
    settings = dict.fromkeys(groups, "none") | {"clipping": "flat"}
    assert trained(settings=settings, epochs=0.25).directory == trained(epochs=0.25).directory


def test_memory_that_runs_out_anywhere_is_one_line(trained):
    with pytest.raises(ConfigError, match="Expected the run to fit in memory") as refused:
        trained(callbacks=[lambda line: torch.empty(2**60)])
    assert "\n" not in str(refused.value) and "{'micro_batch': 'auto'}" in str(refused.value)


def named(kind, name, **changes):
    """The same class name and weights, so that only what it computes is another."""
    torch.manual_seed(0)
    return type(name, (kind,), {})(**changes)


def test_another_model_of_the_same_name_and_weights_is_another_run(trained):
    models = [named(Net, "A"), named(Net, "A", scale=2.0), named(Other, "A"), named(Net, "A")]
    folders = [trained(model).directory for model in models]
    assert folders[0] == folders[3]
    assert len({*folders}) == 3


class Held(Net):
    """It holds what a copy might have under another number, place or order."""

    def __init__(self):
        super().__init__()
        self.sizes = self.same_sizes = [1, {"a", "b", "c"}]
        self.tied = nn.Sequential(self.out)
        self.made = functools.partial(self.scaled, times=1.0)
        self.register_forward_hook(self.seen)
        self.table = {nn.ReLU: np.ones(2), "view": self.out.bias.detach()[:2]}

    def scaled(self, x, times):
        return x * times

    def seen(self, module, given, made):
        return self.made(made)


def test_a_copy_of_a_model_is_the_same_run(trained):
    torch.manual_seed(0)
    model = Held()
    copies = [copy.deepcopy(model), pickle.loads(pickle.dumps(model)), model]
    models = [model, *copies, copy.deepcopy(copies[0])]
    folders = {trained(each, epochs=0.25).directory for each in models}
    assert len(folders) == 1
    model.same_sizes = [1, {"a", "b", "c"}]
    assert trained(model, epochs=0.25).directory not in folders


def test_a_model_with_parametrized_weights_is_the_same_run_as_its_copy(trained):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    nn.utils.parametrizations.weight_norm(model[1], "bias")
    copied = copy.deepcopy(copy.deepcopy(model))
    folders = {trained(each, epochs=0.25).directory for each in (model, copied, model)}
    assert len(folders) == 1


def test_other_data_weights_or_seed_are_other_runs(trained):
    inputs, targets = TRAIN
    changed = inputs.clone()
    changed[7, 0, 0, 0] += 1e-3
    runs = [
        trained(),
        trained(train=(changed, targets)),
        trained(network(seed=1)),
        trained(seed=1),
        trained(test=(TEST[0][1:], TEST[1][1:])),
    ]
    assert len({run.directory for run in runs}) == 5


def test_every_kind_of_examples_is_the_same_data(trained):
    inputs, targets = TRAIN
    kinds = [
        TRAIN,
        (inputs.numpy(), targets.numpy()),
        TensorDataset(inputs, targets),
        [(one, int(target)) for one, target in zip(inputs, targets, strict=True)],
        (inputs, targets.to(torch.int16)),
    ]
    assert len({trained(train=kind, epochs=0.25).directory for kind in kinds}) == 1


def test_bytes_become_numbers_in_0_to_1(trained):
    def as_bytes(part):
        return (255 * part[0].clamp(0, 1)).to(torch.uint8), part[1]

    run = trained(train=as_bytes(TRAIN), test=as_bytes(TEST))
    pixels, targets = as_bytes(TEST)
    with torch.no_grad():
        right = (run.model(pixels / 255).argmax(1) == targets).float().mean()
    assert 100 * float(right) == pytest.approx(run.accuracy, abs=1e-4)


def test_batch_norm_is_replaced_and_parameters_freeze_where_asked(trained):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 8), nn.Linear(8, 3)
    )
    run = trained(model, settings={"model.fix": True, "method.freeze": ["0.*", "3"]})
    assert isinstance(run.model[1], nn.GroupNorm) and isinstance(model[1], nn.BatchNorm2d)
    assert torch.equal(run.model[0].weight, model[0].weight)
    assert {*run.certificate["frozen"]} == {"0.weight", "0.bias", "3.weight", "3.bias"}
    assert run.result["model_as_run"]
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_convolutions_of_a_model_of_ones_own_standardise_their_weights_where_asked(trained):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    run = trained(model, settings={"model.weight_standardization": True})
    assert run.config["model"]["weight_standardization"] is True
    plain = trained(model)
    x = TEST[0]
    kept = dpexp.load(run.directory, copy.deepcopy(model))  # of plain convolutions, as it was
    assert torch.equal(kept.module(x), run.model(x))
    for scale, alike in ((1.0, True), (5.0, False)):  # a filter's scale is no longer its own
        with torch.no_grad():
            before = [each.model(x) for each in (run, plain)]
            for each in (run, plain):
                next(each.model.parameters()).mul_(scale)
            after = [each.model(x) for each in (run, plain)]
        torch.testing.assert_close(after[0], before[0], rtol=1e-3, atol=1e-4)
        assert torch.allclose(after[1], before[1]) == alike


def test_an_analysis_looks_at_the_run_and_the_certificate_says_so(trained):
    """It was taken and left out."""
    run = trained(settings={"analysis": ["stable_rank", "noise_norm"]})
    kept = np.load(run.directory / "analysis.npz")
    assert {"stable_rank", "noise_norm"} < {name.partition("/")[0] for name in kept}
    assert len(run.certificate["deviations"]) > 1 and verify(run.directory)[0] == 0


class Padded(nn.Conv2d):
    """A subclass, which may compute something else."""


def test_convolutions_that_do_not_standardise_their_weights_are_named(trained):
    """A kernel of one number was zero, and one of two its sign: nothing of it trained."""
    layers = [nn.Conv2d(1, 2, 1), nn.Conv2d(2, 4, 1), nn.Conv2d(4, 4, 2), Padded(4, 4, 1)]
    model = nn.Sequential(*layers, nn.ConvTranspose2d(4, 1, 1), nn.Flatten(), nn.Linear(9, 3))
    run = trained(model, settings={"model.weight_standardization": True})
    assert run.result["model_as_run"]["not_standardized"] == [
        "0: Conv2d of kernels [1, 1, 1]",
        "1: Conv2d of kernels [2, 1, 1]",
        "3: Padded",
        "4: ConvTranspose2d",
    ]
    kinds = [type(each).__name__ for each in run.model[:3]]
    assert kinds == ["Conv2d", "Conv2d", "StandardizedConv2d"]


def test_a_model_none_of_whose_convolutions_can_is_refused_by_their_names(trained):
    model = nn.Sequential(nn.Flatten(2), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(28, 3))
    with pytest.raises(ConfigError, match=r"those of this one cannot \(1: Conv1d\)"):
        trained(model, settings={"model.weight_standardization": True})


def test_adapters_are_merged_in_what_comes_back(trained):
    model = network()
    run = trained(model, method="dp_lora", settings={"method.rank": 2})
    assert run.model.state_dict().keys() == model.state_dict().keys()
    assert not torch.equal(run.model[0].weight, model[0].weight)
    assert torch.equal(run.model[0].bias, model[0].bias)


class Says(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = network()

    def forward(self, x):
        return {"hidden": x, "logits": self.net(x)}


def test_a_model_may_return_logits_by_name(trained):
    run = trained(Says())
    with torch.no_grad():
        right = (run.model(TEST[0]).argmax(1) == TEST[1]).float().mean()
    assert 100 * float(right) == pytest.approx(run.accuracy, abs=1e-4)


def test_a_regression_has_its_error(trained):
    inputs, targets = TRAIN[0].flatten(1), TRAIN[1].float()
    run = trained(nn.Linear(16, 1), (inputs, targets), (inputs, targets), epochs=4, lr=0.05)
    with torch.no_grad():
        error = (run.model(inputs)[:, 0] - targets).square().mean()
    assert run.result["test_mse"] == pytest.approx(float(error), rel=1e-4)


def test_the_callers_random_numbers_stay(trained):
    torch.manual_seed(5)
    expected = torch.rand(3)
    model = network()
    torch.manual_seed(5)
    trained(model)
    assert torch.equal(torch.rand(3), expected)


NO_EXAMPLES = [
    (DataLoader(TensorDataset(*TRAIN)), "got DataLoader. Pass the data set .*, its .dataset"),
    (zip(*TRAIN, strict=True), "got zip. Read it into a list of such pairs"),
    (dict(enumerate(TRAIN)), "got dict. Pass inputs and targets as a pair"),
    (pd.DataFrame({"x": [1.0], "y": [0]}), "got DataFrame. Pass inputs and targets as a pair"),
    (TRAIN[0], "got Tensor. Pass inputs and targets as a pair"),
    (None, "got NoneType. Pass inputs and targets as a pair"),
    (tuple(part.tolist() for part in TRAIN), "Make a tensor of each list, .* targets"),
    ((TRAIN[0], nn.functional.one_hot(TRAIN[1])), r"Give targets.argmax\(1\), if .* one-hot"),
]
"""What notebooks hand over as examples and is none, with what to do about it."""


@pytest.mark.long
def test_runs_of_several_threads_are_what_each_is_alone(trained, tmp_path):
    model = nn.Sequential(*network(), nn.Dropout())

    def weights(seed, folder):
        run = trained(model, seed=seed, results=tmp_path / folder)
        return run.result["weights_sha256"]

    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(weights, (1, 2), ("together", "together")))
    assert together == [weights(1, "alone"), weights(2, "alone")]


def test_it_trains_in_inference_mode_as_outside_of_it(trained, tmp_path):
    outside = trained(epochs=1)
    with torch.inference_mode():
        inside = trained(epochs=1, results=tmp_path / "inside")
        assert torch.is_inference_mode_enabled()
    assert inside.result["weights_sha256"] == outside.result["weights_sha256"]


def missing(targets):
    """Return targets as numbers, of which the fourth is missing."""
    return torch.where(torch.arange(len(targets)) == 3, math.nan, targets.double())


class Unheard(nn.Module):
    """A model whose forward pass keeps no gradient."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 3)

    @torch.no_grad()
    def forward(self, x):
        return self.layer(x.flatten(1))


class Prototypes(nn.Module):
    """A model whose classes are rows of a parameter that is no layer's."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 6)
        self.prototypes = nn.Parameter(
            torch.randn(3, 6, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, x):
        return -torch.cdist(self.body(x.flatten(1)), self.prototypes)


def test_a_classifier_may_be_a_parameter_of_no_layer(trained):
    run = trained(Prototypes(), method="dpsgd")
    moved = run.model.prototypes - Prototypes().prototypes
    assert float(moved.detach().abs().max()) > 0


class OneEach(nn.Module):
    """A model whose classes have a layer each."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(16, 6)
        self.heads = nn.ModuleList([nn.Linear(6, 1) for _ in range(3)])

    def forward(self, x):
        h = torch.tanh(self.body(x.flatten(1)))
        return torch.cat([head(h) for head in self.heads], 1)


def test_classes_may_have_a_layer_each(trained):
    """DP-SGD, which treats no layer apart, was refused for want of one that gives them all."""
    assert 0 < trained(OneEach(), method="dpsgd").epsilon <= 8
    run = trained(OneEach(), method="rgp", settings={"method.rank": 1, "model.head": "heads"})
    assert {"heads.0.weight", "heads.2.bias", "body.weight"} < run.certificate["trainable"].keys()


class ExamplesSecond(nn.Module):
    """A layer of torch that takes the second axis for the examples'."""

    def __init__(self):
        super().__init__()
        self.rows, self.head = nn.GRU(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.rows(x[:, 0])[0][:, -1])


NOT_PRIVATE = ("nonprivate", "linear", "powersgd")
"""The methods without noise and clipping, unless they are asked for them."""


class Counting(Unheard):
    """A model that keeps more than tensors in its state."""

    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"train": TRAIN[0]}, "Expected train to be a pair of tensors"),
        ({"train": (TRAIN[0], TRAIN[1][:-1])}, "each of the 200 inputs; got 199"),
        ({"train": (TRAIN[0].to(torch.int32), TRAIN[1])}, "int32"),
        ({"train": (TRAIN[0], TRAIN[1].float())}, "float32 and int64 .*give the model an output a"),
        (
            {"train": (TRAIN[0], TRAIN[1] + 1)},
            r"train targets in \[0, 3\), as the model has 3 .* 1 to 3. Number",
        ),
        ({"test": (TEST[0], TEST[1] + 7)}, "test targets in .* got 7 to 9"),
        ({"train": (TRAIN[0], TRAIN[1] - 1)}, "got -1 to 1. Leave out what negative"),
        ({"method": "rgp", "settings": {"method.rank": 999}}, r"Set settings={'method.rank': ...}"),
        ({"settings": {"micro_batch": 0}}, r"[Ss]et settings={'micro_batch': ...}"),
        ({"test": (TEST[0][..., :3], TEST[1])}, "test inputs of the train inputs' shape"),
        ({"train": [(torch.zeros(1), 0), (torch.zeros(2), 0)]}, "cannot be stacked"),
        *(({"train": data}, f"{way}\\.$") for data, way in NO_EXAMPLES),
        ({"train": (TRAIN[0][:0], TRAIN[1][:0])}, "at least one train example"),
        ({"test": (TEST[0][:0], TEST[1][:0])}, "at least one test example"),
        (
            {"train": (TRAIN[0], missing(TRAIN[1]))},
            "train targets as .*; example 3 has nan",
        ),
        (
            {"test": (TEST[0], (TEST[1] + 1).double() * 1e300)},
            r"test targets as numbers .*; example 0 has \de\+300",
        ),
        ({"model": nn.Sequential(nn.Flatten(), nn.LazyLinear(3))}, "1 is a LazyLinear that has"),
        ({"model": Unheard()}, "outputs without a gradient, as under torch.no_grad"),
        ({"model": Prototypes(), "method": "rgp"}, "gives the classes; none does. Set settings="),
        ({"model": OneEach(), "method": "rgp"}, "gives the classes; none does. Set settings="),
        ({"model": ExamplesSecond()}, "did not. Give its GRU batch_first=True"),
        ({"model": Counting()}, "state as tensors, .*; _extra_state is a dict"),
        ({"model": nn.Linear(5, 3)}, "Linear fails on them"),
        ({"model": nn.Sequential(nn.Conv2d(1, 4, 3))}, r"returns? .*tensor \[n, outputs\]"),
        ({"method": "dpsdg"}, "Did you mean dpsgd"),
        ({"method": "pate"}, "has its own"),
        *(
            ({name: "1"}, f"^Expected {name} to be a number; got the text '1'. Set {name}.$")
            for name in ("eps", "delta", "epochs", "batch_size", "lr", "seed", "dataset_size")
        ),
        ({"eps": -1}, "Set eps, or eps=None for a run without privacy"),
        ({"epochs": 0}, "epochs"),
        ({"dataset_size": 100}, "dataset_size"),
        ({"dataset_size": 0}, "dataset_size"),
        ({"settings": {"batchsize": 3}}, "batch_size"),
        ({"method": "rgp", "settings": {"++method.rnak": 3}}, "method.rnak: .*mean rank"),
        ({"dataset_size": 199}, "Expected dataset_size=199 .*Set dataset_size=200 if"),
        ({"lr": -1}, r"^Expected lr > 0; got -1\. Set lr\.$"),
        ({"device": "gpu"}, r"^Expected device auto, .*; got device=gpu\. Set device\.$"),
        ({"dataset_size": 1.5}, r"whole number >= 1; got 1.5\. Set dataset_size\.$"),
        ({"clip_norm": -1}, "^Expected clip_norm"),
        ({"method": "gep"}, "Expected a method without public examples: .*'method.basis'"),
        ({"settings": {"public": "digits"}, "method": "rgp_core"}, "Expected no public set"),
        ({"callbacks": print}, "callbacks to be a list of functions; got <built-in"),
        ({"callbacks": [print, 3]}, "callbacks to be a list of functions"),
        ({"settings": {"noise": "correlated"}, "method": "dp_zo"}, "beside noise=correlated"),
        (
            {"settings": {"noise": "correlated"}, "method": "nonprivate"},
            "Expected a run with clipping",
        ),
        *(
            ({"method": name}, rf"Expected a run with noise and clipping .*={name} .* or eps=None")
            for name in NOT_PRIVATE
        ),
        (
            {"method": "linear", "settings": {"noise": True}},
            "a run with clipping beside eps=8; .* Set settings={'clip': True}, or eps=None",
        ),
        ({"delta": "1e-5"}, "^Expected delta"),
        ({"settings": {"noise": None}}, "Expected noise true, false, secret or correlated"),
        ({"results": None}, "Expected results to be a folder's name or path; got None"),
        ({"method": ["dpsgd"]}, "Expected method to be a word, such as 'rgp'; got"),
        ({"settings": {"noise": False}}, "a run with noise .* Set settings={'noise': True}, or"),
        ({"settings": {"eps": 100}}, "Expected eps as an argument"),
        ({"settings": {"privacy.eps": 100}}, "Expected eps as an argument"),
        ({"settings": {"++privacy.delta": 0.1}}, "Expected delta as an argument"),
        (
            {"settings": {"sampling": "poisson", "privacy.sampling": "shuffle"}},
            "one value of privacy.sampling; got sampling=poisson and privacy.sampling=shuffle",
        ),
        ({"settings": {"micro_batch": "64"}}, r"\['micro_batch'\] is the text '64'; leave out"),
        (
            {"settings": {"averaging": "ema", "averaging.decay": "0.9"}},
            r"\['averaging.decay'\] is the text '0.9'; leave out its quotes.$",
        ),
        ({"eps": math.inf}, "^Expected eps to be finite; got inf"),
        (
            {"settings": {"denoise": "doppler", "denoise.a": [-math.inf]}},
            r"^Expected denoise.a to be finite; got -inf",
        ),
        (
            {"settings": {"clipping": ["per_layer", "normalize"]}},
            r"^Expected one clipping; got clipping=\['per_layer', 'normalize'\]",
        ),
        ({"settings": {"micro_batch": -3, "model.head": "3"}}, r"micro_batch': \.\.\.}\.$"),
        ({"settings": {"privacy.delta": 0.1}}, "Expected delta as an argument"),
        ({"settings": {"task.dataset_size": 9}}, "Expected dataset_size as an argument"),
        ({"settings": {"features": "resnet152"}}, "model and inputs as .*settings..features"),
        ({"settings": {"warm_start": "public"}}, "model and inputs as .* or use dpexp.run"),
        ({"settings": {"prompts": "film_reviews"}}, "model and inputs as .* or use dpexp.run"),
        ({"settings": {"analysis": "projection"}}, "analysis without public .*=projection takes"),
        (
            {"method": "dp_zo", "settings": {"clipping": "per_layer"}},
            "out, or set settings={'clipping': 'normalize'}",
        ),
        ({"settings": {"task": "mnist"}}, "Expected train and test as an argument"),
        ({"settings": {"model": "cnn"}}, "Expected model as an argument"),
        ({"model": nn.Linear(4, 3), "method": "lsg", **FLAT}, "one layer as a whole. Wrap it"),
        ({"model": torch.relu}, "torch.nn.Module; got builtin_function_or_method"),
        (
            {"model": nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.Linear(16, 3))},
            "BatchNorm.*Set settings={'model.fix': True}.* or settings={'model.fix': 'freeze'}",
        ),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing(changes, line, trained, tmp_path):
    with pytest.raises(ConfigError, match=line) as refused:
        trained(**changes)
    assert "\n" not in str(refused.value)
    assert not [*tmp_path.rglob("result.json")]


def test_every_method_that_adds_no_noise_is_tried_there():
    files = (CONF / "method").glob("*.yaml")
    off = {path.stem for path in files if re.search(r"^noise: false", path.read_text(), re.M)}
    assert off == {*NOT_PRIVATE}


def test_the_classifier_alone_trains_privately_where_that_is_asked_for(trained):
    run = trained(method="linear", settings={"noise": True, "clip": True})
    assert 0 < run.epsilon <= 8 and not run.certificate["deviations"][1:]
    assert trained(method="linear", eps=None).epsilon is None


class Shifting:
    """A data set whose items differ from one reading to the next."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return torch.rand(1, 4, 4), index % 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"eps": None, "clip_norm": 7}, "clip_norm=7 has no effect"),
        ({"train": Shifting(), "dataset_size": 20, "batch_size": 5}, "differ from one reading"),
        ({"model": nn.Sequential(*network(), nn.Dropout()).eval()}, "dropout"),
    ],
    ids=["idle", "data", "mode"],
)
def test_a_warning_names_the_line_that_called(changes, said, tmp_path):
    said_of = {"model": network(), "train": TRAIN, "eps": 8, "batch_size": 50} | changes
    with pytest.warns(UserWarning, match=said) as told:
        dpexp.train(test=TEST, epochs=0.3, lr=0.1, results=tmp_path, device="cpu", **said_of)
    assert {warned.filename for warned in told} == {__file__}


def test_an_argument_without_effect_is_told_of_by_its_name(trained):
    laplace = {"method.noise": "laplace"}
    with pytest.warns(UserWarning, match="^delta=1e-05 has no effect with Laplace noise"):
        assert trained(method="dp_zo", delta=1e-5, settings=laplace).certificate["delta"] == 0
    carriers = {"method.rank": 1, "method.carriers": "random", "method.warm_up_steps": 5}
    with pytest.warns(UserWarning, match=r"^settings\['method.warm_up_steps'\]=5 has no effect"):
        trained(method="rgp", settings=carriers)
    with pytest.warns(UserWarning, match="^clip_norm=3 has no effect"):
        trained(method="nonprivate", eps=None, clip_norm=3)


def test_an_image_of_a_strange_name_or_a_layer_of_a_number_is_quoted(trained, tmp_path):
    run = trained(results=tmp_path / "a=b, 'c' ε")
    assert run.directory.is_relative_to(tmp_path / "a=b, 'c' ε")
    assert np.isfinite(run.accuracy)


class Words(nn.Module):
    """Reads ids of tokens, of which 0 is padding: a text of nothing else has no mean."""

    def __init__(self, rows=30):
        super().__init__()
        self.table, self.layer = nn.Embedding(rows, 8), nn.Linear(8, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        seen = (ids != 0)[..., None]
        mean = (self.layer(self.table(ids)) * seen).sum(1) / seen.sum(1)
        return self.head(mean)


IDS = torch.randint(1, 30, (200, 6), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("kind", [torch.int64, torch.int32, torch.int16])
def test_integers_reach_the_model_as_they_are(trained, kind):
    inputs = IDS.to(kind)
    run = trained(Words(), (inputs, TRAIN[1]), (inputs, TRAIN[1])) if kind != torch.int16 else None
    if run is None:  # of which torch makes no index
        with pytest.raises(ConfigError, match="a model for int16 inputs of shape"):
            trained(Words(), (inputs, TRAIN[1]), (inputs, TRAIN[1]))
    else:
        assert run.epsilon <= 8


def test_a_model_that_fails_on_an_example_is_one_line(trained):
    with pytest.raises(ConfigError, match=r"Words fails on some \(IndexError: .*mend the data\.$"):
        trained(Words(rows=20), (IDS, TRAIN[1]), (IDS, TRAIN[1]))


@pytest.mark.parametrize("averaging", ["ema", None])
def test_a_model_that_fails_on_a_test_example_alone_is_one_line(trained, averaging):
    """Of averaged weights a copy is evaluated."""
    settings = {} if averaging is None else {"averaging": averaging}
    inputs = IDS.clamp(max=19)
    with pytest.raises(ConfigError, match=r"Words fails on some \(IndexError"):
        trained(Words(rows=20), (inputs, TRAIN[1]), (IDS, TRAIN[1]), settings=settings)


def test_a_callback_whose_own_model_fails_is_not_said_to_be_the_trained_one(trained):
    other = Words(rows=20)
    with pytest.raises(IndexError):
        trained(Words(), (IDS, TRAIN[1]), (IDS, TRAIN[1]), callbacks=[lambda line: other(IDS)])


@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("part", ["train", "test"])
def test_a_callback_that_writes_to_the_examples_is_refused(at, part, trained):
    data = {"train": TRAIN, "test": TEST}
    data[part] = tuple(each.clone() for each in data[part])

    def balance(line):
        data[part][at].numpy()[3] = 0 if data[part][at].numpy()[3].any() else 1

    with pytest.raises(ConfigError, match=r"leave the examples as they are; balance has written"):
        trained(**data, callbacks=[lambda line: line.clear(), balance])


def test_a_callback_that_writes_to_the_weights_that_train_is_refused(trained, tmp_path):
    class Linear(nn.Linear):
        held: ClassVar = []

        def forward(self, x):
            if type(self.weight) is nn.Parameter:  # whose count no write through `.data` raises
                self.held.append(self.weight)
            return super().forward(x)

    def restart(line):
        for weight in Linear.held:
            weight.data.zero_()

    with pytest.raises(ConfigError, match="leave the weights as they are; restart has written"):
        trained(nn.Sequential(nn.Flatten(), Linear(16, 3)), callbacks=[restart])
    assert not [*tmp_path.rglob("checkpoint.pt")]  # from which a run without it would go on


def test_what_torch_compile_wraps_trains_as_without_it(trained):
    plain = trained()
    nested = network()
    nested[0] = torch.compile(nested[0])
    for model in (torch.compile(network()), nested):
        assert trained(model).directory == plain.directory  # the same run, which is looked up
    assert type(trained(torch.compile(network(1))).model) is nn.Sequential
    run = trained()
    for again in (torch.compile(network(2)), network(2)):
        loaded = dpexp.load(run.directory, again).module
        assert torch.equal(loaded(TEST[0]), run.model(TEST[0]))


@pytest.mark.filterwarnings("ignore")  # torch deprecates both
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: torch.jit.script(network()), "the model is a program of torch.jit"),
        (lambda: nn.Sequential(torch.jit.trace(network(), TRAIN[0][:2])), "'0' is a program"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(network(), {nn.Linear}),
            "is packed for quantized inference",
        ),
    ],
)
def test_what_hooks_cannot_see_is_one_line(trained, model, said):
    with pytest.raises(ConfigError, match=said):
        trained(model())


class ByTheLargest(nn.Module):
    """Divides integers by the largest of the batch."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        x = x.float()
        return self.head((x / x.max().clamp(min=1)).flatten(1))


def test_integers_that_mix_examples_are_refused(trained):
    pixels = (255 * TRAIN[0]).long()
    with pytest.raises(ConfigError, match="keep examples apart"):
        trained(ByTheLargest(), (pixels, TRAIN[1]), (pixels, TRAIN[1]))


TINY = {"d_model": 16, "vocab_size": 40, "num_labels": 3, "dropout": 0.0, "dropout_rate": 0.0}
OF_T5 = {"d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2, "decoder_start_token_id": 0}
OF_BART = {"encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 12}
OF_BART |= {f"{side}_{key}": 2 for side in ("encoder", "decoder") for key in ("attention_heads",)}
OF_BART |= {"encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "pad_token_id": 0, "bos_token_id": 3}


@pytest.mark.long
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "sizes", "end"), [long("T5", OF_T5, 1), ("Bart", OF_BART, 2)])
def test_a_model_of_transformers_that_reads_the_end_token_is_tried_and_kept(
    trained, name, sizes, end
):
    """It refuses texts without one, so that what the check makes up has to end with it."""
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{name}Config")(**TINY, **sizes, eos_token_id=end)
    model = getattr(transformers, f"{name}ForSequenceClassification")(config)
    ids = torch.randint(4, 40, (120, 6))
    ids[:, -1] = end
    data, tests = (ids[:100], TRAIN[1][:100]), (ids[100:], TEST[1][:20])
    run = trained(model, data, tests, batch_size=50, epochs=0.5)
    assert "not tried" not in str(run.certificate["deviations"])
    assert len(run.certificate["trainable"]) == len(dict(model.named_parameters()))
    assert (run.directory / "config.json").is_file()


def test_an_id_confirms_no_guess_at_an_example(trained, tmp_path):
    """Whoever knows all examples but one could otherwise compute the id of every guess."""
    run = trained(epochs=0.25, settings={"noise": "secret"})
    told = run.result["data_fingerprint"]
    with_data = {*"result.json released.jsonl checkpoint.pt".split()}  # private, and listed
    for path in run.directory.rglob("*"):
        if path.is_file() and path.name not in with_data:
            assert told[:12].encode() not in path.read_bytes(), path.name
    config = copy.deepcopy(run.config)
    config["task"]["fingerprint"] = told
    assert records.run_id(config) != run.directory.name
    key = tmp_path / KEY
    assert key.stat().st_mode & 0o77 == 0
    assert trained(epochs=0.25, settings={"noise": "secret"}).directory == run.directory
    other = tmp_path / "other"
    assert trained(epochs=0.25, results=other).directory.name != run.directory.name
    key.write_text("no key")
    with pytest.raises(ConfigError, match="results to be a folder of one's own"):
        trained(epochs=0.5)


def test_a_run_that_had_no_key_is_found_again(trained, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr("dpexp.cli.from_python.keyed", lambda results, fingerprint: fingerprint)
        before = trained(epochs=0.25)
    assert trained(epochs=0.25).directory == before.directory


@pytest.mark.parametrize("eps", few([2, None], [2]))
def test_training_on_is_told_and_takes_other_noise(eps, trained):
    first = trained(epochs=0.25, eps=eps)
    if eps is not None:
        with pytest.raises(ConfigError, match="another seed than that of run .*seed=0"):
            trained(first.model, epochs=0.25)
    second = trained(first.model, epochs=0.25, seed=1)
    told = f"began with the weights of run {first.directory.name}"
    assert any(told in each for each in second.certificate["deviations"])
    assert trained(first.model, epochs=0.25, seed=1).directory == second.directory
    code, lines = verify(second.directory)
    assert code == 0 and any("the weights it began with" in line for line in lines)
    assert not any("began" in each for each in first.certificate["deviations"])
    card = (second.directory / "README.md").read_text()
    assert "differentially private (" not in card  # of its own epsilon the weights are not
    assert f"No privacy is claimed: {told}" in card
    shutil.rmtree(first.directory)
    third = trained(second.model, epochs=0.25, seed=2)  # names the first, though it is gone
    words = f"run {second.directory.name}, and it with those of {first.directory.name}: "
    assert words in (third.directory / "README.md").read_text()


class ByView(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.back = self.a.weight.T

    def forward(self, x):
        return self.out(nn.functional.linear(torch.tanh(self.a(x)), self.back))


class BySharedMemory(ByView):
    def __init__(self):
        super().__init__()
        self.b = nn.Linear(4, 4)
        self.b.weight = nn.Parameter(self.a.weight.data.T)

    def forward(self, x):
        return self.out(self.b(torch.tanh(self.a(x))))


class ByClosure(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.blocks = [lambda x: torch.tanh(self.a(x))]

    def forward(self, x):
        return self.out(self.blocks[0](self.a(x)))


def by_hook():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    net[1].register_forward_hook(lambda module, inputs, y: y + net[0](inputs[0]))
    return net


def by_default():
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    net.forward = functools.partial(lambda x, net=net: net[2](net[1](net[0](x))))
    return net


class Calls:
    def __init__(self, module):
        self.module = module

    def __call__(self, x):
        return self.module(x)


def by_a_function_within(wrap):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3))
    within = wrap(net[0])
    net[1].register_forward_hook(lambda module, inputs, y: y + within(inputs[0]))
    return net


class ByBuffer(ByView):
    def __init__(self):
        super().__init__()
        self.register_buffer("back", self.a.weight.detach())

    def __setattr__(self, name, value):
        if name != "back":
            super().__setattr__(name, value)


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: by_a_function_within(lambda layer: lambda x: layer(x)), "function that holds '0'"),
        (lambda: by_a_function_within(Calls), "function that holds '0'"),
        (lambda: by_a_function_within(lambda layer: layer.forward), "function that holds '0'"),
        (ByBuffer, "'back' holds that of 'a.weight'"),
        (ByView, "used by nothing but its own forward pass"),
        (BySharedMemory, "'b.weight' holds a part of 'a.weight'"),
        (ByClosure, "'blocks' is, or has in it, a function that holds the model itself"),
        (by_hook, "'1._forward_hooks' is, or has in it, a function"),
        (by_default, "'forward' is, or has in it, a function"),
    ],
)
@pytest.mark.parametrize("method", ["dpsgd", "nonprivate"])
def test_what_a_copy_would_untie_is_refused(make, line, method, trained):
    """A copy is trained: in it these would go on to use weights that do not move."""
    eps = 8 if method == "dpsgd" else None
    with pytest.raises(ConfigError, match=re.escape(line)):
        trained(make(), method=method, eps=eps, **FLAT)


scale = None  # as a notebook has names


@pytest.mark.parametrize(
    ("use", "is_held"),
    [
        (lambda module, _, y: y * scale, True),
        (lambda module, _, y: y * module.scale, False),
        (lambda module, _, y: y + type("Sum", (), {"of": lambda: scale}).of(), True),
    ],
)
def test_a_hook_holds_a_global_parameter_and_not_an_attribute_of_its_name(
    use, is_held, monkeypatch
):
    model = nn.Linear(4, 3)
    model.scale = nn.Parameter(torch.ones(3))
    monkeypatch.setitem(globals(), "scale", model.scale)
    model.register_forward_hook(use)
    with pytest.raises(ConfigError, match="holds 'scale'") if is_held else nullcontext():
        copied(model)


def test_half_precision_is_said_and_not_blamed_on_the_clip_norm(trained):
    with pytest.raises(ConfigError, match="float16"):
        train, test = ((inputs.half(), targets) for inputs, targets in (TRAIN, TEST))
        trained(network().half(), train, test, epochs=0.25)


class InOneMode(nn.Module):
    """Mixes examples in one mode, and leaves them as they are in the other."""

    def __init__(self, is_training):
        super().__init__()
        self.is_training = is_training

    def forward(self, x):
        return x - x.mean(0) if self.training == self.is_training else x


class OneModeAlone(nn.Module):
    """Mixes examples in eval mode; in training mode it fails."""

    def forward(self, x):
        if self.training:
            raise RuntimeError("it does not train")
        return x - x.mean(0)


def test_a_mode_in_which_a_model_cannot_be_tried_keeps_no_other_from_it(trained):
    model = nn.Sequential(*network(), OneModeAlone()).train()
    with pytest.raises(ConfigError, match="keep examples apart .* by '4', a OneModeAlone"):
        trained(model, method="dp_zo")


@pytest.mark.parametrize(
    ("method", "mixes_in", "trains_in", "is_refused"),
    [
        ("dpsgd", True, True, True),
        ("dpsgd", False, True, False),
        ("dpsgd", True, False, False),
        ("dpsgd", False, False, True),
        ("dp_zo", False, True, True),
        ("dp_zo", False, False, True),
        ("dp_zo", True, True, True),
    ],
)
def test_a_model_is_tried_in_the_mode_that_it_trains_in(
    method, mixes_in, trains_in, is_refused, trained
):
    model = nn.Sequential(*network(), InOneMode(mixes_in)).train(trains_in)
    if not is_refused:
        assert trained(model, method=method).epsilon > 0
        return
    with pytest.raises(ConfigError, match="keep examples apart in training; by '4', a InOneMode"):
        trained(model, method=method)
