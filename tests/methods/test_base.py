"""The interface of methods, and the entropy floor with trained networks."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import pytest
import torch

from rdlm import data
from rdlm.config import DataConfig, RunConfig, TransformerConfig
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.methods import METHODS, build
from rdlm.methods.base import DEFAULT_NFE, Baseline, BoundEstimator, Method
from rdlm.model.transformer import Transformer
from rdlm.random import Draw

TINY = TransformerConfig(width=24, layers=1, heads=2, time_width=16)
CASES = [
    ("rdlm", {}),
    ("mdlm", {}),
    ("mdlm", {"schedule": "cosine"}),
    ("udlm", {}),
    ("sedd", {}),
    ("sedd", {"graph": "uniform"}),
    ("autoregressive", {}),
    ("fisher_flow", {}),
    ("fisher_flow", {"predict": "velocity"}),
    ("ardm", {}),
    ("mac", {"stride": 3}),
    ("d3pm", {"matrix": "absorbing", "steps": 80}),
    ("d3pm", {"matrix": "gauss", "head": "logistic", "steps": 100}),
    ("multinomial", {}),
    ("bfn", {}),
    ("bfn", {"steps": 5}),
    ("bit_diffusion", {}),
    ("block_diffusion", {"block": 3}),
    ("diffusion_bert", {}),
    ("bert_mouth", {}),
    ("tau_ldr", {"rates": "gauss"}),
    ("tau_ldr", {}),
    ("plaid", {}),
    ("diffusion_lm", {}),
    ("dirichlet_flow", {}),
    ("ddsm", {}),
    ("bit_diffusion", {"codes": "onehot", "head": "token", "loss": "cross_entropy"}),
]

WITHOUT_NOISE = {"autoregressive"}
"""Methods whose loss draws nothing but the conditions that are dropped."""


def method_of(name: str, choices: dict[str, str], states: int, classes: int = 0) -> Method:
    torch.manual_seed(1)
    config = RunConfig(method=name, model=TINY)
    part = next(part for part in (name, "discrete") if hasattr(config, part)) if choices else "discrete"
    config = replace(config, **{part: replace(getattr(config, part), **choices)})
    return METHODS[name](config, states, classes, 0)


def shaken(method: Method) -> Method:
    """Return the method with weights that depend on their inputs; initial ones predict uniformly."""
    with torch.no_grad():
        for parameter in method.network.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    return method


@pytest.mark.parametrize(("name", "choices"), CASES)
def test_every_method_keeps_the_interface(name, choices):
    method = shaken(method_of(name, choices, states=5, classes=2))
    generator = torch.Generator().manual_seed(1)
    batch = Batch(torch.randint(5, (6, 8), generator=generator), torch.arange(6) % 2)
    loss = method.loss(batch, Draw(0, 3))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.network.parameters())
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in method.network.parameters())
    assert shaken(method_of(name, choices, 5, 2)).loss(batch, Draw(0, 3)).item() == loss.item()
    assert method.loss(batch, Draw(0, 4)).item() != loss.item() or name in WITHOUT_NOISE

    bound = method.bound(batch, 4, torch.Generator().manual_seed(2))
    assert bound.shape == (6,) and bound.isfinite().all() and not bound.requires_grad
    assert method.bound(batch, 4, torch.Generator().manual_seed(2)).equal(bound)
    drawn = [method.generate(3, 7, 4, torch.Generator().manual_seed(3)) for _ in range(2)]
    assert drawn[0].shape == (3, 7) and drawn[0].equal(drawn[1])
    assert drawn[0].min() >= 0 and drawn[0].max() < 5
    method.load_state(method.state())
    assert isinstance(method.claims_bound, bool)


@pytest.mark.parametrize(("name", "choices"), CASES)
def test_every_method_declares_its_capabilities(name, choices):
    """Only rdlm has a token schedule, and so prompts, constraints and guidance; the others are baselines."""
    method = method_of(name, choices, states=5)
    assert isinstance(method, Baseline) == (name != "rdlm") == (method.token_schedule is None)
    assert method.bound_estimator in ((None,) if name == "rdlm" else get_args(BoundEstimator))
    calls = {"autoregressive": 7, "block_diffusion": 3}  # one call for each token, or for each of three blocks
    assert method.sampling_nfe(7, 4) == calls.get(name, 4)
    most = {**dict.fromkeys(("autoregressive", "ardm", "mac"), 7), "block_diffusion": 63}
    assert method.sampling_nfe(7) == most.get(name, DEFAULT_NFE)


@pytest.mark.parametrize("name", ["mdlm", "udlm", "sedd", "autoregressive"])
def test_a_trained_network_comes_within_three_percent_of_the_entropy_and_not_below(name):
    source, generator = sources.markov(), torch.Generator().manual_seed(1)
    method = method_of(name, {}, states=3)
    steps = 250
    optimizer = torch.optim.AdamW(method.network.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - step / steps)
        loss = method.loss(Batch(source.draw(256, generator)), Draw(0, step))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(method.network.parameters(), 1.0)
        optimizer.step()
    method.network.eval()
    token = source.draw(120_000, generator)
    with torch.no_grad():
        excess = method.bound(Batch(token), 20, generator) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    assert stderr < 0.01 * source.entropy
    assert -4 * stderr < float(excess.mean()) < 0.03 * source.entropy


@pytest.mark.parametrize("name", ["rdlm", "mdlm", "autoregressive"])
def test_an_untrained_network_can_start_at_the_frequencies(name: str) -> None:
    corpus = data.load("digits")
    count = torch.bincount(corpus.rows().flatten().long(), minlength=corpus.tokenizer.size).double() + 0.5
    frequency = count / count.sum()
    model = TransformerConfig(width=24, layers=1, heads=2, places=64, frequencies=True)
    method = build(RunConfig(method=name, data=DataConfig("digits"), model=model), corpus)  # type: ignore[arg-type]
    assert isinstance(method.network, Transformer)
    assert torch.allclose(method.network.head.bias.softmax(0).double(), frequency, atol=1e-6)
    if name == "autoregressive":  # the bound is exact
        ids = corpus.rows()[:8].long()
        expected = -frequency.log()[ids].sum(1)
        assert torch.allclose(method.bound(Batch(ids), DEFAULT_NFE).double(), expected, rtol=1e-4)
