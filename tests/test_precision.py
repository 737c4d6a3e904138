"""model.precision=auto: bfloat16 where the processor has units for it."""

import json

import pytest
import torch

from dpexp import cli, records
from dpexp.cli import lookup
from dpexp.models import precision
from dpexp.types import ConfigError
from tests.marks import long
from tests.runs import execute

TEXTS = ["method=dpsgd", "task=sentiment", "profile=embedded", "device=cpu", "epochs=0.5"]
TEXTS += ["task.dataset_size=200", "task.test_size=20", "task.delta=1e-3", "batch_size=50"]
CPU = torch.device("cpu")


@pytest.fixture
def processor(monkeypatch):
    """Give the CPU other instructions."""

    def has(*flags):
        precision._has_units.cache_clear()
        monkeypatch.setattr(precision, "_cpu_flags", lambda: {"avx2", *flags})

    yield has
    precision._has_units.cache_clear()


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ((), "float32"),
        (("avx512_f", "avx512_bw", "avx512_fp16", "amx_int8", "amx_tile"), "float32"),
        (("avx512_bf16",), "bfloat16"),
        (("amx_bf16", "amx_tile"), "bfloat16"),
        (("bf16", "neon"), "bfloat16"),
    ],
)
def test_a_cpu_with_units_takes_bfloat16_and_no_other(flags, expected, processor):
    processor(*flags)
    assert precision.resolve("auto", CPU) == expected
    for named in ("float32", "bfloat16"):
        assert precision.resolve(named, CPU) == named


@pytest.mark.parametrize(
    ("capability", "expected"),
    [((7, 5), "float32"), ((8, 0), "bfloat16"), ((9, 0), "bfloat16"), ((12, 0), "bfloat16")],
)
def test_a_gpu_with_units_takes_bfloat16_and_no_other(capability, expected, monkeypatch):
    precision._has_units.cache_clear()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert precision.resolve("auto", torch.device("cuda:0")) == expected
    precision._has_units.cache_clear()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_this_gpu_is_asked():
    is_half = precision.resolve("auto", torch.device("cuda")) == "bfloat16"
    assert is_half == torch.cuda.is_bf16_supported(including_emulation=False)


def test_linux_and_torch_tell_the_same_of_this_cpu(monkeypatch):
    said = precision._cpu_flags() & {*precision.UNITS}
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    flags = precision._cpu_flags()
    if not flags:
        pytest.skip("no /proc/cpuinfo here")
    assert flags & {*precision.UNITS} == said


def run_id(*words):
    return records.run_id(cli.compose([*TEXTS, *words]))


def test_auto_has_the_id_of_bfloat16_and_names_of_their_own_keep_theirs():
    half, full = run_id("model.precision=bfloat16"), run_id("model.precision=float32")
    assert run_id("model.precision=auto") == half != full == run_id()
    minilm = ["method=rgp", "task=sst2", "profile=quick", "eps=8"]
    ids = {
        records.run_id(cli.compose([*minilm, *more]))
        for more in ([], ["model.precision=bfloat16"], ["model.precision=auto"])
    }
    assert len(ids) == 1


def test_a_word_that_is_no_precision_is_refused_with_the_nearest():
    with pytest.raises(ConfigError, match="float32, bfloat16.* Did you mean bfloat16"):
        cli.build_parts(cli.compose([*TEXTS, "model.precision=bfloat"]), CPU)


@pytest.mark.parametrize(("flags", "resolved"), [long((), "float32"), (("amx_bf16",), "bfloat16")])
def test_the_record_says_what_auto_came_to(flags, resolved, processor, tmp_path):
    processor(*flags)
    auto = of(execute(tmp_path / "auto", *TEXTS, "model.precision=auto"))
    named = of(execute(tmp_path / "named", *TEXTS, f"model.precision={resolved}"))
    assert auto["precision"] == named["precision"] == resolved
    assert auto["weights_sha256"] == named["weights_sha256"]

    def looked_up(word):
        config = cli.compose([*TEXTS, f"model.precision={word}", f"results={tmp_path / 'auto'}"])
        return lookup.done_before(config)

    processor()  # a record is a record, whatever the processor that looks it up
    assert looked_up("auto").startswith("done before: ")
    if resolved == "bfloat16":
        assert looked_up("bfloat16").startswith("done before: ")
    else:
        with pytest.raises(ConfigError, match="products were in float32 and are to be in bfloat16"):
            looked_up("bfloat16")


def of(directory):
    return json.loads((directory / "result.json").read_text())


def test_a_model_without_products_to_choose_has_no_such_entry(tmp_path):
    words = ["method=dpsgd", "task=digits", "profile=embedded", "model=linear", "epochs=0.1"]
    assert "precision" not in of(execute(tmp_path, *words))
