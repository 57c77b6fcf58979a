"""Who judges samples: any causal language model that `transformers` can load, or an autoregressive run of ours.

What samples look like beside data: entropy, n-gram divergence, known words, and generative perplexity.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.data.tokenizer import Tokenizer
from rdlm.errors import InputError
from rdlm.evaluate.metrics import Metric, count, of
from rdlm.likelihood import Estimate, sample_mean
from rdlm.methods.autoregressive import Autoregressive


class Scorer(Protocol):
    """A model with a likelihood of its own for any text."""

    name: str
    rule: str
    """Which tokens it counts."""

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return `log p` of every text in nats, and how many tokens it was asked for."""


class TransformersScorer:
    """A causal model of the `transformers` library (extra `eval`): a local folder or a hub name.

    The text stands behind a begin-of-text token where the tokenizer has one (else behind its end-of-text token), so
    that its first token counts, too; no end-of-text token is asked for.
    """

    def __init__(self, name: str) -> None:
        try:
            library: Any = importlib.import_module("transformers")  # an extra, with types of its own
        except ImportError as missing:
            raise InputError("a transformers scorer needs the extra eval: pip install 'rdlm[eval]'") from missing
        try:
            self._tokenizer: Any = library.AutoTokenizer.from_pretrained(name)
            self._model: Any = library.AutoModelForCausalLM.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise InputError(f"{name} is not a causal model with its tokenizer: {reason}") from error
        self._model.eval()
        self.name = Path(name).name
        begin = self._tokenizer.bos_token_id
        self._begin = begin if begin is not None else self._tokenizer.eos_token_id
        self.rule = "all tokens" if self._begin is not None else "all tokens but the first"
        rows = self._model.get_input_embeddings().num_embeddings
        if len(self._tokenizer) > rows:
            raise InputError(f"{name}: the tokenizer has {len(self._tokenizer)} tokens, the model {rows}: not a pair")

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return `log p` of every text in nats, and its tokens; a text longer than the model's context is refused."""
        found = [self._one(text) for text in texts]
        return torch.tensor([value for value, _ in found]), torch.tensor([tokens for _, tokens in found])

    def _one(self, text: str) -> tuple[float, int]:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        row = ids if self._begin is None else [self._begin, *ids]
        largest = getattr(self._model.config, "max_position_embeddings", None) or len(row)
        if not 2 <= len(row) <= largest:
            raise InputError(f"{self.name} scores texts of up to {largest} tokens, and not empty ones; got {len(row)}")
        tokens = torch.tensor([row])
        with torch.no_grad():
            law = torch.log_softmax(self._model(input_ids=tokens).logits[:, :-1].double(), dim=-1)
        return float(law.gather(-1, tokens[:, 1:, None]).sum()), len(row) - 1


