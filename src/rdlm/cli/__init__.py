"""The command line, one module per command, and the options of every command that loads a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from rdlm.api.language_model import LanguageModel


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """How a model is loaded."""

    device: str = "cpu"
    """Device of the network: cpu, cuda, cuda:1, mps, or auto, the first available of cuda, mps and cpu."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of the network; states, evidence and probabilities are always in float32 or float64."""
    compile: bool = False
    """Compile the network with torch.compile: the first calls take up to a minute, later ones are faster."""
    trust: tuple[str, ...] = ()
    """Names module:Class of user-defined networks, schedules or bridges that may be imported and run."""

    def load(self, run: str | None) -> LanguageModel:
        """Return a model on the device."""
        import rdlm

        return rdlm.load(run, device=self.device, precision=self.precision, compile=self.compile, trust=self.trust)
