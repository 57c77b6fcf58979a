"""The denoisers: feature tensors and per-position times in, logits out; nothing here knows of spheres."""
