"""What the paper model counts is what runs, and docs/scale.md holds what it prints."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dpexp.distributed.ranks import Ranks
from dpexp.grad_sample import Tape
from dpexp.training.states import new_tensors
from scripts.scale.__main__ import main, tables
from scripts.scale.counts import METHODS, Network, held_bytes, of_micro_batch, of_step
from scripts.scale.machine import Machine, step
from scripts.scale.measure import (
    calibrated,
    gradient_of,
    measured,
    method_of,
    model_of,
    of_rank,
    predicted,
    texts_of,
)

DOC = Path(__file__).resolve().parents[1] / "docs" / "scale.md"
WIDE = Network("wide", 2, 64, 128, False, (50, 34, 1), ((64, 64), (2, 64)), tokens=8,
               batch=8, micro_batch=4, rank=4)  # fmt: skip
LONG = replace(WIDE, tokens=48, tables=(50, 66, 1))  # gradients are smaller than what makes them
ALONE = Ranks(0, 1, torch.device("cpu"))


def product_flops(total, left, right, **_):
    return 2 * left[0] * left[1] * right[1]


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("net", [WIDE, LONG], ids=["gram", "formed"])
def test_the_products_are_those_that_torch_counts(net, name):
    private_step = gradient_of(name, net, ALONE)
    in_place = {torch.ops.aten.addmm_: product_flops}  # torch's table lacks it
    counter = FlopCounterMode(display=False, custom_mapping=in_place)
    with counter, sdpa_kernel(SDPBackend.MATH):
        private_step()
    micro_batches = net.batch // net.micro_batch
    works = [*of_micro_batch(net, name, net.micro_batch)] * micro_batches + [*of_step(net, name)]
    assert sum(work.flops for work in works) == counter.get_total_flops()


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_released_and_trained_are_the_methods(name):
    model, method = model_of(WIDE), method_of(name, WIDE)
    blocks = method.release_shapes(
        method.prepare(model, method.start(model), None, torch.Generator())
    )
    sizes = [torch.Size(shape).numel() for shape in blocks.values()]
    assert sorted(WIDE.released(name)) == sorted(sizes)
    parameters = dict(model.named_parameters())
    assert WIDE.trained(name) == sum(parameters[n].numel() for n in method.trainable(model))


@pytest.mark.parametrize("name", METHODS)
def test_what_an_example_holds_is_what_its_carriers_hold(name):
    model, method, held = model_of(WIDE), method_of(name, WIDE), []
    state = method.prepare(model, method.start(model), None, torch.Generator())
    matrices = {n for n, p in model.named_parameters() if p.ndim == 2 and "layer." in n}

    def take(layer, layer_grads):
        for key, grads in method.per_example_grads(state, layer, layer_grads).items():
            if key.parameter in matrices:
                held.extend(vars(grads.measured()[1]).values())

    batch = texts_of(WIDE).batch(torch.arange(4))
    with Tape(model, method.trainable(model), take) as tape:
        tape.expect(4)
        torch.nn.functional.cross_entropy(model(batch.inputs), batch.targets).backward()
    tensors = [part for part in held if isinstance(part, torch.Tensor)]
    assert sum(tensor.nbytes for tensor in tensors) == 4 * held_bytes(WIDE, name)


@pytest.mark.parametrize("name", METHODS)
def test_what_the_first_rank_prepares_is_what_a_step_shares(name):
    model, method = model_of(WIDE), method_of(name, WIDE)
    before = method.start(model)
    prepared = method.prepare(model, before, None, torch.Generator())
    shared = sum(tensor.nbytes for tensor in new_tensors(prepared, before))
    assert shared == 4 * sum(WIDE.shared(name))


def test_a_chain_passes_all_on_and_one_node_uses_its_own_links():
    machine = Machine(nvlink=100.0, network=10.0, link_reached=1.0, hop=1.0)
    assert machine.sending(25, 1) == machine.hopping(3, 1) == 0
    assert machine.sending(25, 2) == machine.sending(25, 8) == pytest.approx(1.0)  # 100 bytes
    assert machine.sending(25, 16) == pytest.approx(10.0)
    assert machine.hopping(3, 4) == 9


def test_more_gpus_share_the_examples_and_not_what_is_done_once():
    machine = Machine(hop=0.0, nvlink=1e30, network=1e30)
    for name in METHODS:
        whole, half = (sum(step(WIDE, name, gpus, machine).values()) for gpus in (1, 2))
        once = sum(step(replace(WIDE, batch=0), name, 1, machine).values())
        assert half - once == pytest.approx((whole - once) / 2)
        assert once > 0


def test_the_document_holds_what_the_program_prints():
    text = DOC.read_text(encoding="utf-8")
    assert [table for table in tables(Machine()).split("\n\n") if table not in text] == []


def test_the_command_line_takes_the_machine(capsys):
    assert main(["network=12.5e9", "hop=1e-5"]) == 0
    assert capsys.readouterr().out.strip() == tables(Machine(network=12.5e9, hop=1e-5))
    assert main(["netwrk=1"]) == 2
    assert "did you mean 'network'?" in capsys.readouterr().err
    assert main(["network=fast"]) == 2


def test_a_calibrated_machine_predicts_the_step_it_was_calibrated_on(tmp_path):
    out = tmp_path / "seen.json"
    threads = torch.get_num_threads()
    of_rank(ALONE, {"net": WIDE, "repeats": 1, "out": str(out)})
    torch.set_num_threads(threads)
    alone = json.loads(out.read_text())
    two = measured(2, WIDE, 1)
    assert set(METHODS) < set(alone) and set(METHODS) < set(two)
    machine = calibrated(WIDE, alone, two)
    assert predicted(WIDE, "DP-SGD", 1, machine, 2) == pytest.approx(alone["DP-SGD"], rel=0.01)
    assert predicted(WIDE, "RGP", 3, machine, 2) > predicted(WIDE, "RGP", 3, machine, 3)
