"""Upper bounds on the negative log-likelihood of the sampler that runs, and their estimators."""

from __future__ import annotations

from rdlm.likelihood.continuous import continuous, paper_estimate
from rdlm.likelihood.estimate import CONFIDENCE, Curve, Estimate, sample_mean, sum_over_rows
from rdlm.likelihood.estimators import (
    Problem,
    Profile,
    path_bound,
    path_profile,
    path_terms,
    per_window_bound,
    stratified_bound,
)
from rdlm.likelihood.terms import Posterior, kernel_terms, step_terms

__all__ = [
    "CONFIDENCE",
    "Curve",
    "Estimate",
    "Posterior",
    "Problem",
    "Profile",
    "continuous",
    "kernel_terms",
    "paper_estimate",
    "path_bound",
    "path_profile",
    "path_terms",
    "per_window_bound",
    "sample_mean",
    "step_terms",
    "stratified_bound",
    "sum_over_rows",
]
