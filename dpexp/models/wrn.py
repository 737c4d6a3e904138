"""Wide ResNet with GroupNorm (Zagoruyko & Komodakis 2016, arXiv 1605.07146; rgp, Section 5.1)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor, nn

from dpexp.kernels import norm_relu
from dpexp.models.blocks import conv3x3, in_layout, require_layout, shortcut
from dpexp.types import ConfigError


def group_norm(channels: int) -> nn.GroupNorm:
    """Return min(32, channels) groups and no affine parameters, as the rgp and lsg authors do."""
    return nn.GroupNorm(min(32, channels), channels, affine=False)


def require_size(size: Sequence[int] | None, widths: Sequence[int], stride: int) -> None:
    """Refuse images so small that a GroupNorm would see one value: it gives 0, or fails.

    Args:
        size: height and width of the images, in pixels; None: not known.
        widths: channels of the stages, each of which but the first halves the image.
        stride: of the first convolution.

    Raises:
        ConfigError: naming the smallest side that will do.
    """

    def is_enough(height: int, width: int) -> bool:
        for stage, channels in enumerate(widths):
            shrunk = stride * 2**stage
            pixels = -(-height // shrunk) * -(-width // shrunk)
            if channels // min(32, channels) * pixels < 2:
                return False
        return True

    if size is None or is_enough(*size):
        return
    least = next(side for side in itertools.count(1) if is_enough(side, side))
    height, width = size
    raise ConfigError(
        f"Expected images of at least {least} x {least} pixels; got {height} x {width}. Set "
        "another model."
    )


class PreActivationBlock(nn.Module):
    """Norm, ReLU, convolution, twice; plus a shortcut without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int, has_norm: bool) -> None:
        """Set channels and stride, and whether a strided shortcut is normalised."""
        super().__init__()
        self.stride, self.channels = stride, outputs
        self.norm1, self.conv1 = group_norm(inputs), conv3x3(inputs, outputs, stride)
        self.norm2, self.conv2 = group_norm(outputs), conv3x3(outputs, outputs)
        self.norm = group_norm(inputs) if has_norm and stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        """Map [n, inputs, h, w] to [n, outputs, h / stride, w / stride]."""
        h = self.conv1(norm_relu(self.norm1, x))
        h = self.conv2(norm_relu(self.norm2, h))
        return h + shortcut(x, self.channels, self.stride, self.norm)


class WideResNet(nn.Module):
    """WRN-depth-width: three stages of pre-activation blocks, widths 16, 32, 64 times `width`."""

    has_shortcut_norms = False

    def __init__(
        self,
        depth: int,
        width: int,
        stem_stride: int,
        channels_last: bool | str,
        in_channels: int,
        num_classes: int,
        image_size: Sequence[int] | None = None,
    ) -> None:
        """Build the network.

        Args:
            depth: 6 b + 4 for b blocks a stage.
            width: widening factor.
            stem_stride: of the first convolution; 1 in the paper, 2 quarters the cost.
            channels_last: whether to store features as [n, h, w, c]: True, False, or "auto", if our
                kernels make that faster; the same numbers up to rounding.
            in_channels: channels of the images.
            num_classes: outputs.
            image_size: height and width, in pixels; None: not known.

        Raises:
            ConfigError: the depth is not 6 b + 4, width or stride is below one, channels_last is
                invalid, or the images are too small.
        """
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ConfigError(
                f"Expected a depth of 6 b + 4 (10, 16, 22, 28, ...); got {depth}. Set model.depth."
            )
        if width < 1 or stem_stride < 1:
            raise ConfigError(
                f"Expected model.width >= 1 and model.stem_stride >= 1; got {width} and "
                f"{stem_stride}."
            )
        require_layout(channels_last)
        self._channels_last = channels_last
        blocks = (depth - 4) // 6
        channels = [16 * width, 32 * width, 64 * width]
        require_size(image_size, channels, stem_stride)
        self.stem = conv3x3(in_channels, channels[0], stem_stride)
        stages, inputs = [], channels[0]
        for stage, outputs in enumerate(channels):
            for block in range(blocks):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(PreActivationBlock(inputs, outputs, stride, self.has_shortcut_norms))
                inputs = outputs
        self.blocks = nn.Sequential(*stages)
        self.norm = group_norm(inputs)
        self.head = nn.Linear(inputs, num_classes, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map images [n, c, h, w] to logits [n, num_classes]."""
        x = in_layout(x, self._channels_last)
        h = norm_relu(self.norm, self.blocks(self.stem(x)))
        return self.head(h.mean((2, 3)))


class NormedShortcutWRN(WideResNet):
    """The variant in rgp's released code, with a GroupNorm in strided shortcuts."""

    has_shortcut_norms = True
