"""Metrics of bounds and of samples, with their intervals, units and conventions.

| name | convention |
|---|---|
| bits_per_character | nats of all sequences / characters of their text / ln 2 |
| bits_per_dimension, bits_per_base | the same per pixel value, per base |
| perplexity_per_token | exp(nats of all sequences / their tokens) |
| perplexity_per_word | exp(nats of all sequences / their words), separated by whitespace |

Samples: entropy, n-gram divergence from data, known words, and generative perplexity under a scorer. Scorers are causal
language models: any that `transformers` can load, or an autoregressive run of this package.
"""

from __future__ import annotations

import importlib
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.data.tokenizer import Tokenizer
from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate, sample_mean, student
from rdlm.methods.autoregressive import Autoregressive


@dataclass(frozen=True)
class Metric:
    """A number with its 95% interval, its unit, and the convention by which it was computed."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    unit: str
    convention: str

    def to_json(self) -> dict[str, object]:
        """Return the fields by their names."""
        return asdict(self)


def metric_of(estimate: Estimate, unit: str, convention: str) -> Metric:
    """Return an estimate as a metric."""
    return Metric(estimate.value, estimate.stderr, estimate.low, estimate.high, unit, convention)


def perplexity_metric(estimate: Estimate, convention: str) -> Metric:
    """Return `exp` of an estimate in nats, also of the ends of its interval; the standard error is of first order."""
    value, low, high = map(_exp, (estimate.value, estimate.low, estimate.high))
    return Metric(value, value * estimate.stderr, low, high, "perplexity", convention)


def _exp(nats: float) -> float:
    return math.inf if nats > 709 else math.exp(nats)  # the range of float64


def count_metric(value: int, unit: str, convention: str) -> Metric:
    """Return an exact count as a metric without an interval."""
    return Metric(float(value), None, None, None, unit, convention)


@dataclass(frozen=True)
class Size:
    """Mean number of tokens, characters and words of the evaluated sequences."""

    tokens: float
    characters: float
    words: float


def size_of_texts(texts: Sequence[str], tokens: int, cut: bool = False) -> Size:
    """Return the mean size of texts with `tokens` tokens in total; `cut`: they are windows of a longer text."""
    words = sum(map(_starts if cut else lambda text: len(text.split()), texts))
    return Size(tokens / len(texts), sum(map(len, texts)) / len(texts), words / len(texts))


def _starts(window: str) -> float:
    """Return an unbiased estimate of the words that start in a window: those that start after its first character."""
    if len(window) < 2:
        return 0.0
    inside = len(window.split()) - (not window[0].isspace())
    return inside * len(window) / (len(window) - 1)


def likelihood(nats: Estimate, size: Size, kind: str, what: str) -> dict[str, Metric]:
    """Return the metrics of a bound in nats per sequence, for text, images or DNA; `what` describes the bound."""
    bits = 1 / math.log(2)
    found = {"nats_per_sequence": metric_of(nats, "nats", what)}
    if kind != "text":
        name, unit = ("bits_per_dimension", "pixel value") if kind == "image" else ("bits_per_base", "base")
        found[name] = metric_of(nats * (bits / size.tokens), f"bits per {unit}", f"{what}; over all {unit}s")
        return found
    per_token = nats * (1 / size.tokens)
    found["bits_per_character"] = metric_of(
        nats * (bits / size.characters), "bits per character", f"{what}; over the characters of the decoded sequences"
    )
    found["perplexity_per_token"] = perplexity_metric(per_token, f"{what}; exp of nats per token")
    if size.words > 0:
        found["perplexity_per_word"] = perplexity_metric(
            nats * (1 / size.words),
            f"{what}; exp of nats per whitespace-separated word, no end-of-text token; a word that is cut by the end "
            "of a sequence counts once",
        )
    return found


def over_seeds(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the row of a method and order: the mean of its runs with several seeds and the interval over them.

    `stderr` remains the standard error over sequences and noise. All runs are measured on the same sequences, so it is
    the mean of theirs.
    """
    bounds = [run["bound"] for run in runs]
    row = {key: value for key, value in runs[0].items() if key not in ("quality", "sample")}
    row |= {"seeds": len(runs), "stderr_over_seeds": None, "bounds": bounds, "interval": "sequences and noise"}
    if len(runs) == 1:
        return row
    mean, stderr = statistics.fmean(bounds), statistics.stdev(bounds) / math.sqrt(len(runs))
    margin = student(len(runs) - 1) * stderr
    row |= {key: statistics.fmean(run[key] for run in runs) for key in ("stderr", "seconds_per_step", "loss")}
    row |= {"bound": mean, "low": mean - margin, "high": mean + margin, "stderr_over_seeds": stderr}
    row |= {"interval": "seeds", "skipped": sum(run["skipped"] for run in runs)}
    return row | {"note": next((run["note"] for run in runs if run["note"] is not None), None)}


