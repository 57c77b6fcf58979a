"""Networks: logits from features and times of every position; only `denoiser` depends on the process."""
