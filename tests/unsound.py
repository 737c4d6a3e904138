"""Methods whose declaration is false, each in a way of its own."""

from dataclasses import replace

import torch
from torch import Tensor

from dpexp.grad_sample.per_example import MaterializedGrads
from dpexp.methods.compressive import Compressive
from dpexp.methods.cosamp import keep_largest
from dpexp.methods.dpsgd import DPSGD
from dpexp.types import PerExampleGrads


def like(sums, flat):
    """Cut a flat vector into blocks as those of the sums."""
    pieces = flat.split([total.numel() for total in sums.values()])
    return {
        key: piece.view(total.shape).clone()
        for (key, total), piece in zip(sums.items(), pieces, strict=True)
    }


def flat(sums):
    return torch.cat([total.flatten() for total in sums.values()])


class OnHead(DPSGD):
    """DP-SGD on the classifier, with what some of these remember."""

    def __init__(self, train="head", head="head"):
        super().__init__(train, head)


class TopEntries(OnHead):
    """Keeps the top tenth of the exact sums, and declares what DP-SGD does."""

    def compress(self, state, sums):
        vector = flat(sums)
        return like(sums, keep_largest(vector, max(1, len(vector) // 10)))


class TopPositions(OnHead):
    """Releases top entries in the order of their sizes, and knows without noise where they go."""

    def compress(self, state, sums):
        order = flat(sums).abs().argsort(descending=True)
        self.order = order
        return like(sums, 0.1 * flat(sums)[order])

    def reconstruct(self, state, noisy):
        placed = torch.zeros_like(flat(noisy))
        placed[self.order] = flat(noisy)
        return super().reconstruct(state, like(noisy, placed))


class Largest(OnHead):
    """Releases a single block, which of them the exact sums say."""

    def compress(self, state, sums):
        return dict([max(sums.items(), key=lambda one: float(one[1].norm()))])


class Sorted(OnHead):
    """Puts blocks into an order that the sums decide."""

    def compress(self, state, sums):
        in_order = sorted(sums, key=lambda key: float(sums[key].sum()))
        return {key: sums[key].clone() for key in in_order}


class NonZero(OnHead):
    """Leaves out what is zero: how many numbers are released the data say."""

    def compress(self, state, sums):
        return {key: total[total != 0] for key, total in sums.items()}


class Thresholded(OnHead):
    """Sets small entries of the exact sums to zero."""

    def compress(self, state, sums):
        return {key: total * (total.abs() > 0.2) for key, total in sums.items()}


class Normalised(OnHead):
    """Divides by the exact sums' norm, which a small batch does not have."""

    def compress(self, state, sums):
        norm = flat(sums).norm().clamp(min=1e-12)
        return {key: total / norm for key, total in sums.items()}


class Doubled(OnHead):
    """Releases twice the sums."""

    def compress(self, state, sums):
        return {key: 2 * total for key, total in sums.items()}


class Rounded(OnHead):
    """Rounds the exact sums, in the hope that this hides something."""

    def compress(self, state, sums):
        return {key: total.round() for key, total in sums.items()}


class DividedByZero(OnHead):
    """Becomes a NaN for some sums."""

    def compress(self, state, sums):
        return {key: total * (total.sum() / total.sum()) for key, total in sums.items()}


class LongerStep(OnHead):
    """Makes the step as long as the exact sums."""

    def compress(self, state, sums):
        self.norm = float(flat(sums).norm())
        return {key: total.clone() for key, total in sums.items()}

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return {name: self.norm * each for name, each in gradients.items()}, state


class Averaging(OnHead):
    """Divides by how many examples there were."""

    def per_example_grads(self, state, layer, layer_grads):
        per_example = super().per_example_grads(state, layer, layer_grads)
        self.count = len(next(iter(per_example.values())).norms_squared())
        return per_example

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return {name: each / self.count for name, each in gradients.items()}, state


class Undeclared(OnHead):
    """Releases more than it declares."""

    def releases(self, state, clip_norm):
        (release,) = super().releases(state, clip_norm)
        return (type(release)(**{**vars(release), "dimension": release.dimension - 1}),)


class Remembering(OnHead):
    """Keeps the exact sums in its state, for the next step."""

    def compress(self, state, sums):
        self.seen = {str(key): total.clone() for key, total in sums.items()}
        return {key: total.clone() for key, total in sums.items()}

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return gradients, {**state, "seen": self.seen}


class Steering(OnHead):
    """Draws the next step's weights to the examples' own mean, past the mechanism."""

    def prepare(self, model, state, public, gen):
        with torch.no_grad():
            for name, mean in getattr(self, "seen", {}).items():
                model.get_parameter(name).add_(mean)
        return state

    def compress(self, state, sums):
        self.seen = {key.parameter: -0.01 * total for key, total in sums.items()}
        return {key: total.clone() for key, total in sums.items()}


class Foreseeing(OnHead):
    """Runs the next step with weights that the exact sums moved."""

    def prepare(self, model, state, public, gen):
        self.weights = {name: model.get_parameter(name).detach() for name in state["shapes"]}
        return state

    def compress(self, state, sums):
        self.seen = {key.parameter: total.clone() for key, total in sums.items()}
        return sums

    def forward_weights(self, state):
        return {
            name: self.weights[name] - total.to(self.weights[name])
            for name, total in getattr(self, "seen", {}).items()
        }


class Masking(OnHead):
    """Keeps gradients only where the last step's exact sums were positive."""

    def compress(self, state, sums):
        self.seen = {key: total > 0 for key, total in sums.items()}
        return sums

    def per_example_grads(self, state, layer, layer_grads):
        per_example = super().per_example_grads(state, layer, layer_grads)
        if not hasattr(self, "seen"):
            return per_example
        return {
            key: MaterializedGrads(each.materialize() * self.seen[key])
            for key, each in per_example.items()
        }


class Echoing(OnHead):
    """Adds the last step's exact sums as a made-up example, clipped as any."""

    def compress(self, state, sums):
        self.seen = {key: MaterializedGrads(total[None].clone()) for key, total in sums.items()}
        return sums

    def crafted(self, state):
        return (1, self.seen) if hasattr(self, "seen") else (0, {})


class Scaling(OnHead):
    """Scales by the inputs' size that the micro-batch before had."""

    def per_example_grads(self, state, layer, layer_grads):
        before, self.seen = (
            getattr(self, "seen", 1.0),
            float(layer_grads.x.nan_to_num().abs().mean()),
        )
        per_example = super().per_example_grads(state, layer, layer_grads)
        return {
            key: MaterializedGrads(1e-3 * before * each.materialize())
            for key, each in per_example.items()
        }


class Lying(PerExampleGrads):
    """Says that its vectors are half as long as they are."""

    def __init__(self, grads):
        self.grads = grads

    def norms_squared(self) -> Tensor:
        return self.grads.norms_squared() / 4

    def measured(self):
        size, held = self.grads.measured()
        return size._replace(squares=size.squares / 4, energy=size.energy / 4), Lying(held)

    def add_to(self, total, weights):
        self.grads.add_to(total, weights)

    def materialize(self):
        return self.grads.materialize()

    def select(self, mask):
        return Lying(self.grads.select(mask))

    def double(self):
        return Lying(self.grads.double())


class Understated(OnHead):
    """Clips by norms that are too small."""

    def per_example_grads(self, state, layer, layer_grads):
        return {
            key: Lying(grads)
            for key, grads in super().per_example_grads(state, layer, layer_grads).items()
        }


class Growing(OnHead):
    """Doubles what it releases, and its sensitivity, after the step that noise is calibrated at."""

    def start(self, model):
        return {**super().start(model), "factor": 1.0}

    def compress(self, state, sums):
        return {key: state["factor"] * total for key, total in sums.items()}

    def releases(self, state, clip_norm):
        (release,) = super().releases(state, clip_norm)
        return (replace(release, sensitivity=state["factor"]),)

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return gradients, {**state, "factor": 2.0}


class Counting(OnHead):
    """Counts micro-batches, and so how many examples were drawn."""

    def per_example_grads(self, state, layer, layer_grads):
        state["seen"] = state.get("seen", 0) + 1
        return super().per_example_grads(state, layer, layer_grads)


class Cautious(OnHead):
    """Halves the step where an example's gradient was very large before it was clipped."""

    def per_example_grads(self, state, layer, layer_grads):
        found = super().per_example_grads(state, layer, layer_grads)
        self.is_large = any(float(each.norms_squared().max()) > 1e6 for each in found.values())
        return found

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        factor = 0.5 if self.is_large else 1.0
        return {name: factor * each for name, each in gradients.items()}, state


class ChangesSums(OnHead):
    """Works in place."""

    def compress(self, state, sums):
        for total in sums.values():
            total *= 0.5
        return sums


class Late(OnHead):
    """Doubles what it releases from the sixth step on."""

    first = 5

    def start(self, model):
        return {**super().start(model), "at": 0}

    def compress(self, state, sums):
        factor = 2.0 if state["at"] >= self.first else 1.0
        return {key: factor * total for key, total in sums.items()}

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return gradients, {**state, "at": state["at"] + 1}


class AfterAnEpoch(Late):
    """Doubles what it releases after 15 steps, an epoch of digits in batches of a hundred."""

    first = 15


class LateAside(OnHead):
    """Doubles what it releases from the sixth step on, which it counts outside of its state."""

    taken = 0

    def compress(self, state, sums):
        self.taken += 1
        factor = 2.0 if self.taken > 5 else 1.0
        return {key: factor * total for key, total in sums.items()}


class LateSteering(OnHead):
    """Makes the step as long as the exact sums from the sixth step on."""

    def start(self, model):
        return {**super().start(model), "at": 0}

    def compress(self, state, sums):
        self.norm = float(flat(sums).norm())
        return {key: total.clone() for key, total in sums.items()}

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        factor = self.norm if state["at"] >= 5 else 1.0
        gradients = {name: factor * each for name, each in gradients.items()}
        return gradients, {**state, "at": state["at"] + 1}


class Crowded(OnHead):
    """Doubles what it releases of more than a hundred examples."""

    def per_example_grads(self, state, layer, layer_grads):
        found = super().per_example_grads(state, layer, layer_grads)
        self.count = len(next(iter(found.values())).norms_squared())
        return found

    def compress(self, state, sums):
        factor = 2.0 if getattr(self, "count", 0) > 100 else 1.0
        return {key: factor * total for key, total in sums.items()}


class CrowdedStep(Crowded):
    """Halves the step after more than a hundred examples."""

    def compress(self, state, sums):
        return sums

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        factor = 0.5 if getattr(self, "count", 0) > 100 else 1.0
        return {name: factor * each for name, each in gradients.items()}, state


class Idling(OnHead):
    """Takes no step where no example was drawn."""

    def prepare(self, model, state, public, gen):
        self.has_drawn = False
        return super().prepare(model, state, public, gen)

    def per_example_grads(self, state, layer, layer_grads):
        self.has_drawn = True
        return super().per_example_grads(state, layer, layer_grads)

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return {name: self.has_drawn * each for name, each in gradients.items()}, state


class Unready(OnHead):
    """Cannot take a step where no example was drawn."""

    def per_example_grads(self, state, layer, layer_grads):
        self.device = layer_grads.x.device
        return super().per_example_grads(state, layer, layer_grads)

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        return {name: each.to(self.device) for name, each in gradients.items()}, state


class Heavy(OnHead):
    """Releases twice as much once the weights have grown."""

    def prepare(self, model, state, public, gen):
        weights = model.get_parameter("head.weight")
        self.times = 2 if weights.norm() > 2 * weights.numel() ** 0.5 else 1
        return super().prepare(model, state, public, gen)

    def compress(self, state, sums):
        return {key: self.times * total for key, total in sums.items()}


class Light(OnHead):
    """Releases twice as much once the weights have shrunk."""

    def prepare(self, model, state, public, gen):
        weights = model.get_parameter("head.weight")
        self.times = 2 if weights.norm() < 0.02 * weights.numel() ** 0.5 else 1
        return super().prepare(model, state, public, gen)

    def compress(self, state, sums):
        return {key: self.times * total for key, total in sums.items()}


class HeavyStep(OnHead):
    """Divides by the number of examples, which it counts, once the weights have grown."""

    def prepare(self, model, state, public, gen):
        weights = model.get_parameter("head.weight")
        self.is_heavy, self.count = weights.norm() > 2 * weights.numel() ** 0.5, 0
        return super().prepare(model, state, public, gen)

    def per_example_grads(self, state, layer, layer_grads):
        self.count += len(layer_grads.x)
        return super().per_example_grads(state, layer, layer_grads)

    def reconstruct(self, state, noisy):
        gradients, state = super().reconstruct(state, noisy)
        share = 1 / max(1, self.count) if self.is_heavy else 1
        return {name: share * each for name, each in gradients.items()}, state


class HalfDeclared(Compressive):
    """Compressive SGD with half of its sensitivity declared."""

    def releases(self, state, clip_norm):
        (release,) = super().releases(state, clip_norm)
        return (type(release)(**{**vars(release), "sensitivity": release.sensitivity / 2}),)


SENSITIVITY = r"one example moves release \w+ by ([2-9]|\d\d+|1\.[1-9]|nan)"
STRUCTURE = r"the structure of the releases depends on the examples"
NUMBERS = r"Expected the method's `compress` to return release gradient of \d+ numbers"
POST_PROCESSING = r"depends on the examples beyond their releases"
UNSOUND = {
    TopEntries: SENSITIVITY,
    TopPositions: POST_PROCESSING,
    Largest: NUMBERS,
    Sorted: STRUCTURE,
    NonZero: NUMBERS,
    Thresholded: SENSITIVITY,
    Normalised: SENSITIVITY,
    Doubled: SENSITIVITY,
    Rounded: SENSITIVITY,
    DividedByZero: SENSITIVITY,
    LongerStep: POST_PROCESSING,
    Averaging: POST_PROCESSING,
    Undeclared: NUMBERS,
    Remembering: POST_PROCESSING,
    Steering: POST_PROCESSING,
    **dict.fromkeys(
        [Foreseeing, Masking, Echoing, Scaling], "next step's sum depends on the examples"
    ),
    Understated: SENSITIVITY,
    ChangesSums: "compress changes the sums",
    Growing: "declared releases change by step 2",
    Counting: POST_PROCESSING,
    Cautious: POST_PROCESSING,
    Late: rf"{SENSITIVITY}.*; step 6\)",
    LateAside: rf"{SENSITIVITY}.*; step 6\)",
    LateSteering: POST_PROCESSING,
    Crowded: rf"{SENSITIVITY}.*; beside 128 others\)",
    CrowdedStep: POST_PROCESSING,
    Idling: POST_PROCESSING,
    Heavy: rf"{SENSITIVITY}.*; with weights times 64\)",
    Light: rf"{SENSITIVITY}.*; with weights times 0.015625\)",
    HeavyStep: POST_PROCESSING,
    Unready: r"a step that draws no example fails \(AttributeError",
}
"""Each with what must be found of it."""
