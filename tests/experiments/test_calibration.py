"""Calibration errors of predictions with known calibration."""

from __future__ import annotations

import pytest
import torch

from experiments.calibration import calibration


def test_calibration_error_of_calibrated_and_of_too_certain_predictions() -> None:
    generator = torch.Generator().manual_seed(0)
    law = (2 * torch.randn(40_000, 5, generator=generator)).softmax(-1)
    truth = torch.multinomial(law, 1, generator=generator)[:, 0]
    found = calibration(law, truth)
    assert int(found.count.sum()) == 40_000
    assert 0.4 * found.floor < found.error < 2 * found.floor < 0.015
    sharp = (1.5 * law.log()).softmax(-1)
    excess = sharp.max(-1).values - (sharp.argmax(-1) == truth).float()
    assert 0.05 < calibration(sharp, truth).error == pytest.approx(float(excess.mean()), abs=0.01)


def test_the_floor_is_the_mean_error_of_calibrated_predictions() -> None:
    generator = torch.Generator().manual_seed(1)
    law = (2 * torch.randn(500, 3, generator=generator)).softmax(-1)
    draws = [torch.multinomial(law, 1, generator=generator)[:, 0] for _ in range(200)]
    errors = torch.tensor([calibration(law, truth).error for truth in draws])
    assert calibration(law, draws[0]).floor == pytest.approx(float(errors.mean()), rel=0.05)
