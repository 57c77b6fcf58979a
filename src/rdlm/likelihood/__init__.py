"""Upper bounds on the negative log-likelihood of the sampler that runs, and their estimators."""
