"""Options of any method, together and beside audits: within the budget, verified, used again."""

import pytest

import dpexp
from dpexp import cli
from dpexp.cli.verify import verify
from dpexp.types import ConfigError
from tests.marks import pairs_long, some_long
from tests.runs import one_thread  # noqa: F401 (a fixture)

OPTIONS = {
    "averaging": "averaging=ema averaging.decay=0.9",
    "augmentation": "augmentation=crop_flip augmentation.multiplicity=2 augmentation.padding=1",
    "clipping": "clipping=normalize",
    "all": "averaging=last augmentation=crop_flip augmentation.multiplicity=2 "
    "augmentation.padding=1 clipping=per_layer",
}
DPSGD, ADAPTERS = "dpsgd", "dp_lora method.rank=4"
PAPERS = ["rgp", "lsg", "sparse_dpsgd", "dp_powersgd", "rgp_random"]
RUN = "task=digits profile=embedded eps=8 epochs=0.5 device=cpu micro_batch=64"


@pytest.mark.parametrize(
    ("option", "method"),
    pairs_long(
        OPTIONS,
        [DPSGD, ADAPTERS],
        short=lambda *pair: pair == ("all", DPSGD),
    ),
)
def test_an_audited_run_keeps_a_model_that_loads_and_a_bound_below_its_epsilon(
    option, method, tmp_path
):
    words = f"method={method} {RUN} {OPTIONS[option]} audit=one_run audit.m=100 results={tmp_path}"
    run = dpexp.run(words)
    assert run.result["audit_epsilon_lower"] <= 8
    assert verify(run.directory)[0] == 0
    assert dpexp.load(run.directory).record.result["test_accuracy"] == run.accuracy


@pytest.mark.parametrize("method", some_long(PAPERS, ["rgp"]))
def test_the_papers_methods_take_them_all(method, tmp_path):
    run = dpexp.run(f"method={method} {RUN} {OPTIONS['all']} results={tmp_path}")
    assert verify(run.directory)[0] == 0 and run.epsilon <= 8


@pytest.mark.parametrize(
    ("words", "place", "wanted"),
    [
        ("method=dpsgd audit=one_run audit.batch_size=1", "audit.batch_size", 360),
        ("method=dpsgd audit=one_run audit.clip_norm=0.01", "audit.clip_norm", 1.0),
        ("method=compressive method.bound=example method.xi=0.01", "method.xi", 0.1),
        ("method=dpsgd audit=one_run audit.sampling=shuffle", "audit.sampling", "poisson"),
        ("method=lsg method.batch_size=1", "method.batch_size", 360),
        ("method=lsg method.dataset_size=10", "method.dataset_size", 1437),
        ("method=compressive method.batch_size=1", "method.batch_size", 360),
    ],
)
def test_an_audit_or_a_method_cannot_be_told_of_another_run(words, place, wanted):
    with pytest.raises(ConfigError, match=f"Expected {place} to be .* of the run, {wanted}; got "):
        cli.compose([*words.split(), *RUN.split()])
    run = words.rpartition(" ")[0]
    assert cli.compose([*run.split(), *RUN.split(), f"{place}={wanted}"])


def test_sizes_follow_a_run_whose_examples_are_left_out():
    words = "method=lsg holdout=train holdout.size=37"
    config = cli.compose([*words.split(), *RUN.split()])
    assert config["method"]["dataset_size"] == config["task"]["dataset_size"]
