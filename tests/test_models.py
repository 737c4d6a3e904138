"""gep's MNIST network: its sizes, where it is the default, and its private gradient."""

from functools import partial

import pytest
import torch

from dpexp import cli, kernels, records
from dpexp.methods.dpsgd import DPSGD
from dpexp.methods.rgp import RGP
from dpexp.methods.sparse_dpsgd import SparseDPSGD
from dpexp.models.cnn import CNN
from dpexp.models.resnet import ResNet
from dpexp.models.wrn import NormedShortcutWRN, WideResNet, group_norm
from dpexp.models.wrn_standardized import StandardizedWRN
from dpexp.types import ConfigError
from tests.marks import few
from tests.methods import literal
from tests.methods.test_against_the_papers import CLIP_NORM, CLOSE, NUM, step


@pytest.mark.parametrize(
    ("channels", "size", "parameters"),
    [(1, (28, 28), 28_938), (3, (32, 32), 34_538), (1, (8, 8), 14_538), (3, (16, 17), 19_178)],
    ids=["mnist", "cifar10", "digits", "odd"],
)
def test_it_builds_for_images_of_any_size(channels, size, parameters):
    model = CNN([16, 32], 5, in_channels=channels, num_classes=10, image_size=size)
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    assert model(torch.randn(3, channels, *size)).shape == (3, 10)


def test_it_is_two_convolutions_with_max_pooling_and_one_linear_layer():
    """Written out by hand on one pixel's worth of everything."""
    model = CNN([1, 1], 1, in_channels=1, num_classes=2, image_size=(4, 4))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    x = torch.arange(-8.0, 8.0).view(1, 1, 4, 4)
    first = [max(0.0, 0.5 * float(v) + 0.5) for v in x.flatten()]
    pooled = [max(first[k] for k in (a, a + 1, a + 4, a + 5)) for a in (0, 2, 8, 10)]
    second = max(max(0.0, 0.5 * v + 0.5) for v in pooled)
    torch.testing.assert_close(model(x), torch.full((1, 2), 0.5 * second + 0.5))


def test_its_private_gradient_is_the_literal_one():
    torch.manual_seed(0)
    model = CNN([3, 4], 3, in_channels=2, num_classes=3, image_size=(6, 6)).double()
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(NUM, 2, 6, 6, generator=gen, dtype=torch.float64)
    y = torch.randint(3, (NUM,), generator=gen)
    got = step(model, DPSGD("all", "head"), x, y, micro_batch=4)
    assert got.clipped > 0
    for name, gradient in literal.dpsgd(model, x, y, CLIP_NORM, NUM).items():
        torch.testing.assert_close(got.gradients[name], gradient, **CLOSE)


@pytest.mark.parametrize("profile", ["embedded", "quick", "short", "paper"])
def test_it_is_the_default_for_mnist_as_gep_trains_it(profile):
    config = cli.compose(["method=dpsgd", "task=mnist", f"profile={profile}"])
    assert config["model"]["name"] == "cnn"
    assert (config["batch_size"], config["privacy"]["clip_norm"]) == (1000, 10)
    assert (config["optimizer"]["lr"], config["optimizer"]["momentum"]) == (0.1, 0.9)
    assert config["epochs"] == {"embedded": 200, "quick": 5, "short": 25, "paper": 200}[profile]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kernel": 4}, r"odd kernel.*kernel=4\. Set model\.channels, model\.kernel"),
        ({"channels": [8]}, r"two numbers of channels.*channels=\[8\]"),
        ({"image_size": (3, 28)}, r"at least 4 x 4 pixels; got 3 x 28"),
    ],
)
def test_sizes_that_make_no_network_are_refused(options, said):
    given = {"channels": [16, 32], "kernel": 5, "image_size": (28, 28)} | options
    with pytest.raises(ConfigError, match=said):
        CNN(in_channels=1, num_classes=10, **given)


NETS = {
    "wrn": partial(WideResNet, 10, 1, 1, in_channels=3, num_classes=10),
    "standardised": partial(StandardizedWRN, 10, 1, 4, in_channels=3, num_classes=10),
    "resnet": partial(ResNet, 8, in_channels=3, num_classes=10),
}


