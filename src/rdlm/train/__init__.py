"""Training: one loop, several processes, checkpoints that survive anything, and a record of what happened."""
