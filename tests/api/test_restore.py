"""Restoration against enumeration: a source of known law, whose posterior the inference layer gives exactly."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

import rdlm
from rdlm.api.decoding import WHOLE_CALLS, certain, overlapping_windows, posterior_of
from rdlm.api.language_model import LanguageModel
from rdlm.api.reading_likelihood import (
    LEAST_ERROR,
    SPREAD,
    ErrorRate,
    estimate_error,
    free_energy,
    observation_bound,
    pseudo_log_likelihood,
)
from rdlm.api.restore import read_text_through, restore, restore_image, restore_reads
from rdlm.config import DataConfig, DenoiserConfig, ProcessConfig, RunConfig, TransformerConfig
from rdlm.data import channels
from rdlm.data import evidence as readings
from rdlm.data.tokenizer import Characters, Levels
from rdlm.errors import InputError
from rdlm.methods.rdlm import Rdlm
from rdlm.model.belief import BeliefNetwork, Ngram
from rdlm.process.order import TokenSchedule

ALPHABET, LENGTH = "abcde", 6
SIZE = len(ALPHABET)
PLAIN = TransformerConfig(width=8, layers=1, heads=2)


def chain_law() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    first = torch.rand(SIZE, generator=generator, dtype=torch.float64) + 0.1
    move = torch.rand(SIZE, SIZE, generator=generator, dtype=torch.float64).pow(3) + 0.02
    return first / first.sum(), move / move.sum(1, keepdim=True)


def markov_model(length: int = LENGTH, alphabet: str = ALPHABET, **changes: object) -> LanguageModel:
    """A model whose network adds nothing to the chain of the source: its posterior is exact."""
    config = RunConfig(
        data=DataConfig(length=length),
        model=TransformerConfig(width=8, layers=1, heads=2, belief="ngram", order=2, states=SIZE + 1),
        process=ProcessConfig(levels=32, pairs=256),
    )
    config = replace(config, **changes)  # type: ignore[arg-type]
    method = Rdlm(config, SIZE)
    if isinstance(method.network, BeliefNetwork):
        assert isinstance(method.network.belief, Ngram)
        first, move = chain_law()
        method.network.belief.weight.copy_(torch.cat([first[None], move]))
    method.network.eval()
    about = {"kind": "text", "length": length, "classes": [], "image": None, "signal": False, "protocol": "markov"}
    return LanguageModel("markov", method, Characters(alphabet), config, about, None)


def log_joint(length: int = LENGTH) -> Tensor:
    first, move = chain_law()
    joint = first.log()
    for _ in range(length - 1):
        joint = joint[..., None] + move.log()
    return joint


def log_posterior(evidence: Tensor) -> Tensor:
    """log p(sequence, reading) of every sequence, [V, ..., V]."""
    joint = log_joint(len(evidence))
    for axis, row in enumerate(evidence.double()):
        joint = joint + row.view([SIZE if one == axis else 1 for one in range(len(evidence))])
    return joint


def some_evidence(seed: int = 0, strength: float = 1.5, length: int = LENGTH) -> Tensor:
    return strength * torch.randn(length, SIZE, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("strength", [0.0, 0.5, 2.0, 8.0])
def test_marginals_are_those_of_enumeration(strength: float) -> None:
    evidence = some_evidence(1, strength)
    found = restore(markov_model(), evidence).posterior
    joint = log_posterior(evidence)
    joint = (joint - joint.logsumexp(list(range(LENGTH)))).exp()
    for position in range(LENGTH):
        expected = joint.sum([axis for axis in range(LENGTH) if axis != position])
        assert torch.allclose(found[position].double(), expected, atol=1e-5)


@pytest.mark.parametrize("order", ["synchronous", "random", "left-to-right"])
def test_joint_samples_pass_chi_square(order: str) -> None:
    length, count = 3, 4000
    evidence = some_evidence(2, 1.0, length)
    drawn = restore(markov_model(length), evidence, samples=count, steps=200, order=order).samples  # type: ignore[arg-type]
    joint = log_posterior(evidence)
    law = (joint - joint.logsumexp(list(range(length)))).exp().flatten()
    code = {"".join(text): index for index, text in enumerate(itertools.product(ALPHABET, repeat=length))}
    seen = torch.bincount(torch.tensor([code[text] for text in drawn]), minlength=len(law)).double()
    often = law * count >= 5
    observed = torch.cat([seen[often], seen[~often].sum()[None]])
    expected = torch.cat([law[often], law[~often].sum()[None]]) * count
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > 1e-3


def test_independent_samples_would_fail_the_chi_square() -> None:
    """The test has power: drawing every position from its marginal is not the joint posterior."""
    length, count = 3, 4000
    evidence = some_evidence(2, 1.0, length)
    model = markov_model(length)
    marginals = restore(model, evidence).posterior
    drawn = torch.multinomial(marginals, count, replacement=True, generator=torch.Generator().manual_seed(0))
    joint = log_posterior(evidence)
    law = (joint - joint.logsumexp(list(range(length)))).exp().flatten()
    seen = torch.bincount((drawn[0] * SIZE + drawn[1]) * SIZE + drawn[2], minlength=len(law)).double()
    often = law * count >= 5
    observed = torch.cat([seen[often], seen[~often].sum()[None]])
    expected = torch.cat([law[often], law[~often].sum()[None]]) * count
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue < 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_the_bound_on_the_reading_is_exact_with_the_exact_posterior(seed: int) -> None:
    evidence = some_evidence(seed, 2.0)
    exact = -float(log_posterior(evidence).logsumexp(list(range(LENGTH))))
    found = observation_bound(markov_model(), evidence, draws=64, seed=seed)
    assert found.value == pytest.approx(exact, abs=1e-3)
    assert found.stderr < 1e-3


def test_the_bound_on_the_reading_holds_with_few_steps_and_with_a_wrong_posterior() -> None:
    evidence, model = some_evidence(4, 2.0), markov_model()
    exact = -float(log_posterior(evidence).logsumexp(list(range(LENGTH))))
    few = observation_bound(model, evidence, draws=512, steps=2)
    assert few.value + 4 * few.stderr > exact and few.value > exact + 0.01

    def flat(given: Tensor) -> Tensor:  # draws ignore half of the evidence; the model's probabilities are exact
        return posterior_of(model.rdlm, given if bool((given == 0).all(-1).any()) else given / 2)

    steps = TokenSchedule(1e-6, "strided").discretize(LENGTH, LENGTH)
    worse = free_energy(flat, evidence, 512, steps, torch.Generator().manual_seed(0))
    assert float(worse.mean()) > exact


def test_without_evidence_the_bound_is_zero_for_every_draw() -> None:
    evidence, model = torch.zeros(LENGTH, SIZE), markov_model()
    steps = TokenSchedule(1e-6, "strided").discretize(LENGTH, LENGTH)
    posterior = partial(posterior_of, model.rdlm)
    value = free_energy(posterior, evidence, 256, steps, torch.Generator().manual_seed(0))
    assert torch.allclose(value, torch.zeros(256).double(), atol=1e-5)  # log r = log p


def test_refined_marginals_have_the_same_mean_with_an_exact_posterior() -> None:
    evidence, model = some_evidence(5, 1.0), markov_model()
    once, refined = (restore(model, evidence, passes=passes, steps=4).posterior for passes in (0, 800))
    assert (once - refined).abs().max() < 0.05


def test_long_sequences_are_windows_whose_middles_are_joined() -> None:
    model, evidence = markov_model(8), some_evidence(6, 1.0, 50)
    found = restore(model, evidence, samples=2, steps=8)
    assert len(found.text) == 50 and all(len(sample) == 50 for sample in found.samples)
    whole = restore(markov_model(64), evidence)
    assert (found.posterior - whole.posterior).abs().mean() < 0.01
    assert torch.allclose(found.posterior[:4], restore(model, evidence[:8]).posterior[:4], atol=1e-6)
    for length in (1, 7, 8, 9, 15, 16, 17, 50):
        spans = overlapping_windows(length, 8)
        assert spans[0][0] == 0 and spans[-1][1] == length
        assert all(later[0] <= earlier[1] - 4 for earlier, later in itertools.pairwise(spans))
    assert overlapping_windows(300, 128) == [(0, 128), (96, 224), (172, 300)]  # 32 shared, and more at the end
    assert overlapping_windows(3, 1) == [(0, 1), (1, 2), (2, 3)]


def test_known_symbols_stay() -> None:
    evidence = certain(torch.tensor([[0, 1, 2, 3, 4, 0]]), SIZE)[0]
    found = restore(markov_model(), evidence, samples=3, steps=4)
    assert found.text == "abcdea" and set(found.samples) == {"abcdea"}


def read_with_errors(length: int, rate: float) -> tuple[Tensor, float]:
    """Return what is read of a text of the source with errors, and their share."""
    first, move = chain_law()
    generator = torch.Generator().manual_seed(7)
    truth = [int(torch.multinomial(first, 1, generator=generator))]
    for _ in range(length - 1):
        truth.append(int(torch.multinomial(move[truth[-1]], 1, generator=generator)))
    channel = channels.symmetric(ALPHABET, rate)
    read = torch.multinomial(channel[torch.tensor(truth)], 1, generator=generator)[:, 0]
    return read, float((read != torch.tensor(truth)).float().mean())


def through_channel(read: Tensor) -> Callable[[float], Tensor]:
    return lambda error: channels.symmetric(ALPHABET, error).log()[:, read].T


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_the_error_rate_is_found_from_the_text(rate: float) -> None:
    read, share = read_with_errors(6000, rate)
    assert estimate_error(markov_model(256), through_channel(read), read).value == pytest.approx(share, rel=0.15)


def test_the_estimate_is_the_error_rate_that_its_posterior_expects() -> None:
    read, _ = read_with_errors(600, 0.3)  # hardly known from so short a text: EM alone would take many steps
    model, reading = markov_model(600), through_channel(read)
    found = estimate_error(model, reading, read, tolerance=1e-3).value
    right = restore(model, reading(found)).posterior.gather(-1, read[:, None])
    assert 1 - float(right.mean()) == pytest.approx(found, rel=1e-3)


@pytest.mark.parametrize("rate", [0.1, 0.3])
def test_the_likelihood_falls_by_the_same_at_both_ends_of_the_interval(rate: float) -> None:
    read, _ = read_with_errors(600, rate)
    found = estimate_error(markov_model(600), through_channel(read), read, tolerance=1e-3)
    first, move = chain_law()

    def log_likelihood(rate: float) -> float:
        channel = channels.symmetric(ALPHABET, rate)[:, read].T
        total, message = 0.0, first * channel[0]
        for likelihood in channel[1:]:
            total += math.log(float(message.sum()))
            message = (message / message.sum()) @ move * likelihood
        return total + math.log(float(message.sum()))

    assert found.interval is not None
    falls = [log_likelihood(found.value) - log_likelihood(max(end, 1e-9)) for end in found.interval]
    assert falls == pytest.approx([1.96**2 / 2] * 2, rel=0.25)


def test_the_interval_of_a_text_without_errors_begins_at_zero() -> None:
    """It was [1e-151, 1] for one symbol, and [2e-10, 0.98] for a clean page."""
    for count, most in ((1, 0.99), (257, 0.02)):
        found = ErrorRate.of(LEAST_ERROR, 0.2, count)
        assert found.interval is not None and found.interval[0] == 0 and LEAST_ERROR < found.interval[1] < most
    assert str(ErrorRate.of(LEAST_ERROR, 0.0, 10_000)) == "0.0001 [0, 0.00044]"


def test_the_error_rate_of_a_long_text_takes_a_few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    read, share = read_with_errors(20_000, 0.2)
    read[:5000] = -1  # unreadable
    model, shapes = markov_model(64), []
    own = posterior_of

    def counted(method: Rdlm, given: Tensor) -> Tensor:
        shapes.append(len(given))
        return own(method, given)

    def reading(error: float) -> Tensor:
        return torch.where((read < 0)[:, None], 0.0, through_channel(read.clamp_min(0))(error))

    monkeypatch.setattr("rdlm.api.decoding.posterior_of", counted)
    assert estimate_error(model, reading, read).value == pytest.approx(share, rel=0.3)
    assert max(shapes) <= SPREAD < 20_000 / 64 and sum(shapes) < 10 * SPREAD


def test_report_of_a_restoration() -> None:
    reading = readings.from_text("ab?c[de]a", ALPHABET, channels.symmetric(ALPHABET, 0.1))
    found = restore(markov_model(), reading.evidence, reading.symbols)
    row = found.to_json()
    assert row["read"] == "ab?c?a" and len(row["positions"]) == 6
    assert row["expected_errors"] == pytest.approx(float((1 - found.certainty).sum()))
    assert set(found.alternatives(4)) <= {"d", "e"}
    assert all(place["probability"] >= max(place["alternatives"].values(), default=0) for place in row["positions"])
    assert math.isclose(sum(found.posterior[2].tolist()), 1, abs_tol=1e-5)


def test_a_text_is_read_through_a_channel() -> None:
    model = markov_model()
    reading = readings.from_text("ab?c[de]a", ALPHABET, channels.keyboard(ALPHABET, 0.2))
    by_hand = restore(model, reading.evidence, reading.symbols)
    matrix = channels.keyboard(ALPHABET, 0.2)
    table = {true: dict(zip(ALPHABET, row, strict=True)) for true, row in zip(ALPHABET, matrix.tolist(), strict=True)}
    for channel, error in (("keyboard", 0.2), (matrix, None), (matrix.numpy(), None), (table, None)):
        found = model.restore("ab?c[de]a", channel, error)
        assert found.text == by_hand.text and torch.equal(found.posterior, by_hand.posterior)
    assert model.restore("abc").text == "abc"
    with pytest.raises(InputError, match="keyboard"):
        model.restore("abc", "keybord")
    spaced = markov_model(alphabet="abcd ")
    assert spaced.restore("ab?", literal=True).text == "ab?" != spaced.restore("ab?").text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": 0.2}, "an error rate needs a channel that has one: symmetric or keyboard"),
        ({"channel": "symmetric", "error": "0.1"}, "an error rate must lie between 0 and 1, got '0.1'"),
        ({"channel": torch.eye(3)}, r"matrix \[true, read\] of 5 x 5 probabilities, got \[3, 3\]"),
        ({"channel": 2 * torch.eye(5)}, "its entries must lie between 0 and 1"),
        ({"channel": 0.5 * torch.eye(5)}, "the row of 'a' sums to 0.5, not to 1"),
        ({"channel": [1, 2]}, r"got \[2\] of torch.int64"),
        ({"channel": {"a": {0: 1.0}}}, "a symbol is a character, got 0"),
        ({"samples": 1.5}, "samples must be an integer, got 1.5"),
        ({"samples": "1"}, "samples must be an integer, got '1'"),
        ({"samples": 1, "order": "backwards"}, "unknown order 'backwards'"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        markov_model().restore("abc", **arguments)


def test_options_of_a_text_are_not_ignored_for_evidence() -> None:
    with pytest.raises(InputError, match="are for a text"):
        markov_model().restore(torch.zeros(3, 5), "symmetric")
    with pytest.raises(InputError, match=r"real numbers, got \[3, 5\] of torch.complex64"):
        markov_model().restore(torch.zeros(3, 5, dtype=torch.complex64))


def test_ordinary_text_is_restored_around_what_the_alphabet_lacks() -> None:
    model = markov_model(alphabet="abcd ")
    found = model.restore("Ab, ?C. 5", "symmetric", 0.01, samples=2, steps=4)
    plain = model.restore("ab ?c ", "symmetric", 0.01)
    assert found.read == "Ab, ?C. 5" and torch.equal(found.posterior, plain.posterior)
    assert found.rows == (0, 1, None, 2, 3, 4, None, 5, None)
    assert [found.text[at] for at in (2, 6, 8)] == [",", ".", "5"] and found.text[0] == "A"
    assert found.certainty[[2, 6, 8]].tolist() == [1, 1, 1] and found.alternatives(2) == {}
    assert torch.allclose(found.certainty[[0, 1, 3, 4, 5, 7]], plain.certainty)
    assert all(len(text) == len(found.read) and text[2] == "," for text in found.samples)
    places = found.to_json()["positions"]
    assert (places[0]["char"], places[0]["symbol"], places[2]["symbol"]) == ("A", "a", None)


def test_the_error_rate_is_not_estimated_from_characters_that_are_kept() -> None:
    model = markov_model(16, alphabet="abcd ")
    _, plain = read_text_through(model, "abbacabdca dabcad", "symmetric", "auto")
    _, marked = read_text_through(model, "(abbacabdca dabcad)", "symmetric", "auto")
    assert plain == marked and plain is not None and 0 < plain.value < 1


def test_evidence_is_given_as_tensor_array_or_probabilities() -> None:
    model = markov_model()
    laws = [{"a": 0.5, "b": 0.5}, {"c": 0.7, "rest": 0.3}, *[{letter: 1.0} for letter in "dead"]]
    found = model.restore(laws)
    given = readings.from_laws(laws, ALPHABET).evidence
    for same in (given, given.numpy()):
        assert torch.equal(model.restore(same).posterior, found.posterior)
    assert found.text[2:] == "dead" and found.read[1:] == "cdead"
    for wrong in (["one", "two"], [], 3, [{"a": 1.0}, "b"]):
        with pytest.raises(InputError, match=r"restore takes a text.*one by one"):
            model.restore(wrong)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="position 1: the probabilities sum to"):
        model.restore([{"a": 1.0}, {"a": 0.9}])


def test_the_door_of_the_package() -> None:
    found = rdlm.restore(markov_model(), "ab?c", channel="symmetric", error=0.2)
    assert torch.equal(found.posterior, markov_model().restore("ab?c", "symmetric", 0.2).posterior)
    assert "restore" in dir(rdlm)


def test_progress_counts_windows() -> None:
    counted: list[int] = []
    restore(markov_model(8), some_evidence(6, 1.0, 50), samples=1, steps=2, progress=counted.append)
    assert sum(counted) == 2 * len(overlapping_windows(50, 8))


def test_readings_of_equal_length_share_network_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every reading is restored as it is alone, in its own place, whether short, of the model's length, or longer."""
    model = markov_model()
    given = [some_evidence(seed, length=length) for seed, length in enumerate((4, 6, 4, 15, 4, 6))]
    reads = [readings.Reading(one, "?" * len(one), f"r{number}") for number, one in enumerate(given)]
    alone = [restore(model, read) for read in reads]
    calls: list[tuple[int, ...]] = []
    own = model.rdlm.posterior
    monkeypatch.setattr(model.rdlm, "posterior", lambda **of: calls.append(of["given"].shape[:2]) or own(**of))
    counted: list[int] = []
    found = restore_reads(model, reads, counted.append)
    assert sorted(calls) == [(2, 6), (3, 4), (len(overlapping_windows(15, LENGTH)), LENGTH)]
    assert sum(counted) == sum(len(overlapping_windows(len(one), LENGTH)) for one in given)
    for one, other in zip(found, alone, strict=True):
        torch.testing.assert_close(one.posterior, other.posterior)
        assert (one.text, one.read, one.calls, one.samples) == (other.text, other.read, other.calls, ())