# -- samples ---------------------------------------------------------------------------------------------------------


class Scorer(Protocol):
    """A model that assigns a likelihood to any text."""

    name: str
    rule: str
    """The tokens that are counted."""

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return `log p` of every text in nats, and its number of counted tokens."""


class TransformersScorer:
    """A causal model of the `transformers` library (extra `eval`): a local folder or a hub name.

    Texts are prefixed by the begin-of-text token, or by the end-of-text token if the tokenizer has no other, so that
    the first token is scored, too. The end of the text is not scored.
    """

    def __init__(self, name: str) -> None:
        try:
            library: Any = importlib.import_module("transformers")  # an optional dependency
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
            raise InputError(f"{name}: the tokenizer has {len(self._tokenizer)} tokens, but the model has {rows}")

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return `log p` of every text in nats, and its number of tokens; a text beyond the context is an error."""
        found = [self._one(text) for text in texts]
        return torch.tensor([value for value, _ in found]), torch.tensor([tokens for _, tokens in found])

    def _one(self, text: str) -> tuple[float, int]:
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        row = ids if self._begin is None else [self._begin, *ids]
        largest = getattr(self._model.config, "max_position_embeddings", None) or len(row)
        if not 2 <= len(row) <= largest:
            raise InputError(f"{self.name} scores texts of 1 to {largest} tokens; got {len(row)}")
        tokens = torch.tensor([row])
        with torch.no_grad():
            log_probs = torch.log_softmax(self._model(input_ids=tokens).logits[:, :-1].double(), dim=-1)
        return float(log_probs.gather(-1, tokens[:, 1:, None]).sum()), len(row) - 1


class RunScorer:
    """An autoregressive run, whose likelihood is exact, with its own tokenizer."""

    rule = "all tokens"

    def __init__(self, name: str, method: Autoregressive, tokenizer: Tokenizer) -> None:
        self.name, self._method, self._tokenizer = name, method, tokenizer

    def log_likelihood(self, texts: Sequence[str]) -> tuple[Float[Tensor, " n"], Int[Tensor, " n"]]:
        """Return `log p` of every text in nats, and its number of tokens; an unknown character is an error."""
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
    """Return the scorer of a name: the folder of an autoregressive run, or a model of `transformers`."""
    folder = Path(name).expanduser()
    if not any((folder / file).is_file() for file in ("latest.json", "state.json")):
        return TransformersScorer(str(folder) if folder.is_dir() else name)
    from rdlm.api.language_model import load

    model = load(folder)
    method: object = model.method
    if not isinstance(method, Autoregressive):
        raise InputError(f"{name} is not an autoregressive run; only those have an exact likelihood")
    return RunScorer(model.name, method, model.tokenizer)


RESAMPLES = 200
"""Resamples of the bootstrap."""


def entropy(frequency: Float[Tensor, "... v"]) -> Float[Tensor, ...]:
    """Return the entropy in nats of counts along the last axis."""
    probability = frequency.double() / frequency.double().sum(-1, keepdim=True)
    found: Tensor = torch.special.entr(probability).sum(-1)
    return found


def unigrams(ids: Int[Tensor, "n length"], vocabulary: int) -> Float[Tensor, "n v"]:
    """Return the count of each token in each sequence; invalid codes (-1) are not counted."""
    counts = torch.zeros(len(ids), vocabulary + 1, dtype=torch.float64)
    counts.scatter_add_(1, ids % (vocabulary + 1), torch.ones(ids.shape, dtype=torch.float64))
    return counts[:, :vocabulary]


def sample_entropy(ids: Int[Tensor, "n length"], vocabulary: int) -> dict[str, Metric]:
    """Return the entropy of token frequencies within each sample and of all samples pooled, in nats and in bits."""
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
        f"entropy_{name}_{unit}": metric_of(value * factor, f"{unit} per token", rule)
        for name, (value, rule) in rules.items()
        for unit, factor in (("nats", 1.0), ("bits", 1 / math.log(2)))
    }


def bigram_codes(ids: Int[Tensor, "n length"], vocabulary: int) -> Int[Tensor, "n length-1"]:
    """Return each pair of neighbouring tokens as one number; -1 if one of the two is an invalid code."""
    first, second = ids[:, :-1], ids[:, 1:]
    return torch.where((first < 0) | (second < 0), -1, first * vocabulary + second)


