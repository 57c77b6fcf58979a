"""Corpora, tokenizers, batches, and toy sources of known entropy."""

from __future__ import annotations

from rdlm.data.batch import Batch, Batches
from rdlm.data.corpus import load
from rdlm.data.store import Corpus

__all__ = ["Batch", "Batches", "Corpus", "load"]
