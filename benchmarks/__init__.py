"""Speed benchmarks: every figure is a ratio of two workloads that were timed in turn in one run; see `rdlm bench`.

registry    figures by name, for `rdlm bench --only`
measure     timing in turn, ratios, quartiles and targets
fixtures    the networks, methods and inputs that are timed

The scripts conditions.py, guidance.py and service.py measure what takes longer; run each with `--help`.
"""
