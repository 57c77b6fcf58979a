"""Learned codes: who trains them, where they are kept, and what the method does with them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import mean_and_error, method, tokens
from torch import Tensor

from rdlm.config import Convolution2DConfig, ProcessConfig, TrainingConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.bound import Setting, measure_bound
from rdlm.methods.objective import bound_of_codes, codes_loss
from rdlm.methods.rdlm import Rdlm
from rdlm.model import denoiser
from rdlm.model.denoiser import fused_cross_entropy
from rdlm.model.network import MovingAverage
from rdlm.process import channel
from rdlm.process.order import TokenSchedule
from rdlm.process.tokens import Codes
from rdlm.random import Draw
from rdlm.train.optimizer import Optimizer

CODED: dict[str, Any] = {"codes": "learned", "dimension": 4}
every_channel = pytest.mark.parametrize("bridge", ["brownian", "logarithm", "gaussian"])
every_input = pytest.mark.parametrize("features", ["evidence", "mean", "statistic", "coordinates", "tokens"])


def coded(**settings: Any) -> Rdlm:
    return method(5, scrambled=True, **{**CODED, **settings})


def codes_of(made: Rdlm) -> Codes:
    assert made.process.codes is not None
    return made.process.codes


@every_channel
@every_input
def test_losses_bounds_and_samples_exist(bridge: str, features: str) -> None:
    made, batch = coded(bridge=bridge, features=features), tokens(5, 4, 6)
    loss = made.loss(batch, Draw(0, 0, 0, 1))
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in made.network.parameters())
    for kernel in ("mixture", "drift"):
        assert made.bound(batch, 5, torch.Generator().manual_seed(0), kernel).isfinite().all()
        ids = made.generate(3, 6, 4, torch.Generator().manual_seed(0), kernel)
        assert ids.shape == (3, 6) and int(ids.min()) >= 0 and int(ids.max()) < 5


@pytest.mark.parametrize("bridge", ["brownian", "gaussian"])
@pytest.mark.parametrize("features", ["evidence", "mean", "statistic"])
def test_codes_follow_the_gradient_of_the_bound(bridge: str, features: str) -> None:
    """Against central differences of the bound with the same random numbers: state, pull, evidence and input."""
    made, token = coded(bridge=bridge, features=features), tokens(5, 8, 6).ids
    codes = codes_of(made)
    codes.normalise()
    codes_loss(made, codes, token.repeat(8, 1), None, 0, torch.Generator().manual_seed(1)).backward()
    found, before = codes.weight.grad, codes.weight.detach().clone()
    assert found is not None
    step = found / found.norm()  # the steepest direction: differences of the bound are far above float32 rounding
    ends = []
    for sign in (1, -1):
        with torch.no_grad():
            codes.weight.copy_(before + sign * 1e-2 * step)
            ends.append(float(bound_of_codes(made, codes, token, None, torch.Generator().manual_seed(1))))
    assert float((found * step).sum()) == pytest.approx((ends[0] - ends[1]) / 2e-2, rel=0.01)


def test_the_cross_entropy_does_not_move_codes_and_the_bound_does_not_move_the_network() -> None:
    made, batch = coded(), tokens(5, 16, 6)
    codes, draw = codes_of(made), Draw(0, 0, 0, 1)
    made.loss(batch, draw).backward()
    whole = {name: p.grad.clone() for name, p in made.network.named_parameters() if p.grad is not None}
    made.network.zero_grad(set_to_none=True)
    generator = draw.generator()
    codes_loss(made, codes, batch.ids, None, 0, generator).backward()
    alone = {name: p.grad for name, p in made.network.named_parameters() if p.grad is not None}
    assert set(alone) == {"codes.weight"} and set(whole) > set(alone)
    assert float(whole["codes.weight"].norm()) > 0


def test_the_loss_is_the_cross_entropy() -> None:
    """The codes' part has the value 0."""
    made, batch = coded(), tokens(5, 16, 6)
    assert float(codes_loss(made, codes_of(made), batch.ids, None, 0, torch.Generator().manual_seed(3)).detach()) == 0
    assert 0 < float(made.loss(batch, Draw(0, 0, 0, 1)).detach()) < 10 * math.log(5)


