"""The method as a whole: every pair of settings trains, conditions arrive, samples are tokens."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import combinations, product
from typing import Any

import pytest
import torch
from small import BY_TOKEN, LAYOUTS, Watched, every_layout, method, tokens

from rdlm.config import DenoiserConfig, ObjectiveConfig, ProcessConfig
from rdlm.data.batch import Batch
from rdlm.errors import InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.process.layout import Layout
from rdlm.process.order import TokenSchedule
from rdlm.random import Draw

FACTORS: dict[str, list[Any]] = {
    "bridge": ["brownian", "logarithm"],
    "path": ["masked", "uniform", "constant", "switch"],
    "law": ["exact", "normal", "simulated"],
    "features": ["evidence", "coordinates", "tokens", "top"],
    "layout": list(LAYOUTS),
    "loss": ["cross_entropy", "drift_error"],
    "self_condition": [False, True],
    "condition": ["none", "classes", "signal"],
    "evidence": [True, False],
    "times": ["synchronous", "windows", "prefix"],
    "proposal": ["uniform", "interval", "adaptive"],
}


def covering(factors: dict[str, list[Any]], strength: int) -> list[dict[str, Any]]:
    """Return rows in which every `strength` factors take all their values together, greedily and always the same."""
    names = list(factors)
    wanted = {
        tuple(zip(chosen, values, strict=True))
        for chosen in combinations(names, strength)
        for values in product(*(factors[name] for name in chosen))
    }
    chance, rows = random.Random(0), []
    while wanted:
        seed = dict(chance.choice(sorted(wanted, key=repr)))
        trials = [{n: seed.get(n, chance.choice(factors[n])) for n in names} for _ in range(12)]
        covered = [{tuple((n, row[n]) for n in chosen) for chosen in combinations(names, strength)} for row in trials]
        best = max(range(len(trials)), key=lambda index: len(covered[index] & wanted))
        wanted -= covered[best]
        rows.append(trials[best])
    return rows


ROWS = covering(FACTORS, 2)


def assembled(row: dict[str, Any]) -> tuple[Rdlm, Batch]:
    settings = {name: row[name] for name in ("bridge", "path", "law", "features", "loss", "self_condition")}
    settings |= {"evidence": row["evidence"], "proposal": row["proposal"], "top": 2, "levels": 8, "pairs": 64}
    settings |= LAYOUTS[row["layout"]]
    settings |= {"windows": {"asynchronous": 0.7}, "prefix": {"prefix": 0.7}}.get(row["times"], {})
    classes, signal = (3 if row["condition"] == "classes" else 0), int(row["condition"] == "signal")
    batch = tokens(5, 4, 3)
    label = torch.tensor([0, 1, 2, -1]) if classes else None
    profile = torch.rand(4, 3, generator=torch.Generator().manual_seed(3)) if signal else None
    return method(5, classes, signal, scrambled=True, **settings), replace(batch, label=label, signal=profile)


def test_rows_cover_all_pairs() -> None:
    assert 12 <= len(ROWS) <= 60
    for first, second in combinations(FACTORS, 2):
        seen = {(row[first], row[second]) for row in ROWS}
        assert seen == set(product(FACTORS[first], FACTORS[second]))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(value) for value in row.values()))
def test_every_combination_has_a_finite_loss_and_gradient(row: dict[str, Any]) -> None:
    made, batch = assembled(row)
    for step in range(4):
        loss = made.loss(batch, Draw(0, step))
        assert loss.shape == () and bool(loss.isfinite()) and loss.item() >= 0
        made.network.zero_grad()
        loss.backward()
        for name, parameter in made.network.named_parameters():
            assert parameter.grad is not None, name  # distributed training wants every one of them
            assert bool(parameter.grad.isfinite().all()), name
    assert loss.item() == made.loss(batch, Draw(0, 3)).item()  # nothing but the key decides
    assert loss.item() != made.loss(batch, Draw(1, 3)).item()


@pytest.mark.parametrize("loss", ["cross_entropy", "drift_error"])
@every_layout
def test_the_gradient_is_that_of_the_loss(layout: str, loss: str) -> None:
    made = method(5, scrambled=True, loss=loss, evidence=False, features="coordinates", **LAYOUTS[layout])
    batch, draw = tokens(5, 8, 3), Draw(0, 0)
    made.loss(batch, draw).backward()
    parameters = list(made.network.parameters())
    gradients = [p.grad.clone() for p in parameters if p.grad is not None]
    size = math.sqrt(sum(float(g.square().sum()) for g in gradients))
    values = []
    for distance in (1e-3, -2e-3):  # one step uphill, and from there two steps down
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=distance / size)
            values.append(made.loss(batch, draw).item())
    assert (values[0] - values[1]) / 2e-3 == pytest.approx(size, rel=2e-2)


@every_layout
def test_cross_entropy_of_an_untrained_network_is_what_evidence_leaves_open(layout: str) -> None:
    """It lies between 0 and the log of the alternatives, and falls to 0 for late times."""
    alternatives = 5 if layout in BY_TOKEN else 2
    batch = tokens(5, 512, 4)
    whole = method(5, **LAYOUTS[layout]).loss(batch, Draw(0, 0)).item()
    assert 0.1 * math.log(alternatives) < whole < math.log(alternatives)
    late = method(5, proposal="interval", interval=(0.95, 1.0), floor=1e-4, **LAYOUTS[layout])
    assert late.loss(batch, Draw(0, 0)).item() / 0.05 < 0.01


@pytest.mark.parametrize("loss", ["cross_entropy", "drift_error"])
@every_layout
def test_the_network_sees_finished_prefixes_as_vertices(layout: str, loss: str) -> None:
    made = method(5, prefix=1.0, loss=loss, features="coordinates", **LAYOUTS[layout])
    made.network = network = Watched(made.denoiser.interface().outputs)
    batch = tokens(5, 64, 6)
    assert made.loss(batch, Draw(0, 0)).isfinite()
    inputs, time, _ = network.calls[0]
    layout = made.process.layout
    digit = layout.encode(batch.ids).view(64, 6, layout.digits)
    state = inputs.reshape(64, 6, layout.digits, layout.base + 1)
    finished = time.view(64, 6, layout.positions)[..., 0] == 1
    assert 64 < int(finished.sum()) < 64 * 5
    assert torch.equal(state[finished], torch.eye(layout.base + 1)[digit[finished]])
    assert bool((state[~finished][..., :-1] < 1).all())


def test_asynchronous_times_do_not_update_the_proposal() -> None:
    """Their loss belongs to no time of the proposal's."""
    batch = tokens(5, 32, 4)
    for share, noted in ((1.0, 0), (0.0, 32)):
        made = method(5, proposal="adaptive", asynchronous=share)
        made.loss(batch, Draw(0, 0))
        assert int(made.state()["proposal.pending"][1].sum()) == noted


