"""Methods: RDLM and its baselines, one file each, with the interface of `base.Method`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

from torch import nn

from rdlm.config import RunConfig
from rdlm.data.store import Corpus
from rdlm.errors import unknown
from rdlm.methods.ardm import ARDM
from rdlm.methods.autoregressive import Autoregressive
from rdlm.methods.base import Method
from rdlm.methods.bfn import BFN
from rdlm.methods.bit_diffusion import BitDiffusion
from rdlm.methods.block_diffusion import BlockDiffusion
from rdlm.methods.d3pm import D3PM, Multinomial
from rdlm.methods.ddsm import DDSM
from rdlm.methods.diffusion_bert import DiffusionBert
from rdlm.methods.dirichlet_flow import DirichletFlow
from rdlm.methods.fisher_flow import FisherFlow
from rdlm.methods.mac import MAC
from rdlm.methods.mdlm import MDLM, BertMouth
from rdlm.methods.plaid import DiffusionLM, Plaid
from rdlm.methods.rdlm import Rdlm
from rdlm.methods.sedd import SEDD
from rdlm.methods.tau_ldr import TauLDR
from rdlm.methods.udlm import UDLM
from rdlm.model.belief import BeliefNetwork
from rdlm.model.network import transformer_of
from rdlm.model.transformer import Transformer
from rdlm.storage.own_classes import check_trusted

METHODS: dict[str, Callable[[RunConfig, int, int, int], Method]] = {
    "rdlm": Rdlm,
    "mdlm": MDLM,
    "udlm": UDLM,
    "sedd": SEDD,
    "autoregressive": Autoregressive,
    "fisher_flow": FisherFlow,
    "ardm": ARDM,
    "mac": MAC,
    "d3pm": D3PM,
    "multinomial": Multinomial,
    "bfn": BFN,
    "bit_diffusion": BitDiffusion,
    "block_diffusion": BlockDiffusion,
    "diffusion_bert": DiffusionBert,
    "bert_mouth": BertMouth,
    "tau_ldr": TauLDR,
    "plaid": Plaid,
    "diffusion_lm": DiffusionLM,
    "dirichlet_flow": DirichletFlow,
    "ddsm": DDSM,
}
"""Constructors by name; arguments: configuration, vocabulary size, number of classes, width of the signal."""


def build(config: RunConfig, corpus: Corpus) -> Method:
    """Return the configured method for the vocabulary, the classes and the per-position signal of a corpus."""
    if config.method not in METHODS:
        raise unknown("method", config.method, METHODS)
    check_trusted(config)
    method = METHODS[config.method](config, corpus.tokenizer.size, len(corpus.classes), int(bool(corpus.signals)))
    if isinstance(method.network, BeliefNetwork):
        method.network.belief.fit(corpus.rows, corpus.digest)
    if _has_frequencies(method.network, corpus.tokenizer.size):
        method.network.start_at_frequencies(corpus.rows())
    method.fit(corpus.rows)
    return method


def _has_frequencies(network: nn.Module, vocabulary: int) -> TypeGuard[Transformer | BeliefNetwork]:
    """Return whether the output bias is initialised at the frequencies: if configured, with an output for each
    token."""
    inner = transformer_of(network)
    if inner is None or not inner.config.frequencies:
        return False
    return inner.interface.outputs - inner.interface.weights == vocabulary
