"""Training: the loop, data parallelism, runs that resume from checkpoints, and their record."""
