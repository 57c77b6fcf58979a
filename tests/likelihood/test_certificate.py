"""The certificate: its cases, its verdicts, and the paper's estimator, which is no bound."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rdlm.data.sources import markov, skewed, uniform
from rdlm.likelihood import certificate
from rdlm.likelihood.certificate import Case, Verdict, cases, draw_information, markov_ngram, measure
from rdlm.likelihood.estimate import Estimate
from rdlm.model.belief import Ngram
from rdlm.process.kernel import Kernel
from rdlm.process.order import TokenSchedule
from rdlm.process.path import ChannelKind, Mixture, constant_mixture, masked_path, switching_path, uniform_path
from rdlm.process.schedule import Geometric
from rdlm.process.tokens import Codes

S = Geometric().total


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def masked_case(states: int = 3, steps: int = 8) -> Case:
    return Case(skewed(states), "masked", Mixture((masked_path(states, S),)), steps)


def verdict(value: float, stderr: float, claims_bound: bool = True) -> Verdict:
    return Verdict(masked_case(), Estimate(value, stderr, claims_bound), torch.zeros(8), torch.zeros(9))


def test_cases_cover_sources_paths_bridges_kernels_and_token_schedules() -> None:
    listed = list(cases(400))
    for states in (3, 27):
        for source in (f"uniform-{states}", f"skewed-{states}"):
            labels = {case.label for case in listed if case.source.name == source}
            assert {"masked", "uniform", "constant mixture", "switching mixture"} <= labels
    dependent = {
        (case.mixture.paths[0].bridge.kind, case.kernel, case.token_schedule)
        for case in listed
        if case.source.length == 2 and case.label == "masked"
    }
    kinds, kernels = ("brownian", "logarithm"), ("mixture", "drift")
    names = ("synchronous", "random 0.5", "strided 0.5", "left_to_right 0.5", "in blocks of 1")
    assert dependent == {(kind, kernel, name) for kind in kinds for kernel in kernels for name in names}
    assert sum(case.spliced for case in listed) == 2
    assert {case.steps for case in listed} == {5, 8, 400}


def test_cases_cover_codes_and_every_channel() -> None:
    listed = [case for case in cases(400) if case.label.endswith("dimensions")]
    shapes = {(case.source.states, case.label, case.mixture.paths[0].bridge.kind, case.kernel) for case in listed}
    sizes, kinds = ((3, 8), (27, 8), (27, 40)), ("brownian", "logarithm", "gaussian")
    every = {
        (v, f"{d} dimensions", kind, kernel) for v, d in sizes for kind in kinds for kernel in ("mixture", "drift")
    }
    assert shapes == every
    assert {case.token_schedule for case in cases(400) if case.label == "erasure"} == {
        f"{order} 0.125" for order in ("random", "strided", "left_to_right")
    }


@pytest.mark.parametrize("kind", ["brownian", "logarithm", "gaussian"])
@pytest.mark.parametrize(("states", "dimension"), [(3, 8), (27, 4)])
@pytest.mark.parametrize("kernel", ["mixture", "drift"])
def test_codes_keep_the_floor(kind: ChannelKind, states: int, dimension: int, kernel: Kernel) -> None:
    """The bound with codes is at the entropy or above it, and within a few percent for a fine grid."""
    found = measure(coded_case(Codes(states, dimension, generator()), kind, kernel, 64), 600, generator())
    assert found.holds
    assert found.bound.value - 4 * found.bound.stderr < found.case.source.entropy * (
        1.03 if kernel == "mixture" else 1.15
    )


class UnequalLengths(Codes):
    """A mutation: vectors of lengths 0.7 and 1.3."""

    def vectors(self, like: Tensor) -> Tensor:
        return super().vectors(like) * (1 + 0.3 * (-1) ** torch.arange(1, self.vocabulary + 1))[:, None].to(like)


class OtherEvidence(Codes):
    """A mutation: the pull leads to the next token's vector, the densities are those of the right one."""

    def add_(self, x: Tensor, token: Tensor, weight: Tensor) -> Tensor:
        return super().add_(x, (token + 1) % self.vocabulary, weight)


