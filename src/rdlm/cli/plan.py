"""`rdlm plan`: the expected cost of a run on other devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import tyro

from rdlm.cli.train import SOURCE, chosen_configuration
from rdlm.config import RunConfig
from rdlm.display.text_table import print_json
from rdlm.errors import InputError

CORPORA: dict[str, tuple[int, int, int]] = {
    "demo": (27, 0, 0),
    "text8": (27, 0, 0),
    "enwik8": (256, 0, 0),
    "lm1b": (30522, 0, 0),
    "wikitext-2": (2048, 0, 0),
    "digits": (17, 10, 0),
    "mnist": (256, 10, 0),
    "cifar10": (256, 10, 0),
    "promoter": (4, 0, 1),
    "promoter-chr22": (4, 0, 0),
    "chr22": (4, 2, 0),
    "regulatory": (4, 4, 0),
}
"""Vocabulary, classes and width of the signal of corpora."""


@dataclass(frozen=True)
class PlanRun:
    """Estimate the cost of a run: parameters, FLOPs, memory, speed by the roofline model, hours and dollars.

    Nothing is trained and no data are read: the network is built on the meta device, and its matrix products are
    counted. The estimate has not been compared with a measured run; all its assumptions are printed.
    """

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PRESET|FILE.yaml", help=SOURCE)]
    config: Annotated[RunConfig, tyro.conf.arg(name="")] = field(default_factory=RunConfig)
    """Configuration of the run."""
    device: str = "h100"
    """Devices: h100, a100, l4 or rtx4090, with their number, such as h100:8."""
    price: float | None = None
    """Dollars per device and hour; by default an assumed price, which is printed."""
    vocabulary: int | None = None
    """Vocabulary size of your own data; by default 100."""
    json: bool = False
    """Print one JSON object instead of lines."""

    def run(self) -> int:
        """Print the plan and return 0."""
        from rdlm.data.corpus import recipe_of
        from rdlm.train.roofline import DataSize, plan

        name = self.config.data.name
        known, classes, signal = CORPORA.get(name, (100, 0, 0))
        if self.price is not None and not self.price >= 0:
            raise InputError(f"--price must not be negative, got {self.price:g}")
        length = self.config.data.length or recipe_of(name).length
        data = DataSize(self.vocabulary or known, length, classes, signal)
        found = plan(self.config, data, self.device, self.price)
        if self.json:
            print_json({"device": self.device, **found.to_json()})
            return 0
        for label, value in (
            ("parameters", f"{found.parameters / 1e6:.1f} million"),
            ("tokens of the run", f"{found.tokens:.3g}"),
            ("FLOPs per token", f"{found.flops_per_token:.3g}, forward and backward"),
            ("memory per device", f"{found.memory_per_device / 1e9:.1f} GB" + ("" if found.fits else ": DOES NOT FIT")),
            ("tokens per second", f"{found.tokens_per_second:,.0f} on {self.device}, limited by {found.limit}"),
            ("time of the run", f"{found.hours:,.1f} hours"),
            ("cost of the run", f"{found.dollars:,.0f} dollars"),
        ):
            print(f"{label:<18} {value}")
        print("\nassumptions:")
        for line in found.assumptions:
            print(f"- {line}")
        if not found.fits:
            print("\nIt does not fit: more --training.accumulate, or --training.parallel fsdp.")
        return 0


def defaults(options: Sequence[str]) -> PlanRun:
    """Return the command with the configuration of the preset or file that `options` begin with."""
    return PlanRun(*chosen_configuration("plan", options))