def test_one_hot_codes_have_the_bound_of_vertices() -> None:
    """With d = V and the identity as codes, the network of the one-hot process has the same bound on the same paths."""
    plain, made = method(5, scrambled=True), method(5, codes="learned", dimension=5)
    made.network.load_state_dict({**plain.network.state_dict(), "codes.weight": torch.eye(5)})
    batch, setting = tokens(5, 4, 6), Setting(6, estimator="path")
    values = [
        float(measure_bound(one, batch, setting, 24, torch.Generator().manual_seed(4)).total.value)
        for one in (plain, made)
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-4)


@every_channel
def test_estimators_agree(bridge: str) -> None:
    """Single steps, paths and `Method.bound` estimate one number."""
    made, batch = coded(bridge=bridge), tokens(5, 64, 4)
    paths = measure_bound(made, batch, Setting(4, estimator="path"), 64 * 4 * 8, torch.Generator().manual_seed(5)).total
    steps = measure_bound(made, batch, Setting(4), 6000, torch.Generator().manual_seed(6)).total
    assert steps.value == pytest.approx(paths.value, abs=4 * (steps.stderr + paths.stderr))
    values = torch.cat([made.bound(batch, 4, torch.Generator().manual_seed(7 + i)) for i in range(30)])
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(steps.value, abs=4 * (error + steps.stderr))


def test_codes_are_updated_with_their_own_rate_and_keep_their_length() -> None:
    made, batch = coded(), tokens(5, 64, 6)
    codes, config = codes_of(made), TrainingConfig(optimizer="muon", lr=1e-3, warmup=1, codes_lr=0.05, clip=1e-6)
    optimizer = Optimizer(made.network, config)
    codes.normalise()
    before = codes.weight.detach().clone()
    made.loss(batch, Draw(0, 0, 0, 1)).backward()
    network_norm = torch.stack(
        [p.grad.norm() for n, p in made.network.named_parameters() if n != "codes.weight" and p.grad is not None]
    ).norm()
    torch.testing.assert_close(optimizer.norm(), network_norm)
    optimizer.update(0, optimizer.norm())
    assert "codes.weight" not in optimizer.matrices
    torch.testing.assert_close(codes.weight.detach().norm(dim=1), torch.ones(5))
    moved = (codes.weight.detach() - before).abs().max()
    assert 0.02 < float(moved) < 0.12  # one step of AdamW moves by the rate, whatever the clipping of the network
    assert codes.weight.grad is not None
    codes.weight.grad.fill_(float("nan"))
    assert not optimizer.norm().isfinite()


def test_averaged_codes_have_unit_length() -> None:
    made = coded()
    codes, average = codes_of(made), MovingAverage(made.network, 0.5)
    with torch.no_grad():
        codes.weight.neg_()
        codes.weight[:, 0] += 3
    average.update(made.network)
    with average.swap(made.network):
        inside = codes.vectors(torch.zeros(()))
        torch.testing.assert_close(inside.norm(dim=1), torch.ones(5))
        assert torch.equal(codes.weight, average.tensors["codes.weight"])
    assert not torch.allclose(codes.vectors(torch.zeros(())), inside)


def test_the_network_keeps_the_codes() -> None:
    made = coded()
    other = method(5, **CODED)
    other.network.load_state_dict(made.network.state_dict())
    state = torch.nn.functional.normalize(torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(8)), dim=-1)
    remaining = torch.full((2, 3), 0.01)
    torch.testing.assert_close(made.posterior()(state, remaining), other.posterior()(state, remaining), rtol=0, atol=0)


