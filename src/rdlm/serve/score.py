"""Scores: the likelihood bound of texts, whose network calls go along with everybody else's."""

from __future__ import annotations

from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response
from torch import Tensor

from rdlm.api.language_model import LanguageModel
from rdlm.api.score import MIN_DRAWS, Effort, Encoded, encode, score_encoded, windows
from rdlm.likelihood import Posterior
from rdlm.methods.rdlm import Rdlm
from rdlm.model.denoiser import BlockMask
from rdlm.sampling.denoisers import Query
from rdlm.serve.engine import Engine
from rdlm.serve.job import Job
from rdlm.serve.refusal import answer
from rdlm.serve.schema import ScoreBody
from rdlm.serve.served_model import ServedModel
from rdlm.serve.service import Service, while_present

BUDGET = 4096
"""Rows through the network that a text may cost; a longer one is scored from single steps in place of whole paths."""


class Relayed(Rdlm):
    """A method whose questions to its network go through an engine, together with those of all others."""

    def __init__(self, method: Rdlm, engine: Engine, job: Job) -> None:
        self.__dict__.update(method.__dict__)
        self._engine, self._job = engine, job

    def posterior(self, condition: Tensor | None = None, block_mask: BlockMask | None = None) -> Posterior:
        """Return `log p(token | states)` as the engine answers it; texts come without a condition."""

        def ask(state: Tensor, noise: Tensor) -> Tensor:
            return self._engine.evaluate(Query(state, noise.expand(state.shape[:2]), block_mask=block_mask), self._job)

        return ask


def relayed(host: ServedModel, job: Job) -> LanguageModel:
    """Return the model with its network behind the engine; a rival's as it is."""
    if host.engine is None:
        return host.model
    return replace(host.model, method=Relayed(host.model.rdlm, host.engine, job))


def effort_of(host: ServedModel, text: Encoded, nfe: int) -> Effort:
    """Return whole paths where they fit the budget, else as many single steps as do; of a rival, what it has."""
    count = len(windows(text.ids, host.model.length))
    own = host.model.method.bound_estimator
    if own is not None:
        return Effort(nfe, "path", MIN_DRAWS) if own == "path" else Effort(nfe, "steps", 16)
    path = Effort(nfe)
    if path.cost(host.model, count) <= BUDGET:
        return path
    return Effort(nfe, "steps", max(MIN_DRAWS, min(nfe, BUDGET // count)))


async def score(service: Service, host: ServedModel, body: ScoreBody, request: Request) -> Response:
    """Return the bound of each text: what `rdlm score` gives for it alone."""
    service.check_worker()
    job = Job(service.limits.deadline)
    texts = [body.input] if isinstance(body.input, str) else body.input
    nfe = body.steps or host.steps

    def bounds() -> list[dict[str, object]]:
        model = relayed(host, job)
        rows = []
        for index, text in enumerate(texts):
            encoded = encode(model, text)
            with host.interruptible(job):
                (found,) = score_encoded(model, [encoded], effort_of(host, encoded, nfe))
            rows.append({"index": index, **found.row(positions=True)})
        return rows

    service.work(job, bounds)
    rows = await while_present(request, job, anext(job.events()))
    return answer({"object": "score", "model": host.name, "steps": nfe, "data": rows})
