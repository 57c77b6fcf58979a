"""The diffusion that a configuration describes: codec, clock and mixture of paths for one vocabulary."""

from __future__ import annotations

from dataclasses import dataclass

from rdlm.codec import Codec
from rdlm.config import ProcessConfig
from rdlm.process import start
from rdlm.process.bridge import Bridge
from rdlm.process.clock import Schedule, schedule
from rdlm.process.grid import Grid, uniform_in_time
from rdlm.process.path import Mixture, Path


@dataclass(frozen=True, eq=False)
class Process:
    """The diffusion that a configuration describes, for one vocabulary."""

    config: ProcessConfig
    codec: Codec
    clock: Schedule
    mixture: Mixture

    @staticmethod
    def of(config: ProcessConfig, vocabulary: int) -> Process:
        """Return the process over `vocabulary` tokens, split into digits where the configuration says so."""
        codec = Codec(vocabulary, config.base or vocabulary, config.layout)
        clock = schedule(config.schedule, config.total)
        masked = Bridge(start.masked(codec.base), config.total, config.bridge)
        uniform = Bridge(start.uniform(codec.base), config.total, config.bridge)
        mixture = {
            "masked": Mixture((Path(masked),)),
            "uniform": Mixture((Path(uniform),)),
            "constant": Mixture((Path(masked), Path(uniform)), (config.weight, 1 - config.weight)),
            "switch": Mixture((Path(uniform, masked, float(clock.remaining(config.switch))),)),
        }[config.path]
        return Process(config, codec, clock, mixture)

    @property
    def bridge(self) -> Bridge:
        """Return a bridge of the process; pull and evidence are the same for all of them."""
        return self.mixture.paths[0].bridge

    def grid(self, steps: int) -> Grid:
        """Return the grid of a chain of so many steps."""
        return uniform_in_time(self.clock, steps)