def test_an_image_is_restored_from_its_levels() -> None:
    about = {"image": [2, 3, 1], "kind": "image"}
    model = replace(markov_model(), tokenizer=Levels(SIZE), about={**markov_model().about, **about})
    levels = torch.tensor([0.1, 0.5, 0.9, 0.2, 0.0, 1.0]).double()
    found = restore_image(model, levels.view(2, 3, 1), 0.2, samples=2, steps=4)
    evidence = readings.from_levels(levels * 4, SIZE, 0.8)
    assert torch.equal(found.posterior.view(6, SIZE), restore(markov_model(), evidence).posterior)
    expected = (found.posterior * torch.arange(SIZE) / 4).sum(-1)
    assert torch.allclose(found.mean, expected) and found.samples.shape == (2, 2, 3, 1)
    assert found.to_json()["levels"] == found.levels.tolist()
    with pytest.raises(InputError, match="3 x 2 pixels; this one has 2 x 3"):
        restore_image(model, levels.view(3, 2, 1), 0.2)
    with pytest.raises(InputError, match="not of images"):
        restore_image(markov_model(), levels.view(2, 3, 1), 0.2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"denoiser": DenoiserConfig(time=True)}, "without a time input"),
        (
            {"denoiser": DenoiserConfig(features="tokens"), "model": TransformerConfig(width=8, layers=1, heads=2)},
            "evidence",
        ),
        ({"process": ProcessConfig(base=3), "model": TransformerConfig(width=8, layers=1, heads=2)}, "one sphere"),
    ],
)
def test_models_that_take_no_evidence_say_so(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        restore(markov_model(**changes), some_evidence())


@pytest.mark.parametrize(
    ("evidence", "message"),
    [
        (torch.zeros(6, 4), "shape"),
        (torch.zeros(0, SIZE), "shape"),
        (torch.full((6, SIZE), -math.inf), "at least one symbol"),
        (torch.full((6, SIZE), math.nan), "at least one symbol"),
        (torch.full((6, SIZE), math.inf), "never NaN"),
    ],
)
def test_wrong_evidence_is_named(evidence: Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        restore(markov_model(), evidence)


def test_the_pseudo_likelihood_is_that_of_enumeration() -> None:
    """Each position given the reading elsewhere; a version that keeps a position's own evidence fails."""
    model, evidence = markov_model(), some_evidence(4)
    wanted = 0.0
    for at in range(LENGTH):
        without = evidence.clone()
        without[at] = 0
        others = tuple(axis for axis in range(LENGTH) if axis != at)
        law = log_posterior(without).logsumexp(others)
        wanted += float((law.log_softmax(-1) + evidence[at].double()).logsumexp(-1))
    assert pseudo_log_likelihood(model, evidence) == pytest.approx(wanted, abs=1e-4)
    assert pseudo_log_likelihood(model, evidence + 1.5) == pytest.approx(wanted + 1.5 * LENGTH, abs=1e-4)


# -- whole texts -----------------------------------------------------------------------------------------


def test_the_whole_text_is_more_likely_than_the_likeliest_symbols() -> None:
    """On a source of known law: never less likely on average, and often the mode itself."""
    model, generator = markov_model(), torch.Generator().manual_seed(1)
    gain, modes = 0.0, 0
    for _ in range(40):
        evidence = 1.5 * torch.randn(LENGTH, SIZE, generator=generator)
        joint = log_posterior(evidence)
        found = [restore(model, evidence, whole=whole).chosen.tolist() for whole in (True, False)]
        values = [float(joint[tuple(chosen)]) for chosen in found]
        gain += values[0] - values[1]
        modes += values[0] == float(joint.max())
    assert gain > 0.5
    assert modes >= 32


def test_the_certainty_is_that_of_the_chosen_symbols() -> None:
    evidence = torch.randn(LENGTH, SIZE, generator=torch.Generator().manual_seed(5))
    found = restore(markov_model(), evidence, whole=True)
    places = torch.arange(LENGTH)
    assert torch.equal(found.certainty, found.posterior[places, found.chosen])
    assert found.text == "".join(ALPHABET[index] for index in found.chosen)
    assert found.calls == 1 + WHOLE_CALLS
    for place in range(LENGTH):
        assert found.text[place] not in found.alternatives(place)


def test_a_whole_text_of_several_windows_keeps_certain_symbols() -> None:
    truth = "abcdeedcbaabcde"
    reading = "".join(truth)
    found = restore(markov_model(), reading, whole=True)
    assert found.text == truth


def test_refined_marginals_exclude_nothing_that_one_call_does_not() -> None:
    """Every pass begins with the posterior of one call, which is one of the steps in the mean."""
    evidence = torch.randn(LENGTH, SIZE, generator=torch.Generator().manual_seed(7))
    exact = restore(markov_model(), evidence).posterior
    refined = restore(markov_model(), evidence, passes=2, steps=8).posterior
    assert (refined >= exact / 8 - 1e-6).all()
    assert torch.allclose(refined.sum(-1), torch.ones(LENGTH), atol=1e-4)