@pytest.mark.parametrize(
    "method",
    [
        DPSGD("all", "head"),
        RGP(4, "both", 1, 0, "update", residual=True, head_factor=1.0, head="head"),
        RGP(4, "left", 1, 0, "update", residual=True, head_factor=1.0, head="head"),
        SparseDPSGD(0.5, "importance", "all", "head"),
    ],
    ids=["dpsgd", "rgp", "rgp-left", "sparse"],
)
@pytest.mark.parametrize("net", few(NETS, ["wrn", "resnet"]))
def test_a_memory_format_changes_no_gradient_and_no_runs_name(net, method):
    words = ["method=rgp", "task=shapes", "profile=embedded"]
    config = cli.compose(words)
    other = cli.compose([*words, "model.channels_last=true"])
    assert records.run_id(other) == records.run_id(config)
    x, y = torch.randn(4, 3, 16, 16, dtype=torch.float64), torch.arange(4)
    made = []
    for channels_last in (False, True):
        torch.manual_seed(0)
        model = NETS[net](channels_last=channels_last).double()
        layouts = []
        model.blocks.register_forward_hook(lambda _, args, out, seen=layouts: seen.append(out))
        made.append(step(model, method, x, y).gradients)
        assert layouts[0].is_contiguous(memory_format=torch.channels_last) is channels_last
    for name, gradient in made[0].items():
        torch.testing.assert_close(made[1][name], gradient, **CLOSE)


@pytest.mark.parametrize("net", NETS)
def test_auto_lays_channels_last_where_kernels_want_it(net):
    model, seen = NETS[net](channels_last="auto"), []
    model.blocks.register_forward_hook(lambda _, args, out: seen.append(out))
    with torch.no_grad():
        model(torch.randn(2, 3, 8, 8))
        model.double()(torch.randn(2, 3, 8, 8, dtype=torch.float64))
    is_last = [out.is_contiguous(memory_format=torch.channels_last) for out in seen]
    assert is_last == [kernels.compiled() is not None, False]


@pytest.mark.parametrize("net", NETS)
def test_another_word_for_a_memory_format_is_refused(net):
    with pytest.raises(ConfigError, match="true, false or auto; got first"):
        NETS[net](channels_last="first")


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_authors_shortcut_picks_normalises_and_appends_zeros(channels_last):
    torch.manual_seed(0)
    model = NormedShortcutWRN(10, 2, 1, channels_last, in_channels=3, num_classes=10)
    plain = WideResNet(10, 2, 1, channels_last, in_channels=3, num_classes=10)
    plain.load_state_dict(model.state_dict())  # it has no parameters of its own
    images = torch.randn(4, 3, 16, 16)
    assert not torch.allclose(model(images), plain(images), atol=1e-3)
    kept, strided = model.blocks[0], model.blocks[1]
    features = 3 + 2 * torch.randn(4, 32, 8, 8)
    with torch.no_grad():
        for block in (kept, strided):
            block.conv2.weight.zero_()  # so that the shortcut alone is left
        torch.testing.assert_close(kept(features), features)
        picked = group_norm(32)(features[:, :, ::2, ::2])
        got = strided(features)
    torch.testing.assert_close(got[:, :32], picked)
    assert got.shape == (4, 64, 4, 4) and not got[:, 32:].any()


@pytest.mark.parametrize(
    ("make", "least"),
    [
        (lambda size: WideResNet(10, 1, 1, False, 3, 10, size), 3),
        (lambda size: WideResNet(10, 1, 2, False, 3, 10, size), 5),
        (lambda size: WideResNet(10, 2, 2, False, 3, 10, size), 3),
    ],
)
def test_images_whose_features_a_norm_would_wipe_out_are_refused_with_the_smallest(make, least):
    smaller = least - 1
    with pytest.raises(ConfigError, match=f"at least {least} x {least} pixels; got {smaller} x"):
        make((smaller, smaller))
    model = make((least, least))
    with torch.no_grad():
        outputs = model(torch.randn(1, 3, least, least))
    assert outputs.isfinite().all() and outputs.std() > 0
