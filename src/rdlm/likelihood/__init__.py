"""Likelihood bounds that hold for the sampler that runs."""

from rdlm.likelihood.estimate import CONFIDENCE, Curve, Estimate, curve_of_source
from rdlm.likelihood.path import path_terms
from rdlm.likelihood.terms import Posterior, kernel_terms, step_terms

__all__ = [
    "CONFIDENCE",
    "Curve",
    "Estimate",
    "Posterior",
    "curve_of_source",
    "kernel_terms",
    "path_terms",
    "step_terms",
]
