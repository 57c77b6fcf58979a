"""The certificate of any estimator: its verdicts, the laws beyond the floor, wrong answers, names, and the report."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rdlm
from rdlm.certify import Certificate, Estimator, floor, load_function
from rdlm.certify.checks import (
    LAWS,
    Plan,
    check_coverage,
    check_floor,
    check_normalisation,
    check_relabelling,
    check_sampler,
    check_steps,
    judge,
)
from rdlm.certify.gallery import autoregression, masked_continuous, masked_discrete, pseudo_likelihood
from rdlm.certify.oracle import LearnedOracle, Oracle, train_network
from rdlm.cli import main as cli
from rdlm.cli.certify import Law
from rdlm.data import sources
from rdlm.errors import InputError
from rdlm.likelihood.estimate import Estimate

SMALL = Plan(400)
MARKOV = sources.markov(3)


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "stderr", "outcome"),
    [
        (0.0, 0.0, "held"),
        (-0.5, 0.1, "violated"),
        (0.1, 0.02, "held"),
        (-0.03, 0.001, "violated"),  # small, and certain
        (-0.03, 0.02, "cannot tell"),
        (0.3, 0.2, "cannot tell"),
        (-5e-5, 1e-9, "held"),  # rounding
    ],
)
def test_verdicts(value: float, stderr: float, outcome: str) -> None:
    assert judge(Estimate(value, stderr), 1.0, SMALL)[0] == outcome


@pytest.mark.parametrize("value", [-0.03, 0.02, 0.3])
def test_the_number_of_samples_that_would_tell_would_tell(value: float) -> None:
    excess = Estimate(value, 0.2)
    outcome, needed = judge(excess, 1.0, SMALL)
    assert outcome == "cannot tell" and needed is not None
    better = Estimate(value, 0.2 * math.sqrt(SMALL.samples / needed))
    assert judge(better, 1.0, SMALL)[0] != "cannot tell"
    worse = Estimate(value, 0.2 * math.sqrt(SMALL.samples / (0.7 * needed)))
    assert judge(worse, 1.0, SMALL)[0] == "cannot tell"


def test_a_positive_skew_lengthens_the_interval_upwards() -> None:
    excess = Estimate(-0.5, 0.1)
    assert judge(excess, 1.0, SMALL, skew=0.1)[0] == "violated"
    assert judge(excess, 1.0, SMALL, skew=0.4)[0] != "violated"
    assert judge(excess, 1.0, SMALL, skew=-0.4)[0] == "violated"


def test_means_and_lists_and_arrays_have_the_verdict_of_tensors() -> None:
    found = [
        check_floor(kind, MARKOV, SMALL)
        for kind in (
            autoregression,
            lambda oracle: autoregression(oracle).tolist(),
            lambda oracle: autoregression(oracle).numpy().astype(np.float32),
            lambda oracle: float(autoregression(oracle).mean()),
            lambda oracle: (float(autoregression(oracle).mean()), 0.1),
        )
    ]
    assert {one.outcome for one in found} == {"held"}
    assert all(one.value == pytest.approx(MARKOV.entropy, abs=1e-5) for one in found)
    halved = check_floor(lambda oracle: float(autoregression(oracle).mean()) / 2, MARKOV, SMALL)
    assert halved.outcome == "violated" and halved.verdict == "below the entropy: not a bound"


def test_the_same_seed_gives_the_same_certificate() -> None:
    first, second, other = (check_floor(masked_continuous, MARKOV, Plan(400, seed)).value for seed in (1, 1, 2))
    assert first == second != other


# -- laws beyond the floor ---------------------------------------------------------------------------------------------


def test_probabilities_that_add_up_to_more_than_one_are_found() -> None:
    """Right on average over the source, and too small for its rare sequences."""

    def generous(oracle: Oracle) -> Tensor:
        return autoregression(oracle).clamp_max(2.0) + 0.3

    source = sources.skewed(3, 2)
    honest, found = (check_normalisation(one, source, SMALL) for one in (autoregression, generous))
    assert honest is not None and honest.outcome == "held" and honest.value == pytest.approx(1)
    assert found is not None and found.outcome == "violated" and found.value > 1
    assert check_floor(generous, source, SMALL).outcome == "held"
    assert check_normalisation(lambda oracle: 3.0, source, SMALL) is None


def test_noise_does_not_add_up_to_more_than_one() -> None:
    found = check_normalisation(masked_continuous, MARKOV, Plan(2000))
    assert found is not None and found.outcome != "violated"


def rarely(chance: float) -> Estimator:
    """Return the exact values over their chance where they are drawn, else 0: right on average, and heavy-tailed."""

    def estimator(oracle: Oracle) -> Tensor:
        return autoregression(oracle) * (oracle.uniform(len(oracle)) < chance) / chance

    return estimator


@pytest.mark.parametrize("chance", [0.01, 0.005])
def test_rare_large_values_are_not_refuted(chance: float) -> None:
    """Means of few values miss the rare ones; exponentials of such means added up to more than 1 (43 of 120)."""
    for seed in range(20):
        plan = Plan(4000, seed, sampler=lambda oracle, count: MARKOV.draw(count, oracle.generator))
        found = [check(rarely(chance), MARKOV, plan) for check in (check_floor, check_normalisation, check_sampler)]
        assert all(one is not None and one.outcome != "violated" for one in found), (seed, found)


def test_very_skewed_values_are_not_refuted() -> None:
    """Factors with mean 1 and a standard deviation of 90: 23 of 480 floors were refuted."""

    def estimator(oracle: Oracle) -> Tensor:
        return autoregression(oracle) * (3 * oracle.normal(len(oracle)) - 4.5).exp()

    for seed in range(100):
        assert check_floor(estimator, sources.uniform(4, 2), Plan(4000, seed)).outcome != "violated"


def test_a_skewed_violation_is_found_with_the_samples_that_were_named() -> None:
    excess, skew = Estimate(-1.0, 0.05), 0.3
    outcome, needed = judge(excess, 1.0, SMALL, skew)
    assert outcome == "cannot tell" and needed == 900
    share = math.sqrt(SMALL.samples / needed)
    assert judge(Estimate(-1.0, 0.05 * share), 1.0, Plan(needed), skew * share)[0] == "violated"


def test_a_dependence_on_the_numbering_is_found() -> None:
    def numbered(oracle: Oracle) -> Tensor:
        return autoregression(oracle) + 0.5 * (oracle.tokens[:, 0] == 0)

    assert check_relabelling(autoregression, MARKOV, SMALL).outcome == "held"
    for constant in (lambda oracle: 5.0, lambda oracle: [5.0] * len(oracle)):
        found = check_relabelling(constant, MARKOV, SMALL)
        assert (found.outcome, found.stderr) == ("held", 0), "the error of the difference has none of the source's"
    assert check_relabelling(numbered, sources.skewed(3, 2), Plan(2000)).outcome == "violated"


def test_a_limit_that_rises_with_its_steps_is_found() -> None:
    def rising(oracle: Oracle, steps: int = 4) -> Tensor:
        return autoregression(oracle) * (1 + 0.02 * steps)

    source = sources.copies(3, 2)
    found = check_steps(rising, source, SMALL)
    assert found is not None and found.outcome == "violated"
    falling = check_steps(masked_discrete, source, Plan(2000))
    assert falling is not None and falling.outcome != "violated"
    assert check_steps(autoregression, source, SMALL) is None


def independent_sampler(oracle: Oracle, count: int) -> Tensor:
    """Draw every position from its marginal: masked diffusion in a single step."""
    probability = oracle.erased(torch.ones(1, oracle.length), torch.zeros(1, oracle.length))[0].exp()
    return torch.stack([torch.multinomial(row, count, True, generator=oracle.generator) for row in probability], -1)


def test_a_claim_above_the_samplers_frequencies_is_found() -> None:
    """The exact likelihood of the source is no bound for a sampler that draws its tokens independently."""
    plan = Plan(2000, sampler=independent_sampler)
    found = check_sampler(autoregression, MARKOV, plan)
    assert found is not None and found.outcome == "violated" and "claimed for the sequence" in found.verdict
    one_step = check_sampler(partial(masked_discrete, steps=1), MARKOV, plan)
    assert one_step is not None and one_step.outcome != "violated"
    with pytest.raises(InputError, match=r"sampler returned shape \[3\]"):
        check_sampler(autoregression, MARKOV, Plan(400, sampler=lambda oracle, count: torch.zeros(3)))


@pytest.mark.parametrize(("factor", "verdict"), [(1.0, "agree"), (3.0, "too wide"), (1 / 3, "too narrow")])
def test_standard_errors_are_found_too_wide_and_too_narrow(factor: float, verdict: str) -> None:
    def estimator(oracle: Oracle) -> tuple[float, float]:
        value = autoregression(oracle)
        return float(value.mean()), factor * float(value.std()) / math.sqrt(len(oracle))

    found = check_coverage(estimator, MARKOV, SMALL)
    assert found is not None and verdict in found.verdict
    assert (found.outcome == "held") == (factor == 1)
    assert check_coverage(autoregression, MARKOV, SMALL) is None


# -- wrong answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda oracle: 1 / 0, "failed on the source markov-3, 3 positions: ZeroDivisionError: division by zero"),
        (lambda oracle: torch.full((len(oracle),), math.nan), "20 of 20 values that are NaN"),
        (lambda oracle: [math.inf] * len(oracle), "20 of 20 values that are infinite"),
        (lambda oracle: torch.zeros(len(oracle), 3), r"returned shape \[20, 3\] for 20 sequences"),
        (lambda oracle: torch.zeros(7), r"returned shape \[7\] for 20 sequences"),
        (lambda oracle: "2.5 nats", "returned str, which holds no numbers"),
        (lambda oracle: "2.5", "returned str, which holds no numbers"),
        (lambda oracle: ["2.5"] * len(oracle), "returned list, which holds no numbers"),
        (lambda oracle: torch.ones(len(oracle)) * 1j, "returned .*, which holds no numbers"),
        (lambda oracle: None, "the estimator returned nothing: return nats per sequence"),
        (lambda oracle: (2.0, -1.0), "at least 0"),
        (lambda oracle: oracle.posterior(torch.zeros(2, 2)), r"evidence is \[..., 3, 3\]"),
        (lambda oracle: oracle.posterior(torch.full((3, 3), math.nan)), "NaN entries"),
    ],
)
def test_wrong_answers_are_named(answer, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_floor(answer, MARKOV, SMALL)


def test_impossible_states_are_named() -> None:
    with pytest.raises(InputError, match="no sequence of the source is possible"):
        check_floor(lambda oracle: oracle.erased([[False, False]], [[0, 1]]), sources.copies(2, 2), SMALL)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give an estimator"),
        ({"estimator": autoregression, "samples": 3}, "at least 400 samples"),
        ({"estimator": autoregression, "samples": 400.5}, "samples must be an integer, got 400.5"),
        ({"estimator": autoregression, "resolution": 2.0}, "between 0 and 1"),
        ({"estimator": autoregression, "laws": ["flor"]}, "unknown check"),
    ],
)
def test_wrong_settings_are_named(options, message: str) -> None:
    with pytest.raises(InputError, match=message):
        rdlm.certify(**options)


# -- the public interface ----------------------------------------------------------------------------------------------


def test_the_module_is_the_function_and_a_test_needs_one_line() -> None:
    listed = [MARKOV, sources.copies(3, 2)]
    found = rdlm.certify(autoregression, sources=listed, samples=400)
    assert (found.verdict, found.outcome) == ("bound held", "held")
    assert {one.check for one in found.findings} == {"floor", "normalisation", "relabelling"}
    floor(autoregression, *listed, samples=400)
    with pytest.raises(
        AssertionError, match=r"pseudo_likelihood on copies-3x2: below the entropy: not a bound \(0.0000"
    ):
        floor(pseudo_likelihood, *listed[1:], samples=400)
    with pytest.raises(AssertionError, match="cannot tell: about"):
        floor(masked_continuous, MARKOV, samples=400)


def test_the_report_is_one_page_with_every_finding() -> None:
    found = rdlm.certify(pseudo_likelihood, sources=[MARKOV, sources.copies(3, 2)], samples=400)
    page = found.html()
    assert found.verdict == "not a bound" and page.startswith("<!doctype html>") and page.count("<svg") == 1
    assert all(one.source in page for one in found.findings) and "<script" not in page and "http" not in page
    row = json.loads(json.dumps(found.row()))
    assert row["verdict"] == "not a bound" and len(row["findings"]) == len(found.findings)
    assert {"check", "source", "limit", "value", "stderr", "low", "high", "verdict"} <= row["findings"][0].keys()
    assert str(found).endswith("pseudo_likelihood: not a bound")


def test_a_violated_law_beyond_the_floor_has_its_own_verdict() -> None:
    found = check_relabelling(lambda oracle: autoregression(oracle) + (oracle.tokens[:, 0] == 0), MARKOV, Plan(2000))
    certificate = Certificate("x", (check_floor(autoregression, MARKOV, SMALL), found), 400, 0, 0.05)
    assert certificate.verdict == "no value below the entropy, but violated: relabelling"


BROKEN = """
import os, time
from neighbour import LENGTH

