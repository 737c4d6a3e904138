"""What a trial found of a network of libraries is kept for other processes, and of no other."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

from dpexp import cli, imported
from dpexp.data import Examples, cross_entropy
from dpexp.grad_sample import reading, shared_inputs
from dpexp.grad_sample.hooking import hooked_at_parent
from dpexp.models.cnn import CNN
from dpexp.training.probing import check, kept, known
from dpexp.training.probing.called import code_called
from dpexp.training.train import first_look
from tests.marks import few, long
from tests.steps import CPU, composed


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setattr(kept, "KIND", str(tmp_path / "sound"))
    for name in ("find", "keep"):  # which the suite turns off
        monkeypatch.setattr(kept, name, getattr(kept, name).__wrapped__)
    monkeypatch.setattr(kept, "code_sha256", lambda: "of a few tests")  # which takes a while
    monkeypatch.setattr(known, "_FOUND", {})
    forget()
    yield
    forget()


def forget():
    for each in (kept._kept, kept._files, kept._is_as_imported):
        each.cache_clear()


def of_another_process(monkeypatch):
    monkeypatch.setattr(known, "_FOUND", {})
    forget()


def files():
    return sorted(Path(kept.KIND).rglob("*.json"))


def built(*words):
    return cli.build_parts(composed("dpsgd", "model=cnn", *words), CPU)


def of_timm(architecture, **args):
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    parts = built()
    model = timm.create_model(architecture, num_classes=10, in_chans=1, img_size=8, **args)
    task = replace(parts.task, train=Examples(torch.zeros(5, 1, 8, 8), torch.arange(5)))
    return replace(parts, model=model, task=task)


def tiny():
    return of_timm("vit_tiny_patch16_224", patch_size=4, depth=1, embed_dim=12, num_heads=2)


@pytest.mark.parametrize(
    "make",
    [built, long(lambda: built("task=sentiment", "model=bert_tiny")), tiny],
    ids=["images", "texts", "a network of timm"],
)
def test_another_process_takes_what_was_found(make, monkeypatch):
    first = make()
    assert first_look(first, CPU) is None and len(files()) == 1
    of_another_process(monkeypatch)
    monkeypatch.setattr(check, "_tried", None)
    second = make()
    assert first_look(second, CPU) is None
    for look in (shared_inputs.seen_in, reading.reads_in, hooked_at_parent):
        assert look(second.model) == look(first.model)


def test_a_network_of_a_library_is_tried_with_the_weights_that_it_has(monkeypatch):
    assert first_look(tiny(), CPU) is None
    with torch.no_grad():
        other = tiny()
        other.model.head.bias[3] += 1e-6
    first_look(other, CPU)
    assert len(files()) == 2
    of_another_process(monkeypatch)
    assert first_look(tiny(), CPU) is None and len(files()) == 2


def test_a_network_with_weights_that_are_not_hashed_is_tried():
    parts = tiny()
    parts.model.register_buffer("phases", torch.ones(2, dtype=torch.complex128))
    assert first_look(parts, CPU) is None and not files()


class Own(nn.Linear):
    pass


def own_loss(outputs, targets):
    return cross_entropy(outputs, targets)


def with_a_module(parts, monkeypatch):
    parts.model.head = Own(parts.model.head.in_features, 10)
    return parts


def with_a_hook(parts, monkeypatch):
    parts.model.head.register_forward_hook(lambda module, inputs, outputs: outputs * 1)
    return parts


def with_a_loss(parts, monkeypatch):
    return replace(parts, task=replace(parts.task, loss=own_loss))


def with_another_forward(parts, monkeypatch):
    own = CNN.forward
    monkeypatch.setattr(CNN, "forward", lambda self, x: own(self, x) * 1)
    return parts


def with_another_function(parts, monkeypatch):
    own = functional.linear
    monkeypatch.setattr(functional, "linear", lambda *operands: own(*operands) * 1)
    return parts


CHANGES = [with_a_module, with_a_hook, with_a_loss, with_another_forward, with_another_function]


@pytest.mark.parametrize("change", CHANGES)
def test_nothing_of_the_users_own_is_kept(change, monkeypatch):
    assert first_look(change(built(), monkeypatch), CPU) is None
    assert not files()


def test_attention_that_is_the_users_is_not_known():
    transformers = pytest.importorskip("transformers")
    names = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    config = transformers.DistilBertConfig(
        vocab_size=20, dim=8, hidden_dim=8, n_heads=2, n_layers=1, attn_implementation="sdpa"
    )
    model, ids = transformers.DistilBertModel(config), torch.ones(1, 4, dtype=torch.long)
    own, before = names["sdpa"], code_called(model, ids)
    assert before == code_called(model, ids) is not None
    names.register("sdpa", lambda *args, **kwargs: own(*args, **kwargs))
    try:
        assert code_called(model, ids) is None
    finally:
        names.register("sdpa", own)
    assert code_called(model, ids) == before


def test_a_function_of_a_library_in_anothers_place_is_another_network(monkeypatch):
    model, images = built().model, torch.zeros(1, 1, 8, 8)
    of_each = {}
    for other in (functional.relu, torch.tanh, torch.sigmoid, functional.gelu, lambda x: x * 1):
        monkeypatch.setattr(functional, "relu", other)
        of_each[other] = code_called(model, images)
        assert code_called(model, images) == of_each[other]
    *known, own = of_each.values()
    assert len({*known} - {None}) == len(known) and own is None


def test_a_network_that_is_refused_is_refused_again(monkeypatch):
    parts = built()
    parts.model.head = nn.Sequential(parts.model.head, nn.BatchNorm1d(10, affine=False))
    for _ in range(2):
        with pytest.raises(check.ConfigError, match="keep examples apart"):
            first_look(parts, CPU)
        of_another_process(monkeypatch)
    assert not files()


def edited_library(monkeypatch, tmp_path):
    spec = kept.find_spec("timm")
    path = tmp_path / "timm" / "layers.py"
    path.parent.mkdir()
    path.write_text("")
    spec.submodule_search_locations = [str(path.parent)]
    monkeypatch.setattr(kept, "find_spec", lambda package: spec)
    return lambda: os.utime(path, (1, 1))


def other_code(monkeypatch, tmp_path):
    return lambda: monkeypatch.setattr(kept, "code_sha256", lambda: "changed")


def other_processor(monkeypatch, tmp_path):
    return lambda: monkeypatch.setattr(kept, "processor", lambda: "another")


def other_kernels(monkeypatch, tmp_path):
    return lambda: monkeypatch.setattr(kept, "compiled", lambda: None)


ELSEWHERE = [edited_library, other_code, other_processor, other_kernels]


@pytest.mark.parametrize("what", few(ELSEWHERE, [edited_library, other_code]))
def test_whatever_else_decides_a_trial_has_it_tried_again(what, monkeypatch, tmp_path):
    if kept.compiled() is None and what is other_kernels:
        pytest.skip("needs a C compiler")
    change = what(monkeypatch, tmp_path)
    assert first_look(tiny(), CPU) is None
    of_another_process(monkeypatch)
    assert first_look(tiny(), CPU) is None and len(files()) == 1
    change()
    of_another_process(monkeypatch)
    assert first_look(tiny(), CPU) is None and len(files()) == 2


def test_a_process_that_began_before_the_code_was_changed_keeps_and_finds_nothing(monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(imported, "BEGUN", 0)
        assert first_look(built(), CPU) is None and not files()
    forget()
    parts = built()
    known.remember("a network", parts.model)
    assert len(files()) == 1 and kept.find("a network", parts.model) is not None
    forget()
    monkeypatch.setattr(imported, "BEGUN", 0)
    assert kept.find("a network", parts.model) is None


def test_a_process_whose_files_changed_since_it_began_keeps_and_finds_nothing(monkeypatch):
    assert first_look(built(), CPU) is None
    (path,) = files()
    of_another_process(monkeypatch)
    monkeypatch.setattr(kept.imported, "BEGUN", 0)
    path.write_text('"kept"')
    assert first_look(built(), CPU) is None
    assert path.read_text() == '"kept"'


@pytest.mark.parametrize("text", ["", "nonsense", '"(1, 2)"', '"((), {}, [])"', "[1]"])
def test_what_cannot_be_read_is_tried_again(text, monkeypatch):
    assert first_look(built(), CPU) is None
    (path,) = files()
    sound = path.read_text()
    path.write_text(text)
    of_another_process(monkeypatch)
    assert first_look(built(), CPU) is None
    assert path.read_text() == sound