@pytest.mark.parametrize(
    ("kind", "kernel", "mutant"),
    [
        ("brownian", "mixture", UnequalLengths),
        ("brownian", "mixture", OtherEvidence),
        ("brownian", "drift", UnequalLengths),
        ("gaussian", "drift", UnequalLengths),
    ],
)
def test_wrong_codes_leave_the_entropy(kind: ChannelKind, kernel: Kernel, mutant: type[Codes]) -> None:
    """Far from the interval in which right codes lie.

    Not with Gaussian observations and the mixture kernel: there, evidence is the sum of the steps' densities, so that
    the terms of any path whatever add up to `-log p`; what its paths are is tested with its law.
    """
    found = measure(coded_case(mutant(3, 8, generator()), kind, kernel, 64), 3000, generator()).bound
    right = measure(coded_case(Codes(3, 8, generator()), kind, kernel, 64), 3000, generator()).bound
    assert abs(found.value - right.value) > 6 * (found.stderr + right.stderr)


def coded_case(codes: Codes, kind: ChannelKind, kernel: Kernel, steps: int) -> Case:
    mixture = Mixture((masked_path(codes.vocabulary, S, kind, codes),))
    return Case(skewed(codes.vocabulary), "codes", mixture, steps, kernel)


def test_measured_bound_is_the_sum_of_its_curve() -> None:
    case = masked_case()
    found = measure(case, 4000, generator())
    assert found.holds and found.row()["ok"] and found.bound.claims_bound
    assert found.curve.shape == (8,)
    # The bound is known better than its curve, whose sum still varies with the tokens drawn.
    assert float(found.curve.sum()) == pytest.approx(found.bound.value, abs=4 * 0.3 / 4000**0.5)
    assert found.bound.value == pytest.approx(case.source.entropy, rel=5e-3)
    assert found.bound.stderr < 1e-3


def test_constant_mixture_averages_the_bounds_of_its_parts() -> None:
    source, weight = skewed(3), 0.25
    paths = {"masked": masked_path(3, S, "logarithm"), "uniform": uniform_path(3, S, "logarithm")}
    parts = {
        name: measure(Case(source, name, Mixture((path,)), 6, "drift"), 3000, generator()).bound
        for name, path in paths.items()
    }
    mixture = constant_mixture(3, S, weight, "logarithm")
    whole = measure(Case(source, "constant mixture", mixture, 6, "drift"), 3000, generator()).bound
    expected = parts["masked"] * weight + parts["uniform"] * (1 - weight)
    assert whole.value == pytest.approx(expected.value, abs=4 * (whole.stderr + expected.stderr))
    assert whole.stderr == pytest.approx(expected.stderr, rel=0.3)


def test_steps_are_those_of_the_token_schedule() -> None:
    case = Case(markov(), "masked", Mixture((masked_path(3, S),)), 16, window=TokenSchedule(0.5, "left_to_right"))
    found = measure(case, 100, generator())
    assert found.curve.shape == (16,) and found.remaining.shape == (9,)
    assert case.token_schedule == "left_to_right 0.5" and masked_case().token_schedule == "synchronous"


@pytest.mark.parametrize(("states", "steps", "kernel"), [(3, 250, "drift"), (27, 64, "mixture")])
def test_spliced_estimator_falls_below_the_entropy_and_claims_nothing(states: int, steps: int, kernel: Kernel) -> None:
    """At least 2% below, as the paper's switch time and its bridge have it."""
    source = uniform(states)
    path = switching_path(states, S, float(Geometric().remaining(certificate.PAPER_SWITCH)), "logarithm")
    case = Case(source, "spliced (paper)", Mixture((path,)), steps, kernel, spliced=True)
    found = measure(case, 3000, generator())
    assert not found.bound.claims_bound and not found.holds
    assert found.bound.value + 2 * found.bound.stderr < 0.98 * source.entropy
    assert found.row()["ok"]  # nothing was claimed


