"""What samples look like beside data: entropy, n-gram divergence, known words, and generative perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.evaluation.metric import Metric, count, of
from rdlm.evaluation.scorer import Scorer
from rdlm.likelihood import Estimate, sample_mean

RESAMPLES = 200
"""Resamples of the bootstrap."""


def entropy(frequency: Float[Tensor, "... v"]) -> Float[Tensor, "..."]:
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


def divergence(first: Int[Tensor, "..."], second: Int[Tensor, "..."]) -> float:
    """Return the Jensen-Shannon divergence in bits between the frequencies of codes in two sets; 0 to 1."""
    first, second = first[first >= 0], second[second >= 0]
    if not len(first) or not len(second):
        raise InputError("a divergence needs tokens on both sides")
    codes = torch.cat([first, second]).unique()
    laws = torch.stack([
        torch.bincount(torch.searchsorted(codes, side), minlength=len(codes)).double() / len(side)
        for side in (first, second)
    ])  # fmt: skip
    gain = torch.special.entr(laws.mean(0)).sum() - torch.special.entr(laws).sum(-1).mean()
    return max(0.0, float(gain) / math.log(2))


def divergences(
    samples: Int[Tensor, "n length"], data: Int[Tensor, "m length"], vocabulary: int
) -> dict[str, Metric]:
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
            value, value * corpus.stderr, low, high, "perplexity",
            f"exp(nats of all samples / their tokens) {under}",
        ),
        "generative_perplexity_mean_of_samples": of(
            each, "perplexity", f"mean over samples of exp(nats / tokens) {under}"
        ),
    }  # fmt: skip


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
