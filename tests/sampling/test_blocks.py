"""Samples in blocks, left to right: by default where no known token lies ahead, and without blocks otherwise."""

from __future__ import annotations

import re

import pytest
import torch

from rdlm.api.language_model import LanguageModel
from rdlm.api.score import Effort, effort_for
from rdlm.config import ProcessConfig, RunConfig, TransformerConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Characters
from rdlm.errors import InputError
from rdlm.methods.rdlm import Rdlm

LENGTH = 80


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    config = RunConfig(
        process=ProcessConfig(window=0.01, block=1),
        model=TransformerConfig(width=16, layers=1, heads=2, time_width=8),
    )
    tokenizer = Characters(TEXT8_ALPHABET)
    torch.manual_seed(0)
    method = Rdlm(config, tokenizer.size)
    for parameter in method.network.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    about = {"kind": "text", "length": LENGTH, "classes": [], "signal": False}
    return LanguageModel("blockwise", method, tokenizer, config, about)


def test_one_evaluation_per_block_is_the_default(model: LanguageModel) -> None:
    made = model.generate(seed=3)
    assert (model.nfe, made.network_calls, made.options.steps, made.options.block) == (LENGTH, LENGTH, LENGTH, 1)
    assert made.claims_bound
    assert model.generate(steps=200).network_calls == LENGTH
    assert model.generate(steps=200, block=8).options.steps == LENGTH  # a step of its own for each token is the most
    assert model.generate(steps=4, block=8).network_calls == 4  # too few for ten blocks: one block
    assert model.generate(steps=8, block=8).options.steps == 6  # two turns for each of three
    assert model.generate(length=10).network_calls == 10
    for named in ({"window": 0.01}, {"order": "random"}):
        assert model.generate(steps=8, **named).options.block == 0


def test_what_lies_ahead_does_not_change_a_block(model: LanguageModel) -> None:
    """A block attends to itself and to the blocks before it."""
    long = model.generate(prompt="the ", seed=5)
    assert long.samples[0].text.startswith("the ") and long.network_calls == LENGTH - 4
    state = torch.nn.functional.normalize(torch.rand(2, LENGTH, 28), dim=-1)
    state[1, :40] = state[0, :40]
    remaining = torch.full((2, LENGTH), 0.01)
    method = model.rdlm
    chain = method.chain(method.process.mixture.paths[0], LENGTH, length=LENGTH)
    first, second = method.posterior(None, method.block_mask(chain))(state, remaining)
    torch.testing.assert_close(first[:40], second[:40])
    assert not torch.allclose(first[40:], second[40:])


def test_known_tokens_ahead_are_attended_to_unless_blocks_are_requested(model: LanguageModel) -> None:
    gap = "a____b" + "c" * 10
    made = model.generate(infill=gap)
    assert made.options.block == 0 and re.fullmatch("a....bc{10}", made.samples[0].text)
    assert model.generate(prompt="a", suffix="b", length=9).options.block == 0
    forced = model.generate(infill=gap, block=1)
    assert forced.options.block == 1 and re.fullmatch("a....bc{10}", forced.samples[0].text)
    assert forced.network_calls == 4


def test_seeds_batches_lengths_and_languages(model: LanguageModel) -> None:
    together = [sample.text for sample in model.generate(num=3, seed=7, length=20).samples]
    apart = [model.generate(seed=7 + i, length=20).samples[0].text for i in range(3)]
    assert together == apart
    assert len(model.generate(length=3 * LENGTH).samples[0].text) == 3 * LENGTH
    assert re.fullmatch("(ab|c)+", model.generate(regex="(ab|c)+", length=21).samples[0].text)
    with pytest.raises(InputError, match="at least one position"):
        model.generate(block=-1)


def test_a_score_costs_as_many_passes_as_a_block_has_turns(model: LanguageModel) -> None:
    effort = effort_for(model, 3)
    assert (effort.nfe, effort.estimator, effort.cost(model, 3)) == (LENGTH, "path", 12)
    assert Effort(8).cost(model, 3) == 96
    (score,) = model.score(["a text of which every letter is scored at once"])
    assert score.nats.stderr < 1e-3 and score.nats.claims_bound  # token by token the bound is exact
