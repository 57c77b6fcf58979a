"""A served model: its name, its engine, and the card that describes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import get_ident

from rdlm.api.language_model import LanguageModel
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import TokenSchedule
from rdlm.serve.engine import Engine
from rdlm.serve.job import Job

GAPS = "_□¤"
"""Marks of an open token, of which the first that the model itself cannot write is taken."""
LARGEST_CARD = 512
"""Tokens of a vocabulary that is listed."""


@dataclass(frozen=True, eq=False)
class ServedModel:
    """A model under the name by which requests ask for it."""

    name: str
    model: LanguageModel
    steps: int
    engine: Engine | None
    """None for the rivals, whose samplers keep their network to themselves."""
    _tickets: dict[int, Job] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if self.engine is None:
            self.model.method.network.register_forward_pre_hook(self._check)

    @property
    def walks(self) -> Engine:
        """Return the engine; an error for a rival, which has no walk to be watched."""
        if self.engine is None:
            raise InputError(f"{self.name} is a model of the method {self.model.config.method!r}; this needs 'rdlm'")
        return self.engine

    @property
    def window(self) -> TokenSchedule:
        """Return the window in which positions run unless another one is asked for; a rival's refuse any other."""
        return self.model.method.token_schedule or TokenSchedule()

    @cached_property
    def gap(self) -> str:
        """Return the mark of an open token in an infill."""
        tokenizer = self.model.tokenizer
        taken = tokenizer.alphabet if isinstance(tokenizer, Characters) else ""
        return next((mark for mark in GAPS if mark not in taken), GAPS[0])

    @cached_property
    def card(self) -> dict[str, object]:
        """Return the model's entry in OpenAI's list, with what is this package's own under `rdlm`."""
        model, size = self.model, self.model.tokenizer.size
        words = [model.tokenizer.decode([i]) for i in range(size)] if size <= LARGEST_CARD else None
        own: dict[str, object] = {
            "method": model.config.method,
            "kind": model.kind,
            "length": model.length,
            "vocabulary": words,
            "steps": self.steps,
            "gap": self.gap,
            "protocol": model.about["protocol"],
            "parameters": sum(p.numel() for p in model.method.network.parameters()),
            "solver": None,
            "grid": None,
            "window": None,
            "order": None,
            "chunk": None,
            "image": model.about["image"],
            "classes": model.about["classes"],
        }
        if isinstance(model.method, Rdlm):
            own |= {
                "solver": "mixture",
                "grid": "time",
                "window": self.window.width,
                "order": self.window.order,
                "chunk": self.window.block,
            }
        return {"id": self.name, "object": "model", "created": self._created, "owned_by": "rdlm", "rdlm": own}

    @contextmanager
    def interruptible(self, job: Job) -> Iterator[None]:
        """Have every call of a rival's network on this thread ask first whether its answer is still wanted."""
        self._tickets[get_ident()] = job
        try:
            yield
        finally:
            del self._tickets[get_ident()]

    def _check(self, *_: object) -> None:
        if (job := self._tickets.get(get_ident())) is not None:
            job.check()

    @property
    def _created(self) -> int:
        folder = self.model.folder
        return 0 if folder is None else int((folder / "tokenizer.json").stat().st_mtime)