def test_shards_add_up_to_the_whole_for_the_proposal_and_its_state_is_kept() -> None:
    batch = tokens(5, 32, 4)
    one, other = method(5, proposal="adaptive"), method(5, proposal="adaptive")
    for step in range(3):
        for shard in range(2):
            one.loss(Batch(batch.ids[shard::2]), Draw(0, step, shard, 2))
    assert int(one.state()["proposal.pending"][1].sum()) == 32
    other.load_state({name: tensor.clone() for name, tensor in one.state().items()})
    for made in (one, other):
        made.loss(batch, Draw(0, 3))
    assert torch.equal(one.proposal.mass, other.proposal.mass)
    assert float(one.proposal.mass.std()) > 0


def test_self_conditioning_is_used_half_of_the_time() -> None:
    made = method(5, self_condition=True)
    made.network = network = Watched(5)
    batch = tokens(5, 2, 3)
    for step in range(200):
        made.loss(batch, Draw(0, step))
    assert len(network.calls) == pytest.approx(200 + 100, abs=4 * 50**0.5)


# -- samples ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_schedule", [None, TokenSchedule(0.5, "left_to_right")], ids=["all", "half"])
@pytest.mark.parametrize("kernel", ["mixture", "drift"])
@pytest.mark.parametrize("path", ["masked", "constant", "switch"])
@every_layout
def test_samples_are_tokens(layout: str, path: str, kernel: str, token_schedule: TokenSchedule | None) -> None:
    made = method(5, scrambled=True, path=path, **LAYOUTS[layout])
    seeds = [torch.Generator().manual_seed(14) for _ in range(2)]
    first, second = (made.generate(40, 3, 8, seed, kernel, token_schedule) for seed in seeds)
    assert first.shape == (40, 3) and first.dtype == torch.long
    assert torch.equal(first, second)
    lowest = 0 if layout in BY_TOKEN else -1
    assert lowest <= int(first.min()) and int(first.max()) < 5


