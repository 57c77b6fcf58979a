"""The convolution network's own laws: shift equivariance and how far it sees."""

from __future__ import annotations

from typing import Any

import torch

from rdlm.config import ConvolutionConfig, Interface

CONFIG = ConvolutionConfig(width=8, stacks=2, dilations=(1, 3), kernel=3)
REACH = 2 * (1 + 3)


def test_a_change_reaches_as_far_as_the_dilations_say(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4, signal=1))
    x = torch.randn(1, 41, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    other = x.clone()
    other[:, 20] += 3
    changed = (network(other, 0.3) - network(x, 0.3)).abs().amax(-1)[0] > 0
    seen = changed.nonzero()[:, 0]
    assert seen.min() == 20 - REACH and seen.max() == 20 + REACH


def test_inside_the_margins_a_shift_shifts_the_logits(awake: Any) -> None:
    network = awake(CONFIG, Interface(5, 4))
    x = torch.randn(1, 41, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    logits, shifted = network(x, 0.3), network(x.roll(2, 1), 0.3)
    inside = slice(REACH + 2, 41 - REACH)
    torch.testing.assert_close(shifted[:, inside], logits.roll(2, 1)[:, inside])


def test_the_paper_network_sees_every_position_from_every_other() -> None:
    config = ConvolutionConfig()
    reach = config.stacks * sum(config.dilations) * (config.kernel // 2)
    assert reach >= 1023
    assert config.stacks * len(config.dilations) == 20
