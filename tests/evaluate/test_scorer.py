"""Scorers: a transformers model made here, and an autoregressive method of ours."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError
from rdlm.evaluate.samples import RunScorer, TransformersScorer, scorer_of
from rdlm.methods.autoregressive import Autoregressive


def causal_model(folder: Path, vocabulary: int) -> None:
    """Write a causal model without knowledge, whose tokens are the letters a, b and an end."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers

    inner = Tokenizer(models.WordLevel({"a": 0, "b": 1, "<end>": 2}, unk_token="<end>"))
    inner.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>")
    fast.save_pretrained(folder)
    config = transformers.GPT2Config(vocab_size=vocabulary, n_positions=8, n_embd=8, n_layer=1, n_head=1)
    model = transformers.GPT2LMHeadModel(config)
    torch.nn.init.zeros_(model.transformer.wte.weight)  # tied to the head: every token is equally likely
    model.save_pretrained(folder)


def test_an_indifferent_model_gives_log_of_its_vocabulary(tmp_path: Path) -> None:
    causal_model(tmp_path, 3)
    scorer = TransformersScorer(str(tmp_path))
    value, tokens = scorer.log_likelihood(["ab", "abba"])
    assert tokens.tolist() == [2, 4]
    assert value.tolist() == pytest.approx([-2 * math.log(3), -4 * math.log(3)])
    assert scorer.rule == "all tokens"
    for text in ("", "a" * 9):
        with pytest.raises(InputError, match="up to 8 tokens"):
            scorer.log_likelihood([text])


def test_a_tokenizer_that_is_not_the_models_is_refused(tmp_path: Path) -> None:
    causal_model(tmp_path, 2)
    with pytest.raises(InputError, match="not a pair"):
        TransformersScorer(str(tmp_path))


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "nothing"}))
    with pytest.raises(InputError, match="not a causal model"):
        scorer_of(str(tmp_path))


def test_an_autoregressive_method_scores_its_own_alphabet() -> None:
    torch.manual_seed(0)
    config = RunConfig(method="autoregressive", model=TransformerConfig(width=16, layers=1, heads=2))
    scorer = RunScorer("run", Autoregressive(config, 3), Characters("ab "))
    value, tokens = scorer.log_likelihood(["ab a", "b"])
    assert tokens.tolist() == [4, 1]
    assert bool((value < 0).all())
    with pytest.raises(InputError, match="another alphabet"):
        scorer.log_likelihood(["xyz"])
    with pytest.raises(InputError, match="empty"):
        scorer.log_likelihood([""])
