"""One's own model, by each door: it is found, takes the task's examples, and trains."""

import pytest
import torch

from dpexp import cli, records
from dpexp.models.mode import in_mode
from dpexp.privacy.verification.record import verify_record
from tests.doors import TEXT, parts, save

RANDOM = "model.pretrained=false"
ENCODERS = ("DistilBert", "Roberta", "Electra", "Deberta", "ModernBert", "GPT2", "Llama", "T5")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENCODERS)
def test_a_text_gets_the_same_outputs_whatever_stands_beside_it(tmp_path, name):
    repo = save(tmp_path, name)
    built = parts(tmp_path, *TEXT, f"repo={repo}", RANDOM)
    lengths = built.task.train.encoded.lengths
    short, long = int(lengths.argmin()), int(lengths.argmax())
    assert lengths[short] < lengths[long]
    model = built.model.double()
    with in_mode(model, is_training=False), torch.no_grad():
        both = model(built.task.train.batch(torch.tensor([short, long])).inputs)
        alone = model(built.task.train.batch(torch.tensor([short])).inputs)
    assert both.shape == (2, 2)
    torch.testing.assert_close(both[:1], alone, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(both[0], both[1])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["DistilBert", "GPT2"])
@pytest.mark.parametrize("method", ["rgp", "lsg"])
def test_a_run_is_named_for_its_model_found_again_and_verified(tmp_path, name, method):
    repo = save(tmp_path, name, drop=0.1)
    words = [*TEXT, f"repo={repo}", RANDOM, f"model_root={tmp_path}", f"results={tmp_path}"]
    words += [f"method={method}", "method.rank=2"]
    config = cli.compose(words)
    record = records.read(cli.execute(config))
    assert record.result["model"] == config["model"]["name"] == f"hf:{repo} of random weights"
    assert any(key.startswith("dropout set to 0") for key in record.result["model_as_run"])
    head = {"DistilBert": "classifier", "GPT2": "score"}[name]
    assert f"{head}.weight" in record.privacy["trainable"]
    assert verify_record(record).findings == ()
    before = (record.directory / "result.json").read_bytes()
    assert cli.execute(config) == record.directory
    assert (record.directory / "result.json").read_bytes() == before
    assert list(record.result["pretrained_sha256"]) == [repo]
