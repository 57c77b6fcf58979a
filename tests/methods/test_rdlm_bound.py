"""The method's bound: above the entropy, tight where the posterior is exact, and one for all layouts."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import pytest
import torch
from small import LAYOUTS, mean_and_error, method, tokens
from torch import Tensor, nn

from rdlm.data.batch import Batch
from rdlm.methods import rdlm
from rdlm.methods.rdlm import Rdlm
from rdlm.process.order import TokenSchedule


@pytest.mark.parametrize("nfe", [8, 32])
@pytest.mark.parametrize(
    ("vocabulary", "settings"),
    [(27, {}), (27, {"path": "uniform"}), (27, {"base": 3}), (7, {"base": 2}), (8, {"base": 2, "layout": "serial"})],
    ids=["masked", "uniform", "packed", "packed-with-invalid-codes", "serial"],
)
def test_evidence_alone_on_uniform_tokens_is_tight(vocabulary: int, settings: dict[str, Any], nfe: int) -> None:
    """A zero network with evidence is the exact posterior of the uniform source: the bound is log V."""
    made, length = method(vocabulary, **settings), 4
    values = made.bound(tokens(vocabulary, 4096, length), nfe, torch.Generator().manual_seed(4)) / length
    mean, error = mean_and_error(values)
    assert values.shape == (4096,) and values.dtype == torch.float64
    assert mean == pytest.approx(math.log(vocabulary), abs=4 * error + 0.003 * math.log(vocabulary))
    assert error < 0.03 * math.log(vocabulary)


def test_no_table_of_states_enters_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error of a table is common to all sequences, seeds and repetitions, so that no interval would cover it."""
    monkeypatch.setattr(rdlm, "CHAIN_PAIRS", 3)
    values = method(27).bound(tokens(27, 2048, 4), 32, torch.Generator().manual_seed(4)) / 4
    mean, error = mean_and_error(values)
    assert mean == pytest.approx(math.log(27), abs=4 * error + 0.003 * math.log(27))


FLOOR_ROWS: list[dict[str, Any]] = [
    {},
    {"bridge": "logarithm"},
    {"path": "uniform", "kernel": "drift"},
    {"path": "switch", "nfe": 12},
    {"path": "constant", "bridge": "logarithm", "kernel": "drift"},
    {"base": 2},
    {"base": 2, "kernel": "drift"},
    {"base": 2, "path": "switch", "nfe": 12},
    {"base": 2, "head": "digit", "token_schedule": TokenSchedule(0.5)},
    {"base": 2, "layout": "serial", "token_schedule": TokenSchedule(0.25, "left_to_right")},
    {"evidence": False, "features": "coordinates"},
    {"evidence": False, "features": "top", "top": 3, "base": 2, "token_schedule": TokenSchedule(0.5)},
]


@pytest.mark.parametrize("scrambled", [False, True])
@pytest.mark.parametrize("row", FLOOR_ROWS, ids=lambda row: "-".join(map(str, row.values())) or "plain")
def test_no_bound_falls_below_the_entropy(row: dict[str, Any], scrambled: bool) -> None:
    settings = dict(row)
    kernel, nfe = settings.pop("kernel", "mixture"), settings.pop("nfe", 8)
    token_schedule = settings.pop("token_schedule", None)
    made, length = method(5, scrambled=scrambled, **settings), 3
    values = made.bound(tokens(5, 4096, length), nfe, torch.Generator().manual_seed(5), kernel, token_schedule) / length
    mean, error = mean_and_error(values)
    assert mean > math.log(5) - 4 * error
    assert mean < 40 and error < 0.5


def test_width_one_is_synchronous() -> None:
    made, batch = method(5, scrambled=True), tokens(5, 4096, 3)
    plain, whole, nearly = (
        made.bound(batch, 8, torch.Generator().manual_seed(6), token_schedule=token_schedule)
        for token_schedule in (None, TokenSchedule(1.0), TokenSchedule(0.99))
    )
    assert torch.equal(plain, whole)
    # Of 8 steps 0.99 is all of them: the same chain, by a token schedule and with other draws.
    (mean, error), (other, deviation) = mean_and_error(plain), mean_and_error(nearly)
    assert mean == pytest.approx(other, abs=4 * math.hypot(error, deviation))


def test_the_narrowest_window_is_masked_diffusion() -> None:
    """Width 1/M: each position is decoded in one step, given those decoded before; here over all orders by hand."""
    made = method(3, scrambled=True)
    pair, count = [2, 0], 16_384
    values = made.bound(
        Batch(torch.tensor([pair]).expand(count, 2)),
        2,
        torch.Generator().manual_seed(7),
        token_schedule=TokenSchedule(0.5, "random"),
    )
    mean, error = mean_and_error(values)
    start, posterior = made.process.bridge.start.point(), made.posterior()
    expected = 0.0
    for named in product((0, 1), (0, 1)):  # the step at which each position is named
        for position in (0, 1):
            done = [named[other] < named[position] for other in (0, 1)]
            state = torch.stack([torch.eye(4)[pair[o]] if done[o] else start for o in (0, 1)])[None]
            remaining = torch.tensor([[0.0 if done[o] else made.process.schedule.total for o in (0, 1)]])
            expected -= posterior(state, remaining)[0, position, pair[position]].item() / 4
    assert mean == pytest.approx(expected, abs=4 * error) and error < 0.02 * expected