class RunScorer:
    """The autoregressive method, whose likelihood is exact, on the text of a tokenizer of its own."""

    rule = "all tokens"

    def __init__(self, name: str, method: Autoregressive, tokenizer: Tokenizer) -> None:
        self.name, self._method, self._tokenizer = name, method, tokenizer

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return `log p` of every text in nats, and its tokens; a text that the tokenizer cannot write is refused."""
        values, tokens = [], []
        for text in texts:
            try:
                ids = self._tokenizer.encode(text)
            except InputError as error:
                raise InputError(f"the scorer {self.name} has another alphabet than these samples: {error}") from None
            if not len(ids):
                raise InputError("an empty sample has no perplexity")
            row = torch.from_numpy(ids.astype(np.int64))[None]
            values.append(float(self._method.log_likelihood(row)))
            tokens.append(row.shape[1])
        return torch.tensor(values, dtype=torch.float64), torch.tensor(tokens)


def scorer_of(name: str) -> Scorer:
    """Return the scorer of a name: the folder of an autoregressive run, else what `transformers` makes of it."""
    folder = Path(name).expanduser()
    if not any((folder / file).is_file() for file in ("latest.json", "state.json")):
        return TransformersScorer(str(folder) if folder.is_dir() else name)
    from rdlm.api.language_model import load

    model = load(folder)
    method: object = model.method
    if not isinstance(method, Autoregressive):
        raise InputError(f"{name} holds no autoregressive run, and only such a one scores text exactly")
    return RunScorer(model.name, method, model.tokenizer)


RESAMPLES = 200
"""Resamples of the bootstrap."""


def entropy(frequency: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
    """Return the entropy in nats of counts along the last axis."""
    law = frequency.double() / frequency.double().sum(-1, keepdim=True)
    found: Tensor = torch.special.entr(law).sum(-1)
    return found


def unigrams(ids: Int[Tensor, "n length"], vocabulary: int) -> Float[Tensor, "n v"]:
    """Return how often each sequence holds each token; places that spell no token (-1) are left out."""
    counts = torch.zeros(len(ids), vocabulary + 1, dtype=torch.float64)
    counts.scatter_add_(1, ids % (vocabulary + 1), torch.ones(ids.shape, dtype=torch.float64))
    return counts[:, :vocabulary]


def sample_entropy(ids: Int[Tensor, "n length"], vocabulary: int) -> dict[str, Metric]:
    """Return the entropy of token frequencies, within each sample and of all samples pooled, in nats and in bits."""
    counts = unigrams(ids, vocabulary)
    if not bool((counts.sum(1) > 0).all()):
        raise InputError("a sample without a single valid token has no entropy")
    own = sample_mean(entropy(counts))
    pooled = Estimate(float(entropy(counts.sum(0))), _bootstrap(counts, lambda part: float(entropy(part.sum(0)))))
    rules = {
        "per_sample": (own, "entropy of the token frequencies within a sample, mean over samples"),
        "pooled": (pooled, "entropy of the token frequencies of all samples together"),
    }
    return {
        f"entropy_{name}_{unit}": of(value * factor, f"{unit} per token", rule)
        for name, (value, rule) in rules.items()
        for unit, factor in (("nats", 1.0), ("bits", 1 / math.log(2)))
    }


def bigram_codes(ids: Int[Tensor, "n length"], vocabulary: int) -> Int[Tensor, "n length-1"]:
    """Return neighbouring tokens as one number each; -1 where one of the two is no token."""
    first, second = ids[:, :-1], ids[:, 1:]
    return torch.where((first < 0) | (second < 0), -1, first * vocabulary + second)


def divergence(first: Int[Tensor, ...], second: Int[Tensor, ...]) -> float:
    """Return the Jensen-Shannon divergence in bits between the frequencies of codes in two sets; 0 to 1."""
    first, second = first[first >= 0], second[second >= 0]
    if not len(first) or not len(second):
        raise InputError("a divergence needs tokens on both sides")
    codes = torch.cat([first, second]).unique()
    laws = torch.stack(
        [
            torch.bincount(torch.searchsorted(codes, side), minlength=len(codes)).double() / len(side)
            for side in (first, second)
        ]
    )
    gain = torch.special.entr(laws.mean(0)).sum() - torch.special.entr(laws).sum(-1).mean()
    return max(0.0, float(gain) / math.log(2))


def divergences(samples: Int[Tensor, "n length"], data: Int[Tensor, "m length"], vocabulary: int) -> dict[str, Metric]:
    """Return the divergence of unigrams and bigrams between samples and data, and what as much other data gives.

    A finite sample is never at 0: the second half of the data, as many sequences of it as there are samples,
    against the first half, says where 0 would be.
    """
    half = len(data) // 2
    if half < 1:
        raise InputError("a divergence from data needs at least 2 sequences of it")
    found = {}
    for name in ("unigram", "bigram"):
        coded = [x if name == "unigram" else bigram_codes(x, vocabulary) for x in (samples, data)]
        reference, others = coded[1][:half], coded[1][half : half + len(samples)]
        rule = f"Jensen-Shannon divergence of {name} frequencies from those of {half} held-out sequences"
        stderr = _bootstrap(coded[0], partial(divergence, second=reference), 50)
        found[f"{name}_divergence"] = of(Estimate(divergence(coded[0], reference), stderr), "bits", rule)
        floor = f"the same for {len(others)} other held-out sequences: what samples as good as data have"
        found[f"{name}_divergence_of_data"] = Metric(divergence(others, reference), None, None, None, "bits", floor)
    return found


def invalid_codes(ids: Int[Tensor, "n length"]) -> Metric:
    """Return how many places of the samples spell no token."""
    return count(int((ids < 0).sum()), f"of {ids.numel()} tokens", "digit strings that spell no token")


def known_words(texts: Sequence[str], vocabulary: set[str]) -> Metric:
    """Return the share of whole words in samples that the training text knows; each text's first and last are cut."""
    words = [text.split()[1:-1] for text in texts]
    if not sum(map(len, words)):
        raise InputError("the samples hold no whole word")
    hits = torch.tensor([sum(word in vocabulary for word in row) for row in words], dtype=torch.float64)
    sizes = torch.tensor([len(row) for row in words], dtype=torch.float64)
    return of(ratio(hits, sizes), "share", "whole words of samples that occur in the training text, of all of them")


def generative_perplexity(texts: Sequence[str], scorer: Scorer) -> dict[str, Metric]:
    """Return the samples' perplexity under a scorer, over the corpus of samples and as the mean over samples."""
    log_likelihood, tokens = scorer.log_likelihood(texts)
    nats, tokens = -log_likelihood.double(), tokens.double()
    if not bool(nats.isfinite().all()) or not bool((tokens > 0).all()):
        raise InputError(f"the scorer {scorer.name} gives a sample no finite likelihood, or no tokens")
    corpus = ratio(nats, tokens)
    each = sample_mean((nats / tokens).exp())
    under = f"under {scorer.name}, {scorer.rule}"
    value, low, high = math.exp(corpus.value), math.exp(corpus.low), math.exp(corpus.high)
    return {
        "generative_perplexity_corpus": Metric(
            value,
            value * corpus.stderr,
            low,
            high,
            "perplexity",
            f"exp(nats of all samples / their tokens) {under}",
        ),
        "generative_perplexity_mean_of_samples": of(
            each, "perplexity", f"mean over samples of exp(nats / tokens) {under}"
        ),
    }


def ratio(above: Float[Tensor, " n"], below: Float[Tensor, " n"]) -> Estimate:
    """Return the ratio of two sums over samples, with its error to first order."""
    value = float(above.sum() / below.sum())
    rest = sample_mean((above - value * below) / below.mean())
    return Estimate(value, rest.stderr, freedom=rest.freedom)


def _bootstrap(rows: Tensor, statistic: Callable[[Tensor], float], resamples: int = RESAMPLES) -> float:
    """Return the standard deviation of a statistic over resampled rows, by a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(resamples):
        chosen = torch.randint(len(rows), (len(rows),), generator=generator)
        values.append(statistic(rows[chosen]))
    return float(torch.tensor(values, dtype=torch.float64).std())
