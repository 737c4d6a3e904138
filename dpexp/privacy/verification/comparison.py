"""One certificate beside its config: what differs, and what cannot be compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dpexp.privacy.verification.epsilons import ROUNDING


class Comparison:
    """A certificate, its config and result, and what was found of them.

    Attributes:
        config: of config.yaml.
        result: of result.json.
        privacy: of privacy.json, the certificate.
        tests: how many test examples were counted, by metric, where that is known.
        is_older: whether the record is of code whose files did not name their run.
        findings: what differs, one sentence each.
        unchecked: what was not compared, in words.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        result: Mapping[str, Any],
        privacy: Mapping[str, Any],
        tests: Mapping[str, int],
        is_older: bool,
    ) -> None:
        """Begin with nothing found; see the class."""
        self.findings: list[str] = []
        self.unchecked: list[str] = []
        self.config, self.result, self.privacy = config, result, privacy
        self.tests = tests
        self.is_older = is_older

    def say(self, finding: str) -> None:
        """Add a finding."""
        self.findings.append(" ".join(finding.split()))

    @property
    def size(self) -> int:
        """How many examples are trained on."""
        size = self.config["task"]["dataset_size"]
        # A shadow model holds half of the training set.
        return size // 2 if self.config.get("attack", {}).get("name") == "shadow" else size

    def same(
        self,
        key: str,
        expected: Any,
        where: Mapping[str, Any] | None = None,
        place: str = "",
    ) -> None:
        """Compare an entry, numbers up to rounding, and add a finding if it differs."""
        got = (self.privacy if where is None else where).get(key)
        if isinstance(got, bool) or isinstance(expected, bool):
            is_same = got is expected
        elif isinstance(got, int | float) and isinstance(expected, int | float):
            is_same = math.isclose(got, expected, rel_tol=ROUNDING)
        else:
            is_same = got == expected
        if not is_same:
            self.say(f"{place}{key}: expected {expected}; got {got}")
