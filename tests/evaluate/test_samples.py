"""Sample statistics against numbers computed by hand; scorers: a small transformers model and an autoregressive run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rdlm.config import RunConfig, TransformerConfig
from rdlm.data.tokenizer import Characters
from rdlm.errors import InputError
from rdlm.evaluate import metrics
from rdlm.evaluate.metrics import RunScorer, TransformersScorer, scorer_of
from rdlm.methods.autoregressive import Autoregressive

IDS = torch.tensor([[0, 0, 1, 1], [0, 0, 0, 0]])


def test_entropy_per_sample_and_pooled() -> None:
    found = metrics.sample_entropy(IDS, 3)
    assert found["entropy_per_sample_nats"].value == pytest.approx(math.log(2) / 2)
    assert found["entropy_per_sample_bits"].value == pytest.approx(0.5)
    pooled = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))
    assert found["entropy_pooled_bits"].value == pytest.approx(pooled)
    assert found["entropy_pooled_nats"].value == pytest.approx(pooled * math.log(2))


def test_places_without_a_token_are_counted_and_left_out() -> None:
    ids = torch.tensor([[0, -1, 1, 1], [-1, 0, 0, 0]])
    assert metrics.invalid_codes(ids).value == 2
    assert metrics.unigrams(ids, 2).tolist() == [[1, 2], [3, 0]]
    assert metrics.bigram_codes(ids, 2).tolist() == [[-1, -1, 3], [-1, 0, 0]]
    with pytest.raises(InputError, match="valid token"):
        metrics.sample_entropy(torch.tensor([[-1, -1], [0, 0]]), 2)


def test_divergence_by_hand() -> None:
    assert metrics.jensen_shannon(torch.tensor([0, 1]), torch.tensor([1, 0, 0, 1])) == 0
    assert metrics.jensen_shannon(torch.tensor([0, 0]), torch.tensor([1, 2])) == pytest.approx(1)
    # (1, 0) against (1/2, 1/2): H(3/4, 1/4) - 1/2
    wanted = -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25)) - 0.5
    assert metrics.jensen_shannon(torch.tensor([0, 0, -1]), torch.tensor([0, 1])) == pytest.approx(wanted)
    with pytest.raises(InputError, match="both sides"):
        metrics.jensen_shannon(torch.tensor([-1]), torch.tensor([0]))


def test_divergences_tell_order_from_frequency() -> None:
    data = torch.tensor([[0, 1] * 8] * 8)
    shuffled = torch.tensor([[0, 0, 1, 1] * 4] * 4)
    found = metrics.divergences(shuffled, data, 2)
    assert found["unigram_divergence"].value == 0
    assert found["bigram_divergence"].value > 0.2
    assert found["bigram_divergence_of_data"].value == 0


def test_known_words_leave_out_cut_ones() -> None:
    found = metrics.known_words(["xx the cat yy", "zz dog the qq"], {"the", "cat"})
    assert found.value == pytest.approx(3 / 4)
    with pytest.raises(InputError, match="no whole word"):
        metrics.known_words(["one two"], set())


class Table:
    name, rule = "table", "all tokens"

    def __init__(self, nats: Sequence[float], tokens: Sequence[int]) -> None:
        self.nats, self.tokens = nats, tokens

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Tensor, Tensor]:
        return -torch.tensor(self.nats), torch.tensor(self.tokens)


def test_generative_perplexity_in_both_conventions() -> None:
    found = metrics.generative_perplexity(["a", "b"], Table([2.0, 12.0], [2, 4]))
    assert found["generative_perplexity_corpus"].value == pytest.approx(math.exp(14 / 6))
    mean = found["generative_perplexity_mean_of_samples"]
    assert mean.value == pytest.approx((math.e + math.e**3) / 2)
    assert mean.stderr == pytest.approx((math.e**3 - math.e) / 2)
    assert "table" in mean.convention and "all tokens" in mean.convention


@pytest.mark.parametrize(("nats", "tokens"), [([math.inf, 1.0], [1, 1]), ([1.0, 1.0], [1, 0])])
def test_a_failed_score_is_no_perplexity(nats: list[float], tokens: list[int]) -> None:
    with pytest.raises(InputError, match="table"):
        metrics.generative_perplexity(["a", "b"], Table(nats, tokens))


def test_ratio_by_hand() -> None:
    found = metrics.ratio(torch.tensor([1.0, 3.0]), torch.tensor([2.0, 2.0]))
    assert (found.value, found.stderr) == pytest.approx((1.0, 0.5))


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
        with pytest.raises(InputError, match="1 to 8 tokens"):
            scorer.log_likelihood([text])


def test_a_tokenizer_that_is_not_the_models_is_refused(tmp_path: Path) -> None:
    causal_model(tmp_path, 2)
    with pytest.raises(InputError, match="tokens, but the model has"):
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
