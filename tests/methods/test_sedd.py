"""Score entropy: its floor, what it shares with masked diffusion, and that its steps are probabilities."""

from __future__ import annotations

import math

import pytest
import torch
from exact_network import known
from scipy.stats import chisquare
from torch import nn

from rdlm.config import DiscreteConfig, RunConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.methods import discrete
from rdlm.methods.sedd import SEDD, UNIFORM_START

GRAPHS = pytest.mark.parametrize("graph", ["absorb", "uniform"])


@GRAPHS
@pytest.mark.parametrize("states", [3, 27])
def test_an_independent_source_meets_its_entropy(graph, states):
    source = sources.skewed(states)
    method = known("sedd", source, graph=graph)
    generator = torch.Generator().manual_seed(7)
    token = source.draw(60_000, generator)
    excess = method.bound(Batch(token), 4, generator) + source.log_joint[token[:, 0]]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    # The uniform graph's last step allows for noise that is not there, at 1e-4 nats.
    assert -4 * stderr < float(excess.mean()) < 4 * stderr + 1e-3
    assert stderr < 0.01 * source.entropy


def test_scores_that_sum_to_one_are_masked_diffusion():
    source = sources.markov()
    token = source.draw(500, torch.Generator().manual_seed(0))
    one, other = known("sedd", source), known("mdlm", source)
    for measure in ("bound", "limit"):
        arguments = (Batch(token), 8) if measure == "bound" else (Batch(token),)
        values = [getattr(m, measure)(*arguments, torch.Generator().manual_seed(9)) for m in (one, other)]
        torch.testing.assert_close(values[0], values[1])


def test_the_uniform_graph_has_the_score_entropy_of_uniform_diffusion():
    """Both are the same integral; the graph starts a little later and pays for that in its prior."""
    source = sources.markov()
    token = source.draw(200, torch.Generator().manual_seed(0))
    scores, plain = known("sedd", source, graph="uniform"), known("udlm", source)
    time = torch.full((200,), 0.6, dtype=torch.float64)
    later = (time - UNIFORM_START) / (1 - UNIFORM_START)
    generators = [torch.Generator().manual_seed(2) for _ in range(2)]
    one = scores.integrand(token, later, None, generators[0]) / (1 - UNIFORM_START)
    other = plain.integrand(token, time, None, generators[1])
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


class Wild(nn.Module):
    """Scores that are those of nothing."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.table = 2 * torch.randn(states + 1, states, generator=torch.Generator().manual_seed(1))

    def forward(self, ids, time, condition=None):
        return self.table[ids] * (1 + time[:, None, None])


@GRAPHS
@pytest.mark.parametrize("nfe", [1, 2, 6])
def test_the_bound_holds_for_any_scores(graph, nfe):
    method = SEDD(RunConfig(discrete=DiscreteConfig(graph=graph)), 4)
    method.network = Wild(4)
    law = sampler_law(method, nfe)
    assert float(law.sum()) == pytest.approx(1)
    for token in range(4):
        batch = Batch(torch.full((20_000, 1), token))
        values = method.bound(batch, nfe, torch.Generator().manual_seed(3))
        assert values.isfinite().all()
        assert float(values.mean() + 4 * values.std() / math.sqrt(20_000)) >= -float(law[token].log()) - 1e-9
    drawn = method.generate(20_000, 1, nfe, torch.Generator().manual_seed(4))[:, 0]
    assert chisquare(torch.bincount(drawn, minlength=4), 20_000 * law).pvalue > 1e-3


def sampler_law(method: SEDD, nfe: int) -> torch.Tensor:
    """The exact law of one position, by the transition matrices of all steps."""
    states = 5 if method.config.discrete.graph == "absorb" else 4
    law = torch.zeros(states, dtype=torch.float64)
    law[-1] = 1.0
    if states == 4:
        law[:] = 0.25
    grid = method._rescaled(discrete.alpha_grid(method.schedule, nfe))
    for step in range(nfe):
        state = torch.arange(states)[:, None]
        logits = method.log_probs(state, torch.full((states,), step / nfe))
        law = law @ step_matrix(method, logits, state, grid[step], grid[step + 1])
    return law[:4]


def step_matrix(method: SEDD, logits, state, now, later) -> torch.Tensor:
    """[from, to], written down from the definition of each graph's step."""
    rows = []
    for row, own in zip(logits[:, 0], state[:, 0].tolist(), strict=True):
        if method.config.discrete.graph == "absorb":
            reveal = (later - now) / (1 - now)
            weight = torch.cat((reveal * row.exp() / 4, (1 - reveal)[None]))
            stay = torch.zeros(5, dtype=torch.float64)
            stay[own] = 1.0
            rows.append(weight / weight.sum() if own == 4 else stay)
            continue
        score = row.exp()
        score[own] = 1.0
        keep = now / later
        before = (score - (1 - keep) / 4 * score.sum()) / keep
        before = before.maximum(score.sum() * max(1 - float(later), 1e-4) / 4)
        jump = (1 - keep) / 4 + keep * (torch.arange(4) == own)
        rows.append(jump * before / (jump * before).sum())
    return torch.stack(rows)


@GRAPHS
def test_samples_follow_the_source(graph):
    source = sources.skewed(27)
    drawn = known("sedd", source, graph=graph).generate(6000, 1, 8, torch.Generator().manual_seed(5))
    law = source.log_joint.exp()
    assert chisquare(torch.bincount(drawn[:, 0], minlength=27), 6000 * law).pvalue > 1e-3


def test_the_prior_of_the_uniform_graph_is_a_divergence():
    graph = SEDD(RunConfig(discrete=DiscreteConfig(graph="uniform")), 5).graph
    law = torch.full((5,), (1 - graph.start) / 5, dtype=torch.float64)
    law[0] += graph.start
    assert graph.prior() == pytest.approx(float((law * (law * 5).log()).sum()), rel=1e-6)
    assert 0 < graph.prior() < 1e-5