@pytest.mark.parametrize(
    ("value", "stderr", "holds"),
    [(1.1, 0.0, True), (1.0, 0.01, True), (1.0, 1e-4, False), (float("nan"), 0.1, False), (float("nan"), 0.0, False)],
)
def test_a_floor_is_refuted_only_beyond_chance_and_never_passed_by_a_failed_number(
    value: float, stderr: float, holds: bool
) -> None:
    """The entropy is 1.018: one certainty of four standard errors below it is still no refutation."""
    found = verdict(value, stderr)
    assert found.holds is holds and found.row()["ok"] is holds
    assert verdict(value, stderr, claims_bound=False).row()["ok"]


def test_row_adds_up() -> None:
    row = verdict(1.2, 0.01).row()
    entropy = skewed(3).entropy
    assert row["entropy"] == entropy and row["slack"] == pytest.approx(1.2 - entropy)
    assert row["slack_percent"] == pytest.approx(100 * (1.2 - entropy) / entropy)
    assert (row["low"], row["high"]) == pytest.approx((1.2 - 0.0196, 1.2 + 0.0196))
    assert (row["states"], row["steps"], row["kernel"], row["bridge"]) == (3, 8, "mixture", "brownian")


def test_picture_shows_both_sizes(tmp_path: Path) -> None:
    verdicts = [
        measure(Case(uniform(states), "masked", Mixture((masked_path(states, S),)), 6), 20, generator())
        for states in (3, 27)
    ]
    draw_information(verdicts, tmp_path / "deep" / "information.png")
    content = (tmp_path / "deep" / "information.png").read_bytes()
    assert content.startswith(b"\x89PNG") and len(content) > 10_000


# -- the inference layer ----------------------------------------------------------------------------


def belief_cases() -> list[Case]:
    return [case for case in cases(100) if case.belief is not None]


def test_the_certificate_has_every_kind_of_inference_layer() -> None:
    found = {(type(case.belief).__name__, case.kernel, case.token_schedule) for case in belief_cases()}
    for kind in ("Ngram", "HiddenMarkov"):
        wanted = {("mixture", "synchronous"), ("drift", "synchronous"), ("mixture", "strided 0.2")}
        assert {(kind, *one) for one in wanted} <= found


@pytest.mark.parametrize("case", belief_cases(), ids=lambda case: f"{case.label}-{case.kernel}")
def test_the_inference_layer_has_the_bound_of_the_exact_posterior(case: Case) -> None:
    """The same paths with the source's table as posterior have the same bound: the layer's inference is exact."""
    by_layer, by_table = (
        measure(one, 64, torch.Generator().manual_seed(0)).bound for one in (case, replace(case, belief=None))
    )
    assert by_layer.value == pytest.approx(by_table.value, abs=2e-5)


def test_a_layer_that_forgets_the_context_pays_for_it() -> None:
    case = next(case for case in belief_cases() if case.kernel == "mixture")

    class Forgetful(Ngram):
        def forward(self, evidence: Tensor) -> Tensor:
            return torch.zeros_like(evidence)

    forgetful = Forgetful(3, 2, 4)
    exact, worse = (
        measure(one, 400, torch.Generator().manual_seed(1)).bound for one in (case, replace(case, belief=forgetful))
    )
    assert worse.value - exact.value > 0.5


def test_a_layer_of_another_chain_pays_the_divergence() -> None:
    """One token per call, left to right: the excess is exactly the mean of log p - log q over the source."""
    case = next(case for case in belief_cases() if case.label == "n-gram layer, erasure")
    other = markov_ngram()
    other.weight[1:].copy_(torch.tensor([[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.5]]))
    divergence = 4 * (0.75 * math.log(0.75 / 0.5) + 0.25 * math.log(0.125 / 0.25))
    found = measure(replace(case, belief=other), 20000, torch.Generator().manual_seed(2)).bound
    assert found.value - case.source.entropy == pytest.approx(divergence, abs=5 * found.stderr)