def good(oracle):
    assert LENGTH == 3
    return oracle.surprise(oracle.left_to_right()).sum(-1)

def forever(oracle):
    while True:
        time.sleep(0.01)

def dies(oracle):
    os._exit(7)

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "estimators_of_a_user.py").write_text(BROKEN)
    (tmp_path / "neighbour.py").write_text("LENGTH = 3\n")
    (tmp_path / "broken_import.py").write_text("import a_module_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_functions_are_found_by_module_and_by_file(folder: Path) -> None:
    for name in ("estimators_of_a_user:good", f"{folder}/estimators_of_a_user.py:good"):
        assert check_floor(load_function(name), MARKOV, SMALL).outcome == "held"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("good", "module:function"),
        ("no_such_module:good", "there is no module 'no_such_module'"),
        ("no_such_file.py:good", "there is no file no_such_file.py"),
        ("estimators_of_a_user:god", "did you mean 'good'"),
        ("estimators_of_a_user:number", "is int, not a function"),
        ("broken_import.py:x", "importing broken_import.py failed: ModuleNotFoundError"),
    ],
)
def test_wrong_names_are_explained(folder: Path, name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_function(name)


def test_a_users_module_is_certified_by_the_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = cli.main(
        ["certify", "--estimator", "estimators_of_a_user:good", "--samples", "400", "--out", "out", "--json"]
    )
    answer = json.loads(capsys.readouterr().out)
    assert code == 0 and answer["verdict"] == "bound held" and len(answer["findings"]) == 12
    assert sorted(path.name for path in Path("out").iterdir()) == ["certify.json", "report.html"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("forever", "stopped on the source uniform-4x2: one check took longer than 2 seconds"), ("dies", "exit code 7")],
)
def test_an_estimator_that_never_ends_is_stopped(folder: Path, capsys, name: str, message: str) -> None:
    command = ["certify", "--estimator", f"estimators_of_a_user:{name}", "--samples", "400", "--seconds", "2"]
    assert cli.main(command) == 2
    assert message in capsys.readouterr().err