def test_every_sequence_is_measured_at_every_step_equally_often() -> None:
    """The estimate of a single sequence is unbiased: its own step is uniform, while the batch's are spread evenly."""
    made = method(5)
    nfe, steps, batch = 4, [], tokens(5, 8, 1)

    def spy(state: Tensor, remaining: Tensor) -> Tensor:
        steps.append(remaining[:, 0])
        return made.denoiser(made.network, state, remaining)

    made.posterior = lambda condition=None, block_mask=None: spy  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(8)
    for _ in range(120):
        made.bound(batch, nfe, generator)
    levels = torch.stack(steps)  # [120, 8]
    kinds = levels.unique()
    assert len(kinds) == 4
    assert bool(torch.stack([(levels == k).sum(1) == 2 for k in kinds]).all())  # two of eight at each step, always
    first = torch.stack([(levels[:, 0] == k).sum() for k in kinds]).double()
    assert ((first - 30).square() / 30).sum().item() < 16.3  # chi-square, 3 degrees of freedom, level 1e-3


# -- layouts ----------------------------------------------------------------------------------------


class Alike(nn.Module):
    """A network that treats digits alike in every layout: shared weights per sphere, and the mean of all of them."""

    def __init__(self, made: Rdlm) -> None:
        super().__init__()
        self.spheres, self.layout = made.denoiser.layout.spheres, made.process.layout
        self.whole = made.denoiser.layout.joint
        generator = torch.Generator().manual_seed(9)
        base, width = self.layout.base, made.denoiser.sphere_width
        self.inner, self.pooled, self.outer = (
            torch.randn(*shape, generator=generator) for shape in ((width, 8), (width, 8), (8, base))
        )

    def forward(self, inputs: Tensor, time: Tensor, condition: Tensor | None, previous: Tensor | None) -> Tensor:
        sphere = inputs.unflatten(-1, (self.spheres, -1))  # [B, P, m, F]
        time = time[:, None] if time.ndim == 1 else time
        hidden = sphere @ self.inner + (sphere.mean((1, 2)) @ self.pooled)[:, None, None] + time[..., None, None]
        logits = hidden.tanh() @ self.outer  # [B, P, m, b]
        return self.layout.evidence(logits) if self.whole else logits.flatten(2)


def alike(layout: str, vocabulary: int, base: int, **settings: Any) -> Rdlm:
    made = method(vocabulary, **{**LAYOUTS[layout], "base": base, **settings})
    made.network = Alike(made)
    return made


@pytest.mark.parametrize(
    "token_schedule", [None, TokenSchedule(0.5), TokenSchedule(0.25, "left_to_right")], ids=["all", "half", "quarter"]
)
@pytest.mark.parametrize("kernel", ["mixture", "drift"])
@pytest.mark.parametrize("path", ["masked", "switch"])
def test_packed_and_serial_layouts_have_one_bound(path: str, kernel: str, token_schedule: TokenSchedule | None) -> None:
    """The same draws give the same estimate for every sequence, for V = 20 in base 3 with 7 codes to spare."""
    batch = tokens(20, 64, 3)
    values = [
        alike(layout, 20, 3, path=path, features="coordinates").bound(
            batch, 12, torch.Generator().manual_seed(10), kernel, token_schedule
        )
        for layout in ("packed digits", "serial")
    ]
    torch.testing.assert_close(values[0], values[1], rtol=1e-4, atol=1e-3)
    assert values[0].mean().item() > 1


@pytest.mark.parametrize("token_schedule", [None, TokenSchedule(0.5)], ids=["all", "half"])
@pytest.mark.parametrize("kernel", ["mixture", "drift"])
@pytest.mark.parametrize("path", ["masked", "switch"])
def test_tokens_of_independent_digits_have_the_bound_of_their_digits(
    path: str, kernel: str, token_schedule: TokenSchedule | None
) -> None:
    """Where every code is a token and digits are independent, a head over tokens says what one over digits says."""
    batch = tokens(27, 64, 3)
    values = [
        alike(layout, 27, 3, path=path).bound(batch, 12, torch.Generator().manual_seed(11), kernel, token_schedule)
        for layout in ("packed tokens", "packed digits")
    ]
    if path == "masked":
        torch.testing.assert_close(values[0], values[1], rtol=1e-3, atol=5e-3)
    (mean, error), (other, deviation) = (mean_and_error(value) for value in values)
    assert mean == pytest.approx(other, abs=4 * math.hypot(error, deviation))


def test_packed_and_serial_layouts_draw_the_same_samples() -> None:
    drawn = [
        alike(layout, 20, 3, features="coordinates").generate(50, 4, 8, torch.Generator().manual_seed(12))
        for layout in ("packed digits", "serial")
    ]
    assert torch.equal(*drawn)


def test_a_head_over_tokens_gains_where_codes_are_to_spare() -> None:
    """With no context log V is enough for whole tokens; digits on their own pay m log b."""
    whole, digits = (
        mean_and_error(method(5, base=2, head=head).bound(tokens(5, 8192, 2), 8, torch.Generator().manual_seed(13)) / 2)
        for head in ("token", "digit")
    )
    assert whole[0] == pytest.approx(math.log(5), abs=4 * whole[1] + 0.005)
    assert digits[0] == pytest.approx(3 * math.log(2), abs=4 * digits[1] + 0.005)