@every_layout
def test_an_untrained_network_samples_uniformly_and_invalid_codes_are_marked(layout: str) -> None:
    count = 2000
    drawn = method(5, **LAYOUTS[layout]).generate(count, 2, 4, torch.Generator().manual_seed(15)).flatten()
    share = torch.bincount(drawn + 1, minlength=6).double() / len(drawn)
    each = 1 / 5 if layout in BY_TOKEN else 1 / 8
    expected = torch.tensor([1 - 5 * each] + [each] * 5, dtype=torch.float64)
    error = (expected * (1 - expected) / len(drawn)).sqrt()
    assert bool(((share - expected).abs() <= 4.5 * error + 1e-12).all())


@pytest.mark.parametrize("kind", ["classes", "signal"])
@every_layout
def test_conditions_reach_the_network(layout: str, kind: str) -> None:
    made = method(5, 3 * (kind == "classes"), int(kind == "signal"), scrambled=True, **LAYOUTS[layout])
    batch = tokens(5, 16, 3)
    given = torch.arange(16) % 3 if kind == "classes" else torch.linspace(-1, 1, 48).view(16, 3)
    told = replace(batch, **{"label" if kind == "classes" else "signal": given})
    with_it, without = (made.bound(b, 4, torch.Generator().manual_seed(17)) for b in (told, batch))
    assert not torch.allclose(with_it, without)
    assert made.generate(16, 3, 4, torch.Generator().manual_seed(18), condition=given).shape == (16, 3)


def test_dropped_conditions_are_none() -> None:
    made = method(5, 3, condition_dropout=0.25)
    made.network = network = Watched(5)
    batch = replace(tokens(5, 2000, 1), label=torch.ones(2000, dtype=torch.long))
    made.loss(batch, Draw(0, 0))
    condition = network.calls[0][2]
    assert condition is not None and set(condition.tolist()) == {-1, 1}
    assert (condition == -1).float().mean().item() == pytest.approx(0.25, abs=4 * (0.1875 / 2000) ** 0.5)


# -- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vocabulary", "settings", "said"),
    [
        (30522, {"total": 0.03756}, "process.total null"),
        (30522, {"bridge": "logarithm", "total": 0.03756}, "without evidence"),
        (5, {"base": 7}, "base 7 exceeds the vocabulary of 5"),
        (5, {"base": 1}, "base 1 must be at least 2"),
        (5, {"features": "top"}, "denoiser.top"),
    ],
)
def test_impossible_configurations_are_refused_at_once(vocabulary: int, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        method(vocabulary, **settings)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        (ProcessConfig, {"weight": 1.5}),
        (ProcessConfig, {"switch": 0.0}),
        (ProcessConfig, {"total": -1.0}),
        (ProcessConfig, {"total": float("nan")}),
    ],
)
def test_impossible_processes_are_refused(part: type, wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=f"process.{next(iter(wrong))}"):
        part(**wrong)


def test_the_whole_vocabulary_works_without_evidence() -> None:
    made = method(300, bridge="logarithm", evidence=False, features="tokens", levels=4)
    assert made.loss(tokens(300, 2, 3), Draw(0, 0)).item() == pytest.approx(math.log(300), rel=1e-5)
    assert made.process.layout == Layout(300, 300) and made.config.denoiser == DenoiserConfig("tokens", evidence=False)
    assert made.config.objective == ObjectiveConfig()
