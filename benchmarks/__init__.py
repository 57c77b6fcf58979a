"""Speed: every figure is a ratio of two things that took turns in one run; `rdlm bench` shows them."""
