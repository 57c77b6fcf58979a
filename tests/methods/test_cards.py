"""The cards of the methods: what `rdlm methods` says of a number is measured here, on sources of known entropy."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from exact_network import known

from rdlm.cli.compare import rows_of_methods
from rdlm.config import MethodName
from rdlm.data import sources
from rdlm.data.batch import Batch
from rdlm.likelihood.certificate import Case, measure
from rdlm.methods import METHODS
from rdlm.process.path import Mixture, masked_path
from rdlm.process.schedule import Geometric

CARDS = {name: kind.card for name, kind in METHODS.items()}
CHOICES = {
    "bfn": {"accuracy": 4.0},
    "bit_diffusion": {"head": "token"},
    "d3pm": {"steps": 64},
    "multinomial": {"steps": 64},
}
ELSEWHERE = {"rdlm", "autoregressive", "block_diffusion"}
"""Methods that are measured in tests of their own."""


def test_every_method_has_a_card_that_agrees_with_its_claim():
    assert set(METHODS) == set(get_args(MethodName))
    for name, card in CARDS.items():
        assert card is not None, name
        assert METHODS[name].claims_bound == (card.number != "estimate") == (card.slack is not None)
        assert bool(card.slack) == bool(card.reason)


def test_papers_have_references(root):
    references = (root / "docs" / "theory.md").read_text().partition("## 14")[2]
    for card in CARDS.values():
        assert card.paper == "classical" or f"| {card.paper} |" in references, card.paper


CERTIFIED = [name for name, card in CARDS.items() if card.slack is not None and name not in ELSEWHERE]


@pytest.mark.parametrize("source", [sources.skewed(27), sources.markov()], ids=["independent", "markov"])
@pytest.mark.parametrize("name", CERTIFIED)
def test_the_certificate_of_a_card_holds(name, source):
    """On dependent tokens, 3% more for those that are decided in one call."""
    method = known(name, source, **CHOICES.get(name, {}))
    generator = torch.Generator().manual_seed(11)
    token = source.draw(30_000, generator)
    excess = method.bound(Batch(token), 64, generator) + source.log_joint[tuple(token.T)]
    stderr = float(excess.std()) / math.sqrt(len(excess))
    most = (CARDS[name].slack + 3 * (source.length - 1)) / 100 * source.entropy
    assert stderr < 0.03 * source.entropy
    # sedd's last step allows for noise that is not there, at 1e-4 nats
    assert -4 * stderr - 1e-9 < float(excess.mean()) < most + 4 * stderr + 1e-3


def test_the_certificate_of_rdlm_holds():
    """By the chain of the certificate, with 64 calls of the default kernel."""
    source = sources.skewed(27)
    mixture = Mixture((masked_path(27, Geometric().total),))
    verdict = measure(Case(source, "masked", mixture, 64), 3000, torch.Generator().manual_seed(1))
    most = (1 + CARDS["rdlm"].slack / 100) * source.entropy
    assert verdict.holds and verdict.bound.value < most + 4 * verdict.bound.stderr
    assert verdict.bound.stderr < 0.01 * source.entropy


def test_rows_name_every_method_and_what_its_number_is():
    rows = {row["method"]: row for row in rows_of_methods()}
    assert list(rows) == list(METHODS)
    assert rows["mac"]["number"] == "exact" and rows["fisher_flow"]["certificate"] == "none: not a bound"
    assert rows["mdlm"]["certificate"] == "holds, at the entropy"
    assert rows["bit_diffusion"]["certificate"].startswith("holds, within 8% (error of a Riemann sum")
