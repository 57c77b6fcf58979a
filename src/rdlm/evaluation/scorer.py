"""Who judges samples: any causal language model that `transformers` can load, or an autoregressive run of ours."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from rdlm.data.tokenizer import Tokenizer
from rdlm.errors import InputError
from rdlm.method.autoregressive import Autoregressive


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
    from rdlm.language_model import load

    model = load(folder)
    method: object = model.method
    if not isinstance(method, Autoregressive):
        raise InputError(f"{name} holds no autoregressive run, and only such a one scores text exactly")
    return RunScorer(model.name, method, model.tokenizer)