@pytest.mark.parametrize("bridge", ["brownian", "gaussian"])
def test_evidence_of_many_tokens_is_added_in_tiles(bridge: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The posterior is that of the evidence as a whole, whose formula is interpolated; the gradient is the same."""
    made = method(1500, codes="learned", dimension=8, bridge=bridge, features="statistic", scrambled=True)
    batch = tokens(1500, 3, 5)
    state, remaining = made.noisy(batch.ids, torch.full((3, 5), 0.6), torch.Generator().manual_seed(10))
    monkeypatch.setattr(channel, "TILE", 4000)
    prediction = made.denoiser.predict(made.network, state, remaining)
    evidence = made.process.bridge.log_likelihood(state.double(), remaining.double())
    monkeypatch.setattr(denoiser, "MANY_TOKENS", 10_000)
    apart = made.denoiser.predict(made.network, state, remaining)
    assert prediction.evidence is None and apart.evidence is not None
    expected = torch.log_softmax(apart.logits.double() + evidence, -1)
    likely = expected > -20
    assert float((prediction.log_probs() - expected)[likely].abs().max().detach()) < 5e-3
    gradients = []
    for found in (prediction, apart):
        made.network.zero_grad(set_to_none=True)
        fused_cross_entropy(found.logits, batch.ids, found.evidence).mean().backward()
        gradients.append({name: p.grad.clone() for name, p in made.network.named_parameters() if p.grad is not None})
    for name, one in gradients[0].items():
        torch.testing.assert_close(one, gradients[1][name], rtol=1e-3, atol=1e-6)


def test_codes_of_many_tokens_learn_at_some_steps() -> None:
    made = method(1500, codes="learned", dimension=8, features="statistic", scrambled=True)
    norms = []
    for step in (0, 1, 3, 7, 8):
        made.network.zero_grad(set_to_none=True)
        made.loss(tokens(1500, 2, 5), Draw(0, step, 0, 1)).backward()
        gradient = codes_of(made).weight.grad
        assert gradient is not None and bool(gradient.isfinite().all())
        norms.append(float(gradient.norm()))
    assert norms[1:4] == [0, 0, 0] and norms[0] > 0 and norms[4] > 0


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"dimension": 2}, "at least 3"),
        ({"path": "uniform"}, "process.path masked"),
        ({"path": "switch"}, "unequal angles"),
        ({"base": 3}, "one sphere per token"),
        ({"law": "normal"}, "process.law exact"),
    ],
)
def test_bad_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(ProcessConfig(codes="learned"), **setting)


def test_gaussian_observations_need_the_masked_path() -> None:
    with pytest.raises(InputError, match=r"process\.bridge gaussian"):
        ProcessConfig(bridge="gaussian", path="uniform")


def test_too_much_noise_for_the_sphere_of_the_codes_is_refused() -> None:
    with pytest.raises(InputError, match="S \\(d - 2\\)"):
        method(5, codes="learned", dimension=40, total=0.1)
    assert method(400, codes="learned", dimension=8, total=0.1).process.bridge.dimension == 9


@pytest.mark.parametrize("solver", ["heun", "corrector", "deterministic", "euler"])
def test_other_solvers_move_coded_states(solver: str) -> None:
    assert sampled(coded(), solver).shape == (3, 6)


def test_second_order_solvers_refuse_flat_space() -> None:
    with pytest.raises(InputError, match="mixture or drift"):
        sampled(coded(bridge="gaussian"), "heun")


def sampled(made: Rdlm, solver: str) -> Tensor:
    from rdlm.random import RandomStreams
    from rdlm.sampling.sampler import Sampler
    from rdlm.sampling.solvers import SOLVERS

    chain = made.chain(made.process.mixture.paths[0], 4)
    posterior = made.posterior()

    def denoise(state: Tensor, remaining: Tensor, prefix: object) -> Any:
        yield from ()
        return posterior(state, remaining)

    sampler = Sampler(denoise, chain, SOLVERS[solver], made.process.schedule)
    sampling = sampler.sample(torch.full((3, 6), -1), RandomStreams([torch.Generator().manual_seed(9)], 3))
    with pytest.raises(StopIteration) as stop:
        next(sampling)
    token: Tensor = stop.value.value.token
    assert int(token.min()) >= 0 and int(token.max()) < 5
    return token


# -- ordered levels ---------------------------------------------------------------------------------

SIDE, LEVELS = 4, 16


def ramps(count: int, seed: int) -> Batch:
    """Return images [4, 4, 1] of planes with a random level and slope: interpolation predicts them almost exactly."""
    generator = torch.Generator().manual_seed(seed)
    level, down, right = torch.rand(3, count, 1, 1, generator=generator)
    place = torch.arange(SIDE) - 1.5
    plane = 3 + 9 * level + 1.5 * (down - 0.5) * place[:, None] + 1.5 * (right - 0.5) * place
    return Batch(plane.round().long().clamp(0, LEVELS - 1).flatten(1))


def levels(**settings: Any) -> Rdlm:
    model = Convolution2DConfig(image=(SIDE, SIDE, 1), width=16, layers=2, kernel=3)
    ordered = {"codes": "arc", "dimension": 3, "bridge": "gaussian", "features": "level"}
    return method(LEVELS, model=model, **{**ordered, "asynchronous": 0.7, "narrow": 1.0, **settings})


def trained_bounds(made: Rdlm, change: Any, steps: int) -> list[float]:
    """Return the erasure bound in bits per token on other images, before and after training."""
    optimizer = Optimizer(made.network, TrainingConfig(optimizer="muon", lr=3e-3, warmup=10))
    held_out, found = change(ramps(64, 1)), []
    for step in range(steps + 1):
        if step in (0, steps):
            nats = made.bound(held_out, 16, torch.Generator().manual_seed(0), token_schedule=TokenSchedule(1e-6))
            found.append(float(nats.mean()) / SIDE**2 / math.log(2))
        made.loss(change(ramps(16, 2 + step)), Draw(0, step, 0, 1)).backward()
        optimizer.update(step, optimizer.norm())
        optimizer.zero_grad()
    return found


def test_levels_are_learned_soon_and_by_their_order() -> None:
    before, after = trained_bounds(levels(), lambda batch: batch, 40)
    assert after < before < 4.1 and after < 2.5
    order = torch.randperm(LEVELS, generator=torch.Generator().manual_seed(3))
    _, shuffled = trained_bounds(levels(), lambda batch: Batch(order[batch.ids]), 40)
    assert shuffled > after + 0.5  # the same images with their levels renamed: interpolation is of no use


def test_fixed_points_are_neither_parameters_nor_trained() -> None:
    made = levels()
    assert made.process.codes is None and not any("codes" in name for name, _ in made.network.named_parameters())


def test_the_bound_of_levels_holds_in_both_orders_and_samples_exist() -> None:
    made, batch = levels(), ramps(32, 1)
    for schedule in (TokenSchedule(), TokenSchedule(1e-6)):
        setting = Setting(16, token_schedule=schedule)
        bits = measure_bound(made, batch, setting, 256, torch.Generator().manual_seed(0)).total.value / 16 / math.log(2)
        assert 2 < bits < 6
        ids = made.generate(2, SIDE**2, 8, torch.Generator().manual_seed(0), token_schedule=schedule)
        assert ids.shape == (2, 16) and int(ids.min()) >= 0 and int(ids.max()) < LEVELS


def test_evidence_from_outside_reaches_an_image_network() -> None:
    made, given = levels(), torch.zeros(1, 16, LEVELS)
    made.network.outer.weight.data.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    state, remaining = made.noisy(torch.zeros(1, 16, dtype=torch.long), torch.zeros(1, 1), torch.Generator())
    plain = made.posterior(given=given)(state, remaining)
    given[0, 5] = -8.0 * (torch.arange(LEVELS) - 12.0) ** 2
    told = made.posterior(given=given)(state, remaining)
    assert int(told[0, 5].argmax()) == 12 and not torch.allclose(told[0, 6], plain[0, 6])
