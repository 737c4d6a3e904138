"""Options of any method, together and beside audits: within the budget, verified, used again."""

import pytest

import dpexp
from dpexp.cli.verify import verify
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
        short=lambda *pair: pair in [("all", DPSGD), ("averaging", ADAPTERS)],
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


@pytest.mark.parametrize("method", some_long(PAPERS, PAPERS[:4]))
def test_the_papers_methods_take_them_all(method, tmp_path):
    run = dpexp.run(f"method={method} {RUN} {OPTIONS['all']} results={tmp_path}")
    assert verify(run.directory)[0] == 0 and run.epsilon <= 8
