"""One frozen object per run that samples, adds noise and accounts, so that they cannot disagree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from dpexp.privacy import certificate as words
from dpexp.privacy.accounting import prv_epsilon
from dpexp.privacy.correlation import Correlation
from dpexp.privacy.laplace import pld_epsilon, pure_epsilon
from dpexp.privacy.rdp import rdp_epsilon, rdp_epsilon_apart
from dpexp.privacy.releases import effective_multiplier
from dpexp.privacy.sampling import cyclic, shuffled
from dpexp.privacy.seeds import generator
from dpexp.types import Release, is_laplace


@dataclass(frozen=True)
class Mechanism:
    """A subsampled Gaussian or Laplace mechanism, run `num_steps` times.

    Each coordinate of a release gets noise of standard deviation (Laplace: of scale)
    noise_multiplier times the release's clip norm, or its own multiplier times that. A step costs a
    mechanism of one `effective_multiplier` on a subsample of probability `sampling_prob`.

    Attributes:
        dataset_size: training examples, as declared in the config.
        batch_size: expected size of a logical batch.
        num_steps: number of steps that the budget is for.
        sampling: "poisson", "cyclic" under correlated noise, or "shuffle" as the authors' code did.
        target_epsilon: None without a budget.
        delta: in (0, 1); 0 under Laplace noise.
        noise: True, False, or "secret" for randomness of the operating system.
        clip: whether examples' contributions are bounded.
        noise_multiplier: 0 without noise.
        releases: of every step.
        seed: of a reproducible experiment.
        calibrated_by: "prv", "rdp" if PRV fails, "pure" under Laplace noise, or "none".
        correlation: of the noise across steps (`dpexp.privacy.correlation`); None: it is fresh at
            every step.
    """

    dataset_size: int
    batch_size: int
    num_steps: int
    sampling: str
    target_epsilon: float | None
    delta: float
    noise: bool | str
    clip: bool
    noise_multiplier: float
    releases: tuple[Release, ...]
    seed: int
    calibrated_by: str
    correlation: Correlation | None = None
    _secret: int | None = field(default=None, repr=False, compare=False)

    @property
    def sampling_prob(self) -> float:
        """Probability q that an example is in a step's batch, before its group is known."""
        return self.batch_size / self.dataset_size

    @property
    def bands(self) -> int:
        """How many steps lie between two that may draw the same example."""
        return 1 if self.correlation is None else self.correlation.bands

    @property
    def participation_prob(self) -> float:
        """Probability that a step draws an example of the group that it draws from."""
        return min(1.0, self.bands * self.sampling_prob)

    def participations(self, steps: int) -> int:
        """Return how many of so many steps may draw one example."""
        return steps if self.correlation is None else self.correlation.participations(steps)

    @property
    def is_private(self) -> bool:
        """Whether any epsilon can be stated."""
        return bool(self.noise) and self.clip

    @property
    def root(self) -> int:
        """Root of sampling, and of noise that can be repeated: the seed, or the secret."""
        return self.seed if self._secret is None else self._secret

    def sample(self, step: int) -> Tensor:
        """Return the step's batch, drawn independently of all other steps (of those of its group).

        Args:
            step: from 0.

        Returns:
            Indices into the training set on the CPU, [n]; n may be 0 under Poisson sampling.
        """
        if self.sampling == "shuffle":
            return shuffled(self.root, step, self.dataset_size, self.batch_size)
        of_group = (self.root, step, self.dataset_size, self.participation_prob, self.bands)
        return cyclic(*of_group, is_secret=self._secret is not None)

    def noise_generator(
        self, step: int, device: str | torch.device = "cpu"
    ) -> torch.Generator | None:
        """Return the generator of the step's noise, which rank 0 alone draws; None: the system's.

        Secret noise comes from no generator of torch's: on a CPU it is linear in its state.
        """
        if self._secret is not None:
            return None
        return generator(self.root, "noise", step, device)

    @property
    def effective_noise_multiplier(self) -> float:
        """Return the multiplier of the one mechanism that a step's releases amount to."""
        return effective_multiplier(self.noise_multiplier, self.releases)

    @property
    def is_laplace(self) -> bool:
        """Whether the noise is Laplace noise."""
        return is_laplace(self.releases)

    @property
    def accountants(self) -> tuple[str, ...]:
        """Return the accountants that apply; the first is the one held to the target."""
        if self.is_laplace:
            return ("pure", "pld")
        return ("rdp",) if self.calibrated_by == "rdp" else ("prv", "rdp")

    def epsilon(self, steps: int, accountant: str | None = None) -> float | None:
        """Return an upper bound on the epsilon spent after some steps.

        Args:
            steps: >= 0; beyond num_steps a new grid is built, which takes longer.
            accountant: one of `accountants`; None: the first.

        Returns:
            None if there is no guarantee.

        Raises:
            ValueError: for another accountant.
            PRVFailed: if the numbers are beyond PRV.
        """
        if not self.is_private:
            return None
        accountant = accountant or self.accountants[0]
        if accountant not in self.accountants:
            raise ValueError(f"Expected accountant {self.accountants}; got {accountant}.")
        sigma, q = self.effective_noise_multiplier, self.participation_prob
        steps, planned = self.participations(steps), self.participations(self.num_steps)
        if accountant == "pure":
            return pure_epsilon(q, sigma, [1.0] * steps)
        if accountant == "pld":
            return pld_epsilon(q, sigma, steps)
        if accountant == "rdp":
            return rdp_epsilon(q, sigma, steps, self.delta)
        return prv_epsilon(q, sigma, steps, self.delta, planned)

    def _participation(self, steps: int) -> dict[str, Any]:
        """Return the certificate's entry on correlated noise and who takes part when."""
        if self.correlation is None:
            return {}
        entry = {
            **self._correlated()["correlation"],
            "participation_prob": self.participation_prob,
            "participations": self.participations(steps),
            "participation": words.PARTICIPATION,
        }
        return {"correlation": entry}

    def with_noise(self, factor: float) -> Mechanism:
        """Return the same mechanism with all of its noise times a factor, > 0."""
        releases = (
            each
            if each.noise_multiplier is None
            else replace(each, noise_multiplier=factor * each.noise_multiplier)
            for each in self.releases
        )
        noise = factor * self.noise_multiplier
        return replace(self, noise_multiplier=noise, releases=tuple(releases))

    def epsilon_at(self, factors: Sequence[float]) -> float | None:
        """Return the epsilon that the run would have if step t's noise were divided by factors[t].

        Args:
            factors: one per step, > 0; above 1 means less Laplace noise than was drawn.

        Returns:
            None if there is no guarantee.
        """
        if not self.is_private or not self.is_laplace:
            return None
        sigma = self.effective_noise_multiplier
        return pure_epsilon(self.sampling_prob, sigma, factors)

    def _epsilon_apart(self, steps: int) -> float | None:
        if len(self.releases) < 2 or self.is_laplace or not self.is_private or steps == 0:
            return None
        sigmas = [r.multiplier(self.noise_multiplier) / r.sensitivity for r in self.releases]
        steps = self.participations(steps)
        return rdp_epsilon_apart(self.participation_prob, sigmas, steps, self.delta)

    def identity(self) -> dict[str, Any]:
        """Return the values that a checkpoint must match to be resumed."""
        return {
            "sampling": self.sampling,
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "steps": self.num_steps,
            "target epsilon": self.target_epsilon,
            "delta": self.delta,
            "noise": self.noise,
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "releases": [_said(release) for release in self.releases],
            "seed": self.seed,
            **self._correlated(),
        }

    def _correlated(self) -> dict[str, Any]:
        """Return what identity and certificate say of correlated noise, by name."""
        if self.correlation is None:
            return {}
        said = {"bands": self.bands, "coefficients": list(self.correlation.coefficients)}
        return {"correlation": said}

    @property
    def deviations(self) -> list[str]:
        """Return, in words, how this run departs from a replayable guarantee."""
        said = {
            words.NO_NOISE: not self.noise,
            words.NO_CLIPPING: not self.clip,
            words.SHUFFLED: self.sampling == "shuffle",
            words.SECRET: self.noise == "secret",
            words.BY_RDP: self.calibrated_by == "rdp",
            words.LARGE_DELTA: self.is_private and self.delta >= 1 / self.dataset_size,
        }
        return [sentence for sentence, holds in said.items() if holds]

    def certificate(
        self,
        *,
        steps: int,
        noise_draws: int,
        trainable: Mapping[str, int],
        frozen: Mapping[str, int],
        deviations: Sequence[str] = (),
        lost_steps: int = 0,
    ) -> dict[str, Any]:
        """Return what was released and what it cost, as plain JSON.

        Args:
            steps: number of steps taken or lost.
            noise_draws: number of steps at which noise was, or may have been, drawn.
            trainable: parameter names with their numbers of entries.
            frozen: likewise.
            deviations: further deviations from the claim.
            lost_steps: number of steps that may have been released but are not in the weights.
        """
        lost = [words.LOST] if lost_steps else []
        apart = self._epsilon_apart(steps)
        return {
            "neighbouring": words.NEIGHBOURS,
            "sampling": self.sampling,
            "q": self.sampling_prob,
            "dataset_size": self.dataset_size,
            "batch_size": self.batch_size,
            "steps": steps,
            "planned_steps": self.num_steps,
            **({"lost_steps": lost_steps} if lost_steps else {}),
            "noise_draws": noise_draws,
            "noise_multiplier": self.noise_multiplier,
            "effective_noise_multiplier": self.effective_noise_multiplier,
            "releases": [
                _said(release) if self.noise else _said(release) | _without_noise(release)
                for release in self.releases
            ],
            **self._participation(steps),
            "epsilon": {name: self.epsilon(steps, name) for name in self.accountants},
            **({} if apart is None else {"accounted_apart": {"rdp": apart, "note": words.APART}}),
            "target_epsilon": self.target_epsilon,
            "delta": self.delta,
            "calibrated_by": self.calibrated_by,
            "replayable": self.noise != "secret",
            "trainable": dict(trainable),
            "frozen": dict(frozen),
            "deviations": [*self.deviations, *lost, *deviations],
        }


def _said(release: Release) -> dict[str, Any]:
    """Return a release's entries; noise of its own is one where it has any."""
    return {name: value for name, value in vars(release).items() if value is not None}


def _without_noise(release: Release) -> dict[str, float]:
    """Return the noise of its own that a release has where all noise is off."""
    return {} if release.noise_multiplier is None else {"noise_multiplier": 0.0}