def test_a_script_without_a_guard_is_told_so(folder: Path) -> None:
    """The new process imports the script, which starts another one, and so on; Python ends it."""
    script = folder / "script.py"
    script.write_text("import rdlm\nrdlm.certify('estimators_of_a_user:good', samples=400)\n", "utf-8")
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert 'before it started; a script that calls rdlm.certify needs `if __name__ == "__main__":`' in found.stderr


def test_laws_are_selected(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "certify",
        "--estimator",
        "estimators_of_a_user:good",
        "--samples",
        "400",
        "--json",
        "--laws",
        "normalisation",
    ]
    cli.main(command)
    assert set(get_args(Law)) == LAWS.keys()
    checks = {finding["check"] for finding in json.loads(capsys.readouterr().out)["findings"]}
    assert checks == {"floor", "normalisation"}


def test_contradicting_flags_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certify", "--gallery", "--slack"]) == 2
    assert cli.main(["certify", "--sampler", "a:b"]) == 2
    assert "give one of" in capsys.readouterr().err


# -- a learned posterior -----------------------------------------------------------------------------------------------


class Small(nn.Module):
    """A network on all positions at once."""

    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.shape = (length, vocabulary)
        self.embedding = nn.Embedding(vocabulary + 1, 8)
        self.layers = nn.Sequential(nn.Linear(8 * length, 64), nn.ReLU(), nn.Linear(64, length * vocabulary))

    def forward(self, ids: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        assert not bool(ids[mask].any()), "an erased token is visible"
        return self.layers(self.embedding(torch.where(mask, self.shape[1], ids)).flatten(1)).view(-1, *self.shape)


def test_a_trained_network_comes_near_the_entropy_and_not_below() -> None:
    found = rdlm.certify(model=Small, sources=[MARKOV], samples=1000, train_steps=250, laws=[])
    assert found.findings[0].outcome == "held" and found.findings[0].slack < 0.1
    below = rdlm.certify(pseudo_likelihood, model=Small, sources=[MARKOV], samples=1000, train_steps=250, laws=[])
    assert below.verdict == "not a bound"


def test_networks_that_do_not_fit_are_named() -> None:
    class Wrong(Small):
        def forward(self, ids: Tensor, mask: Tensor, t: Tensor) -> Tensor:
            return super().forward(ids, mask, t).transpose(1, 2)[:, :2]

    with pytest.raises(InputError, match=r"returns logits \[n, length, vocabulary\]"):
        rdlm.certify(model=Wrong, sources=[sources.markov(4)], samples=400, train_steps=1)
    with pytest.raises(InputError, match="returns a torch module"):
        rdlm.certify(model=lambda vocabulary, length: 3, samples=400)
    with pytest.raises(InputError, match="no parameters"):
        train_network(nn.Module(), MARKOV, 1)
    generator = torch.Generator().manual_seed(0)
    oracle = LearnedOracle(Small(3, 3), MARKOV, MARKOV.draw(4, generator), generator)
    with pytest.raises(InputError, match=r"use oracle\.erased"):
        oracle.corrupted(oracle.tokens, 0.5)


# -- exact posteriors --------------------------------------------------------------------------------------------------


def by_hand(source: sources.Source, likelihood) -> Tensor:
    """Return the posterior of one set of states by a loop over all sequences; `likelihood(i, token)`."""
    found = torch.zeros(source.length, source.states, dtype=torch.float64)
    for sequence in source.support.tolist():
        weight = float(source.log_prob(torch.tensor(sequence)).exp())
        for i, token in enumerate(sequence):
            weight *= likelihood(i, token)
        for i, token in enumerate(sequence):
            found[i, token] += weight
    return found / found.sum(-1, keepdim=True)


def test_posteriors_are_bayes_rule() -> None:
    source, generator = MARKOV, torch.Generator().manual_seed(1)
    oracle = Oracle(source, source.draw(1, generator), generator)
    ids, x = oracle.tokens[0].tolist(), torch.randn(3, 3, generator=generator, dtype=torch.float64)

    def gauss(i: int, k: int) -> float:
        return math.exp(-float((x[i] - 0.7 * torch.eye(3)[k]).square().sum()) / (2 * 0.5**2))

    point = torch.softmax(x, -1)
    code = oracle.digit_table()
    hidden = torch.tensor([[[True, False], [False, False], [True, True]]])
    cases = [
        (oracle.erased([[True, False, True]]), lambda i, k: i != 1 or k == ids[1]),
        (oracle.corrupted(oracle.tokens, 0.4), lambda i, k: 0.2 + 0.4 * (k == ids[i])),
        (oracle.gaussian(x[None], 0.7, 0.5), gauss),
        (oracle.dirichlet(point[None], 3.0), lambda i, k: float(point[i, k]) ** 2),
        (
            oracle.digits(hidden),
            lambda i, k: all(hidden[0, i, j] or code[k, j] == code[ids[i], j] for j in range(2)),
        ),
    ]
    for found, likelihood in cases:
        assert torch.allclose(found[0].exp(), by_hand(source, likelihood))
    chain = oracle.left_to_right()
    assert float(oracle.surprise(chain).sum()) == pytest.approx(-float(source.log_prob(oracle.tokens)))
    assert set(LAWS) == {"normalisation", "relabelling", "steps", "sampler", "coverage"}


def test_relabelled_sources_have_the_same_entropy() -> None:
    source = sources.skewed(4, 2)
    other = source.relabelled(torch.tensor([2, 0, 3, 1]))
    assert other.entropy == pytest.approx(source.entropy)
    assert other.log_joint[2, 0] == source.log_joint[0, 1]


def test_a_certificate_that_cannot_tell_names_the_samples_that_would() -> None:
    unsure = rdlm.certify(masked_continuous, sources=[MARKOV], samples=400, resolution=0.001, laws=[])
    needed = max(finding.needed or 0 for finding in unsure.findings)
    assert unsure.outcome == "cannot tell" and needed > 400
    assert str(unsure).endswith(f"cannot tell; repeat with {needed:,} samples")
