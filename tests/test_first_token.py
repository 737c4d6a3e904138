"""An encoder whose last layer works for the first token alone, against transformers' whole one."""

import pytest
import torch

from tests.texts import from_hub, save_model, texts

LENGTHS = (9, 4, 7, 2, 5)
EVERY = torch.arange(len(LENGTHS))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_last_layer_works_for_the_first_token_alone_and_nothing_changes(
    kind, attention, tmp_path
):
    whole = save_model(tmp_path, kind).double()
    model = from_hub(kind, tmp_path, attention=attention)
    assert [n for n, _ in model.encoder.named_parameters()] == [
        n for n, _ in whole.named_parameters() if not n.startswith("pooler.")
    ]
    ids, mask, segments = texts(kind, LENGTHS).batch(EVERY).inputs.unbind(1)
    assert (mask == 0).any()
    given = {"input_ids": ids, "attention_mask": mask}
    given["token_type_ids"] = segments if kind == "bert" else torch.zeros_like(ids)
    seen = []
    for layer in model.encoder.encoder.layer:
        layer.output.dense.register_forward_hook(lambda _, __, out: seen.append(out.shape[1]))
    states = [some.eval()(**given).last_hidden_state[:, 0] for some in (model.encoder, whole)]
    assert seen == [max(LENGTHS), 1]
    torch.testing.assert_close(*states, rtol=1e-12, atol=1e-12)
    for state in states:
        state.square().sum().backward()
    for name, parameter in model.encoder.named_parameters():
        expected = whole.get_parameter(name).grad
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_last_layers_attention_drops_while_it_trains_and_not_after(attention, tmp_path):
    save_model(tmp_path, "roberta")
    model = from_hub("roberta", tmp_path, attention=attention, dropout=0.3)
    inputs, asking = texts("roberta", LENGTHS).batch(EVERY).inputs, model.encoder.encoder.layer[-1]
    is_dropping = []
    assert asking.attention.self.training
    model.eval()
    for mode in (True, False):
        asking.attention.self.train(mode)
        outputs = [model(inputs) for seed in (0, 1) if torch.manual_seed(seed)]
        is_dropping.append(not torch.equal(*outputs))
    assert is_dropping == [True, False]