def jensen_shannon(first: Int[Tensor, ...], second: Int[Tensor, ...]) -> float:
    """Return the Jensen-Shannon divergence in bits between the frequencies of codes in two sets; 0 to 1."""
    first, second = first[first >= 0], second[second >= 0]
    if not len(first) or not len(second):
        raise InputError("a divergence needs tokens on both sides")
    codes = torch.cat([first, second]).unique()
    probabilities = torch.stack(
        [
            torch.bincount(torch.searchsorted(codes, side), minlength=len(codes)).double() / len(side)
            for side in (first, second)
        ]
    )
    gain = torch.special.entr(probabilities.mean(0)).sum() - torch.special.entr(probabilities).sum(-1).mean()
    return max(0.0, float(gain) / math.log(2))


def divergences(samples: Int[Tensor, "n length"], data: Int[Tensor, "m length"], vocabulary: int) -> dict[str, Metric]:
    """Return the divergence of unigrams and bigrams of the samples from the data, and its value for other data.

    Finite samples never reach 0. The floor is the divergence between the two halves of the data, with as many sequences
    of the second half as there are samples.
    """
    half = len(data) // 2
    if half < 1:
        raise InputError("a divergence from data needs at least 2 sequences of it")
    found = {}
    for name in ("unigram", "bigram"):
        coded = [x if name == "unigram" else bigram_codes(x, vocabulary) for x in (samples, data)]
        reference, others = coded[1][:half], coded[1][half : half + len(samples)]
        rule = f"Jensen-Shannon divergence of {name} frequencies from those of {half} held-out sequences"
        stderr = _bootstrap(coded[0], partial(jensen_shannon, second=reference), 50)
        found[f"{name}_divergence"] = metric_of(Estimate(jensen_shannon(coded[0], reference), stderr), "bits", rule)
        floor = f"the same for {len(others)} other held-out sequences: the floor for perfect samples"
        found[f"{name}_divergence_of_data"] = Metric(jensen_shannon(others, reference), None, None, None, "bits", floor)
    return found


def invalid_codes(ids: Int[Tensor, "n length"]) -> Metric:
    """Return the number of positions of the samples whose digits encode no token."""
    return count_metric(int((ids < 0).sum()), f"of {ids.numel()} tokens", "digit strings that encode no token")


def known_words(texts: Sequence[str], vocabulary: set[str]) -> Metric:
    """Return the share of words that occur in the training text, without the first and last word of each sample."""
    words = [text.split()[1:-1] for text in texts]
    if not sum(map(len, words)):
        raise InputError("the samples have no whole word")
    hits = torch.tensor([sum(word in vocabulary for word in row) for row in words], dtype=torch.float64)
    sizes = torch.tensor([len(row) for row in words], dtype=torch.float64)
    return metric_of(ratio(hits, sizes), "share", "share of the whole words of samples that occur in the training text")


def generative_perplexity(texts: Sequence[str], scorer: Scorer) -> dict[str, Metric]:
    """Return the perplexity of samples under a scorer, over all their tokens and as the mean over samples."""
    log_likelihood, tokens = scorer.log_likelihood(texts)
    nats, tokens = -log_likelihood.double(), tokens.double()
    if not bool(nats.isfinite().all()) or not bool((tokens > 0).all()):
        raise InputError(f"the scorer {scorer.name} returned a likelihood that is not finite, or no tokens")
    corpus = ratio(nats, tokens)
    each = sample_mean((nats / tokens).exp())
    under = f"under {scorer.name}, {scorer.rule}"
    return {
        "generative_perplexity_corpus": perplexity_metric(corpus, f"exp(nats of all samples / their tokens) {under}"),
        "generative_perplexity_mean_of_samples": metric_of(
            each, "perplexity", f"mean over samples of exp(nats / tokens) {under}"
        ),
    }


def ratio(above: Float[Tensor, " n"], below: Float[Tensor, " n"]) -> Estimate:
    """Return the ratio of two sums over samples, with its standard error to first order."""
    value = float(above.sum() / below.sum())
    rest = sample_mean((above - value * below) / below.mean())
    return Estimate(value, rest.stderr, freedom=rest.freedom)


def _bootstrap(rows: Tensor, statistic: Callable[[Tensor], float], resamples: int = RESAMPLES) -> float:
    """Return the standard deviation of a statistic over resampled rows, from a fixed seed."""
    generator = torch.Generator().manual_seed(0)
    values = []
    for _ in range(resamples):
        chosen = torch.randint(len(rows), (len(rows),), generator=generator)
        values.append(statistic(rows[chosen]))
    return float(torch.tensor(values, dtype=torch.float64).std())
