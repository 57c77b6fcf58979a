"""The table of sample quality against network calls."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from rdlm.analysis.steps import Setting, quality, reference, settings
from rdlm.config import RunConfig
from rdlm.data.tokenizer import Characters
from rdlm.language_model import LanguageModel
from rdlm.method.rdlm import Rdlm
from rdlm.model.config import TransformerConfig
from rdlm.sampler.solver import SOLVERS


class Uniform:
    """A scorer to whom all letters are alike."""

    name, rule = "uniform", "all tokens"

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        sizes = torch.tensor([len(text) for text in texts])
        return -sizes * torch.log(torch.tensor(3.0)), sizes


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    config = RunConfig(model=TransformerConfig(width=16, layers=1, heads=2, time_width=8))
    return LanguageModel("tiny", Rdlm(config, 3), Characters("abc"), config, {"kind": "text", "length": 8})


def test_rows_have_equally_many_network_calls(model: LanguageModel) -> None:
    data = torch.randint(3, (40, 8), generator=torch.Generator().manual_seed(0))
    wanted = list(settings([7, 8], list(SOLVERS), ["time", "log"], [0.5]))
    assert len(wanted) == 2 * (6 * 2 + 2)
    for setting in wanted:
        row = quality(model, setting, data, 4, Uniform())
        assert setting.calls - 1 <= row["network_calls"] <= setting.calls  # type: ignore[operator]
        assert row["perplexity"] == pytest.approx(3.0, rel=1e-5)
        assert 0 <= row["unigram"] <= row["bigram"] <= 1  # type: ignore[operator]
    assert Setting(8, "mixture", window=0.5, order="left_to_right").clock == "left_to_right 0.5"


def test_a_wrong_law_is_farther_from_the_data(model: LanguageModel) -> None:
    """The untrained network takes all letters for equally likely, which only one of two corpora is."""
    generator = torch.Generator().manual_seed(0)
    even = torch.randint(3, (400, 8), generator=generator)
    skewed = torch.where(torch.rand(400, 8, generator=generator) < 0.8, 0, even)
    near, far = (quality(model, Setting(4, "mixture"), data, 100)["unigram"] for data in (even, skewed))
    assert far > 5 * near  # type: ignore[operator]
    assert reference(model, skewed, 100)["unigram"] < 0.2 * far  # type: ignore[operator]
