"""Tests of the choices by data and time: any vocabulary gives a process whose evidence is accurate."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rdlm.config import PAPER_TOTAL_NOISE, ProcessConfig, RunConfig, TransformerConfig
from rdlm.errors import InputError
from rdlm.methods.rdlm import Process
from rdlm.presets import PRESETS, preset
from rdlm.process.bridge import EXPANSION_RANGE, Bridge, default_total, largest_total, masked_start
from rdlm.train.fit import (
    CAUTION,
    FEWEST_CALLS,
    FEWEST_SEQUENCES,
    FEWEST_STEPS,
    FIXED_SECONDS,
    MOST_ONE_HOT,
    MOST_WEIGHTS,
    SAMPLES_SHARE,
    SLACK,
    VALIDATION_SHARE,
    Pace,
    fit_training,
    fit_vocabulary,
    largest_affordable,
    sizes,
)


@given(dimension=st.integers(3, 1 << 20))
def test_the_largest_total_is_admissible_and_within_a_tenth_of_the_limit(dimension: int) -> None:
    total = largest_total(dimension)
    assert 0.9 * EXPANSION_RANGE < total * (dimension - 2) <= EXPANSION_RANGE * (1 + 1e-12)
    assert float(f"{total:.2g}") == pytest.approx(total, rel=1e-12)
    assert default_total(dimension) <= min(PAPER_TOTAL_NOISE, total)


@given(vocabulary=st.integers(28, 5000), total=st.floats(0.1, 3.0))
def test_the_total_noise_that_an_error_recommends_is_accepted(vocabulary: int, total: float) -> None:
    with pytest.raises(InputError, match="lower the total noise to") as error:
        Bridge(masked_start(vocabulary), total)
    (advice,) = re.findall(r"lower the total noise to ([0-9.e-]+)", str(error.value))
    Bridge(masked_start(vocabulary), float(advice))


@given(vocabulary=st.integers(16, 40_000), base=st.sampled_from([None, 3, 16]))
def test_the_textfile_preset_fits_any_vocabulary(vocabulary: int, base: int | None) -> None:
    config = preset("textfile")
    chosen, _ = fit_vocabulary(replace(config, process=replace(config.process, base=base)), vocabulary)
    process = Process.of(chosen.process, vocabulary)
    process.bridge.check_evidence()
    assert process.schedule.total == pytest.approx(chosen.process.total)
    assert chosen.process.codes == ("learned" if base is None and vocabulary > MOST_ONE_HOT else "onehot")
    assert chosen.model.belief == ("ngram" if base is None and vocabulary <= MOST_ONE_HOT else "none")
    if chosen.model.belief == "ngram":
        assert vocabulary < chosen.model.chain_states <= max(MOST_WEIGHTS // vocabulary, 1)


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in ("textfile", "own")])
def test_other_presets_keep_their_process(name: str) -> None:
    sizes = {"text": 27, "enwik8": 256, "lm1b": 30_522, "wikitext-2": 2048, "digits": 17, "promoter": 4, "regula": 4}
    vocabulary = next((size for start, size in sizes.items() if name.startswith(start)), 256 if "10" in name else 27)
    chosen, said = fit_vocabulary(preset(name), vocabulary)
    assert chosen.process.total == PAPER_TOTAL_NOISE and not said
    assert replace(chosen.process, total=None) == replace(preset(name).process, total=None)


def test_what_is_chosen_is_stated() -> None:
    _, said = fit_vocabulary(preset("textfile"), 113)
    assert said == "chosen for a vocabulary of 113 tokens: process.total 0.016"
    _, said = fit_vocabulary(preset("textfile"), 8192)
    assert said == (
        "chosen for a vocabulary of 8,192 tokens: process.codes learned, process.dimension 16, model.belief none"
    )


def test_a_network_of_many_tokens_starts_at_their_frequencies() -> None:
    for vocabulary, expected in ((113, False), (8192, True)):
        model = fit_vocabulary(preset("textfile"), vocabulary)[0].model
        assert isinstance(model, TransformerConfig) and model.frequencies is expected


def test_what_the_user_gives_is_kept() -> None:
    given_ = RunConfig(process=ProcessConfig(total=0.001, codes="onehot"))
    assert fit_vocabulary(given_, 300) == (given_, "")


def test_a_sphere_has_the_same_total_noise_whichever_way_its_coordinates_arise() -> None:
    for dimension in (16, 100):
        learned = ProcessConfig(codes="learned", dimension=dimension)
        assert Process.of(learned, 5000).schedule.total == pytest.approx(default_total(dimension + 1))
        split = ProcessConfig(base=dimension)
        assert Process.of(split, 5000).schedule.total == pytest.approx(default_total(dimension + 1))


# -- time -------------------------------------------------------------------------------------------


def test_sizes_grow_to_the_configuration_itself() -> None:
    for name in ("textfile", "cifar10", "promoter-chr22"):
        config = preset(name)
        found = list(sizes(config, ()))
        cost = [one.model.width**2 * one.training.batch for one in found]
        assert found[-1] == config and cost == sorted(cost) and len(found) > 3
        assert cost[0] < cost[-1] / 64


def test_what_is_given_is_not_scaled() -> None:
    config = preset("textfile")
    assert {one.model for one in sizes(config, {"model.width"})} == {config.model}
    assert {one.training.batch for one in sizes(config, {"training.batch"})} == {config.training.batch}
    assert list(sizes(config, {"model.layers", "training.batch"})) == [config]


@given(seconds=st.floats(0.001, 10), left=st.floats(1, 5000))
def test_the_largest_size_with_enough_steps_is_chosen(seconds: float, left: float) -> None:
    candidates = list(sizes(preset("textfile"), ()))
    cost = {one: seconds * 2**index for index, one in enumerate(candidates)}
    measured = []

    def measure(one: RunConfig) -> float:
        measured.append(one)
        return cost[one]

    chosen = largest_affordable(candidates, measure, lambda: left)
    usable = left * (1 - VALIDATION_SHARE - SAMPLES_SHARE - SLACK)
    enough = [one for one in candidates if usable / cost[one] >= FEWEST_STEPS]
    assert chosen == (enough[-1] if enough else candidates[0])
    assert all(cost[one] <= max(2 * cost[chosen], cost[candidates[0]]) for one in measured)


@given(step=st.floats(0.01, 5), sequence=st.floats(0, 0.2), call=st.floats(0, 2), left=st.floats(30, 4000))
def test_steps_validation_and_samples_fit_into_the_time(step: float, sequence: float, call: float, left: float) -> None:
    config, pace = preset("textfile"), Pace(step, sequence, call)
    fitted = fit_training(config, (), pace, left).training
    spent = fitted.steps * step + pace.reserve(fitted)
    least = (
        step + CAUTION * (FEWEST_SEQUENCES * sequence + FEWEST_CALLS * call) + FIXED_SECONDS
    )  # of one step and the smallest validation
    assert spent <= max(left, least) * (1 + 1e-9)
    assert fitted.warmup <= fitted.steps / 10 and fitted.steps <= config.training.steps
    assert fitted.validate_every <= fitted.steps


def test_given_settings_of_the_training_stay_and_a_run_continues_after_its_steps() -> None:
    config, pace = preset("textfile"), Pace(1.0)
    fitted = fit_training(config, {"training.warmup", "training.validation_nfe"}, pace, 60.0)
    assert fitted.training.warmup == config.training.warmup
    again = fit_training(fitted, {"training.steps"}, pace, 60.0)
    assert again.training.steps == fitted.training.steps
    longer = fit_training(config, (), pace, 60.0, done=40)
    assert longer.training.steps == fitted.training.steps + 40
