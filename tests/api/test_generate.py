"""Samples of a model: constraints hold exactly, a seed determines a sample, windows cover any length."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from scipy import stats
from torch import Tensor

from rdlm.api.generate import generate, prepare
from rdlm.api.language_model import LanguageModel
from rdlm.config import DenoiserConfig, MethodName, ObjectiveConfig, RunConfig, SamplingOptions, TransformerConfig
from rdlm.data.tokenizer import TEXT8_ALPHABET, Bytes, Characters, Levels
from rdlm.errors import DamagedFileError, InputError
from rdlm.methods import METHODS
from rdlm.process.order import ONE_STEP, TokenSchedule
from rdlm.sampling.solvers import SOLVERS
from tests.sampling.untrained import LENGTH, tiny


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    return tiny()


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_sample_depends_on_its_seed_alone(model: LanguageModel, solver: str) -> None:
    whole = generate(model, num=5, steps=6, solver=solver, seed=3)
    assert [sample.seed for sample in whole.samples] == [3, 4, 5, 6, 7]
    assert len(set(whole.samples)) == 5
    for batch in (1, 2):
        assert generate(model, num=5, steps=6, solver=solver, seed=3, batch=batch).samples == whole.samples
    assert generate(model, num=2, steps=6, solver=solver, seed=6).samples == whole.samples[3:]


def test_a_generation_is_a_sequence_of_its_samples(model: LanguageModel) -> None:
    found = generate(model, num=3, steps=4, seed=3)
    assert tuple(found) == found.samples and len(found) == 3 and found[-1] == found.samples[2]


@pytest.mark.parametrize(
    "options",
    [{"path": "switch"}, {"path": "constant"}, {"path": "uniform", "bridge": "logarithm"}, {"base": 6}],
    ids=lambda options: "-".join(map(str, options.values())),
)
@pytest.mark.parametrize("window", [1.0, 0.5])
def test_every_process_keeps_seeds_and_prompts(options: dict[str, Any], window: float) -> None:
    model = tiny(**options)
    wanted = {"steps": 6, "prompt": "abc", "suffix": "z", "window": window, "length": 9}
    whole = generate(model, num=6, **wanted)
    assert all(re.fullmatch("abc.{5}z", sample.text) for sample in whole.samples)
    assert generate(model, num=6, batch=4, **wanted).samples == whole.samples
    assert generate(model, num=3, seed=3, **wanted).samples == whole.samples[3:]


def test_window_and_order_are_the_models_own_where_they_are_not_given() -> None:
    model = tiny(window=0.25, order="left_to_right")
    own = prepare(model, SamplingOptions()).options
    assert (own.window, own.order) == (0.25, "left-to-right")
    other = prepare(model, SamplingOptions(order="random"))
    assert (other.options.window, other.options.order) == (None, "random")
    assert other.order.schedule == TokenSchedule(ONE_STEP, "strided") and other.order.nfe == LENGTH
    wider = prepare(model, SamplingOptions(window=0.5)).options
    assert (wider.window, wider.order) == (0.5, "left-to-right")


def test_a_thousand_infills_keep_every_known_token(model: LanguageModel) -> None:
    made = generate(model, num=1000, infill="the ____ of _ b", steps=3, batch=250, rows=250)
    assert all(re.fullmatch("the .... of . b", sample.text) for sample in made.samples)
    assert len({sample.text for sample in made.samples}) > 900


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("window", [1.0, 0.5])
def test_every_solver_and_schedule_keeps_the_constraints(model: LanguageModel, solver: str, window: float) -> None:
    """Prompt, ban, a required and a forbidden place, and a language, all at once."""
    made = generate(
        model,
        num=20,
        steps=4,
        rows=20,
        solver=solver,
        window=window,
        prompt="q",
        ban="xyz",
        require={3: "ab"},
        forbid={-1: "a"},
        regex="q[a-f]{3}( [a-z]+)*",
        length=12,
        top_k=3,
        temperature=1.5,
    )
    for sample in made.samples:
        assert re.fullmatch("q[a-f]{3}( [a-z]+)*", sample.text)
        assert sample.text[3] in "ab" and sample.text[-1] != "a" and not set(sample.text) & set("xyz")
    assert not made.claims_bound


def test_a_thousand_samples_match_their_regex(model: LanguageModel) -> None:
    pattern = "(ab|c[de]+ )*z{2,3}"
    made = generate(model, num=1000, regex=pattern, steps=3, batch=500, rows=500)
    assert all(re.fullmatch(pattern, sample.text) for sample in made.samples)
    assert len({sample.text for sample in made.samples}) > 200


def test_a_known_token_follows_its_own_bridge_where_it_is_not_clamped(model: LanguageModel) -> None:
    """By default it is clamped to its vertex from step 0."""
    assert model.config.objective == ObjectiveConfig(asynchronous=0.0)  # also of a model that is trained synchronously
    seen: list[list[Tensor]] = []
    for options in ({"clean": False}, {}):
        frames = generate(model, steps=8, prompt="q", trace=True, **options).trace
        assert frames is not None
        seen.append([torch.tensor(frame.points[0]) for frame in frames.frames])
    on_token = torch.stack(seen[0])[:, 0]
    assert on_token[0] == 0 and on_token[-1] == 1 and bool((on_token[6:] > on_token[2] + 0.1).all())
    assert all(point.tolist() == [1, 0, 0] for point in seen[1])


@pytest.mark.parametrize("objective", [ObjectiveConfig(), ObjectiveConfig(prefix=0.5)], ids=["bridge", "clean"])
def test_long_texts_are_sampled_in_windows(objective: ObjectiveConfig) -> None:
    model = tiny(objective=objective)
    made = generate(model, length=4096, steps=2, stride=15, prompt="hello ")
    assert len(made.samples[0].text) == 4096 and made.samples[0].text.startswith("hello ")
    assert made.network_calls == 2 * 273  # 16 characters, then 272 windows with 15 new ones each
    two = generate(model, num=2, length=50, steps=2)
    assert generate(model, seed=1, length=50, steps=2).samples == two.samples[1:]


def test_a_language_holds_across_windows(model: LanguageModel) -> None:
    pattern = "((ab){1,5} c )*dd"
    made = generate(model, num=10, steps=3, length=70, regex=pattern, suffix="c dd", rows=10)
    assert all(re.fullmatch(pattern, sample.text) for sample in made.samples)


@pytest.mark.parametrize("layout", ["packed", "serial"])
def test_digits_decode_to_tokens_that_exist(layout: str) -> None:
    """27 of 64 codes of three digits exist; the others are drawn again, and counted."""
    model = tiny(denoiser=DenoiserConfig(head="digit"), base=4, layout=layout)
    wanted = {"steps": 3, "prompt": "ab", "length": 10}
    made = generate(model, num=30, rows=30, **wanted)
    assert all(len(sample.text) == 10 and sample.text.startswith("ab") for sample in made.samples)
    assert made.invalid_codes > 50
    few = generate(model, num=4, **wanted)
    assert generate(model, num=4, batch=3, window=1.0, **wanted).samples == few.samples
    with pytest.raises(InputError, match=r"denoiser\.head token"):
        generate(model, ban="a")


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(
    "options", [{}, {"top_p": 0.1}, {"top_k": 1}, {"greedy": True}, {"top_p": 0.5, "window": 0.5}], ids=str
)
def test_digits_decode_to_tokens_that_exist_however_they_are_chosen(solver: str, options: dict[str, Any]) -> None:
    """Also where the most likely digits are no code, and where a truncation leaves no code of a token."""
    model = tiny(denoiser=DenoiserConfig(head="digit"), base=4)
    made = generate(model, num=10, rows=10, steps=3, solver=solver, **options)
    assert int(made.tokens.min()) >= 0 and int(made.tokens.max()) < model.tokenizer.size
    assert made.invalid_codes > 20
    few = generate(model, num=2, seed=1, steps=3, solver=solver, **options)
    assert few.samples == generate(model, num=3, steps=3, solver=solver, **options).samples[1:]


def independent(prior: Tensor, **process: Any) -> LanguageModel:
    """Return a model in which all tokens are independent, each with the same prior."""
    model = tiny(Characters("abcdef"), **process)
    for parameter in model.method.network.parameters():
        torch.nn.init.zeros_(parameter)
    model.method.network.get_parameter("head.bias").data.copy_(prior.log())
    return model


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("base", [None, 3])
def test_temperature_samples_powers_of_the_prior(temperature: float, base: int | None) -> None:
    prior = torch.tensor([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
    model = independent(prior, base=base)
    token = generate(model, num=200, steps=8, batch=200, rows=200, temperature=temperature).tokens
    expected = torch.softmax(prior.double().log() / temperature, 0) * token.numel()
    assert stats.chisquare(torch.bincount(token.flatten(), minlength=6), expected).pvalue > 1e-3


def test_greedy_decodes_the_most_likely(model: LanguageModel) -> None:
    first, again = (generate(model, steps=1, greedy=True, seed=seed).samples[0].tokens for seed in (0, 1))
    assert first == again  # a single step decodes the start, which is one state
    assert first != generate(model, steps=1).samples[0].tokens


def test_labels_are_names_or_numbers() -> None:
    model = tiny(classes=3)
    by_name, by_number = (generate(model, num=3, steps=3, label=label) for label in ("class 2", "2"))
    assert by_name.samples == by_number.samples != generate(model, num=3, steps=3).samples


def test_a_signal_conditions_each_token() -> None:
    model = tiny(Characters("ACGT"), "dna", signal=True)
    flat, steep = (generate(model, num=5, steps=4, signal=(height,) * LENGTH).tokens for height in (0.0, 9.0))
    assert not torch.equal(flat, steep)
    with pytest.raises(InputError, match="3 numbers, the sample 16"):
        generate(model, signal=[0.0] * 3)


def test_a_classifier_guides(model: LanguageModel) -> None:
    letter = model.tokenizer.encode("e").item()
    plain = generate(model, num=40, steps=4, rows=40).tokens
    guided = generate(
        model, num=40, steps=4, rows=40, classifier=lambda p: p[..., letter].sum(-1), classifier_scale=3.0
    ).tokens
    assert int((guided == letter).sum()) > 3 * int((plain == letter).sum()) + 20


def test_samples_share_forward_passes_where_that_changes_no_bit(model: LanguageModel) -> None:
    rows: list[int] = []
    hook = model.rdlm.network.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    try:
        shared = generate(model, num=5, steps=6)
        most = max(rows)
        rows.clear()
        alone = generate(model, num=5, steps=6, rows=1)
    finally:
        hook.remove()
    assert most == 5 and set(rows) == {1}
    assert torch.equal(shared.tokens, alone.tokens)


def test_a_self_conditioned_network_is_given_its_last_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny(network={"self_condition": True})
    seen: list[Tensor | None] = []
    real = model.method.denoiser.__call__

    def spy(network: Any, state: Tensor, noise: Tensor, condition: Any, previous: Tensor | None, *rest: Any) -> Tensor:
        seen.append(previous)
        return real(network, state, noise, condition, previous, *rest)

    monkeypatch.setattr(type(model.method.denoiser), "__call__", lambda self, *given: spy(*given))
    made = generate(model, num=2, steps=3, rows=1)
    assert [previous is None for previous in seen] == [True, True] + [False] * 4
    assert not made.claims_bound


def test_bounds_are_claimed_for_plain_samples_of_a_kernel(model: LanguageModel) -> None:
    assert generate(model, steps=2).claims_bound
    assert generate(model, steps=2, solver="drift", grid="log", window=0.5).claims_bound
    for options in ({"solver": "euler"}, {"top_p": 0.9}, {"prompt": "a"}, {"length": 40}):
        assert not generate(model, steps=2, **options).claims_bound


def test_progress_counts_to_the_end(model: LanguageModel) -> None:
    calls: list[tuple[int, int]] = []
    generate(tiny(path="constant"), num=5, batch=2, steps=4, length=20, progress=lambda *both: calls.append(both))
    assert calls[-1] == (24, 24)  # 3 batches, 2 windows, 4 steps
    assert calls == sorted(calls)


def test_dropout_is_off_while_sampling() -> None:
    model = tiny(network={"dropout": 0.5})
    model.method.network.train()
    assert generate(model, num=2, steps=4).samples == generate(model, num=2, steps=4).samples
    assert model.method.network.training


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"num": 0}, "num must be at least 1"),
        ({"length": 0}, "length must be at least 1"),
        ({"prompt": "a" * 16}, "leave nothing open in 16 tokens"),
        ({"prompt": "a", "suffix": "b" * 15}, "leave nothing open"),
        ({"prompt": "Ab"}, "prompt: the character 'A' at position 0 is outside"),
        ({"infill": "the cat"}, "has no gap"),
        ({"infill": "a_", "prompt": "b"}, "an infill is a whole sequence"),
        ({"infill": "a_", "length": 9}, "the infill has 2 tokens, but the length is 9"),
        ({"infill": "a b", "gap": " "}, "is a character of the model's alphabet"),
        ({"regex": "ab", "length": 5}, "no sequence of 5 tokens matches the regex 'ab'; one of 2 tokens does"),
        ({"regex": "a*", "prompt": "b"}, "matches the regex 'a\\*' and the other conditions"),
        ({"regex": "(a"}, "is missing"),
        ({"require": {0: "a"}, "forbid": {0: "a"}}, "contradict each other: no token is left at position 0"),
        ({"prompt": "q", "ban": "q"}, "contradict each other"),
        ({"require": {99: "a"}}, "position 99 is outside"),
        ({"label": "3"}, "trained without classes"),
        ({"signal": [0.0]}, "trained without a signal"),
        ({"guidance": 2.0}, "needs a label or a signal"),
        ({"window": 0.0}, "width of a window"),
        ({"solver": "rk4"}, "unknown solver"),
        ({"grid": "tme"}, "unknown grid 'tme': did you mean 'time'"),
        ({"grid": "information"}, "needs a measured curve"),
        ({"temperature": -1.0}, "temperature must be at least 0.001"),
        ({"stride": 17, "length": 40}, "the stride must be 1 to 16 tokens"),
        ({"length": 40, "trace": True}, "a trace shows one window"),
    ],
)
def test_mistakes_are_named(model: LanguageModel, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        generate(model, **options)


def test_mistakes_of_other_kinds_of_models() -> None:
    with pytest.raises(InputError, match="a regex needs a model of characters"):
        generate(tiny(Bytes(), base=16), regex="a*")
    with pytest.raises(InputError, match="an image of this model has 16 tokens, not 9"):
        generate(tiny(Levels(4), "image"), length=9)
    with pytest.raises(InputError, match="unknown label 'clas 1': did you mean"):
        generate(tiny(classes=2), label="clas 1")
    with pytest.raises(TypeError, match="stpes"):
        generate(tiny(), stpes=3)


@pytest.mark.parametrize("name", ["mdlm", "udlm", "sedd", "autoregressive", "fisher_flow"])
def test_baselines_sample_without_conditions(name: MethodName) -> None:
    tokenizer = Characters(TEXT8_ALPHABET)
    config = RunConfig(method=name, model=TransformerConfig(width=16, layers=1, heads=2, time_width=8))
    torch.manual_seed(0)
    method = METHODS[name](config, tokenizer.size, 0, 0)
    model = LanguageModel("baseline", method, tokenizer, config, {"kind": "text", "length": LENGTH})
    seen: list[tuple[int, int]] = []
    three = generate(model, num=3, steps=4, seed=5, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(1, 3), (2, 3), (3, 3)] and three.tokens.shape == (3, LENGTH)
    assert generate(model, num=1, steps=4, seed=6).samples[0] == three.samples[1]
    assert three.network_calls == (LENGTH if name == "autoregressive" else 4)
    assert three.claims_bound == (name != "fisher_flow") and three.invalid_codes == 0
    assert generate(model, length=4, steps=2).tokens.shape == (1, 4)
    for option in ({"prompt": "the "}, {"temperature": 0.5}, {"window": 0.5}, {"length": LENGTH + 1}):
        with pytest.raises(InputError, match=f"method '{name}' samples .* leave out {next(iter(option))}"):
            generate(model, **option)


# -- steps in which no position is active ------------------------------------------------------------


def test_few_open_tokens_take_few_evaluations(model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[int] = []
    real = type(model.method.denoiser).__call__

    def spy(self: Any, network: Any, state: Tensor, *rest: Any) -> Tensor:
        counted.append(len(state))
        return real(self, network, state, *rest)

    monkeypatch.setattr(type(model.method.denoiser), "__call__", spy)
    for window, nfe in ((1 / 64, 10), (2 / 64, 20)):
        made = generate(model, steps=64, window=window, order="left_to_right", infill="__ _____ ___")
        assert made.network_calls == len(counted) == nfe
        counted.clear()
    strided = generate(model, num=3, steps=64, window=1 / 64, infill="__ _____ ___", trace=True, rows=1)
    assert strided.network_calls == 10 and len(counted) == 30
    assert strided.trace is not None and len(strided.trace.frames) == 11


def test_a_self_conditioned_model_is_evaluated_at_every_step() -> None:
    model = tiny(network={"self_condition": True})
    assert generate(model, steps=20, window=0.05, infill="a_b").network_calls == 20


@pytest.mark.parametrize("solver", ["mixture", "corrector"])
def test_the_batch_does_not_matter_where_samples_take_different_steps(model: LanguageModel, solver: str) -> None:
    """Several windows and a regular language, in which each sample has a state of its own."""
    wanted: dict[str, Any] = {
        "steps": 10,
        "window": 0.2,
        "order": "random",
        "length": 24,
        "regex": "(a|bc)*d+",
        "solver": solver,
        "stride": 8,
    }
    whole = generate(model, num=4, prompt="a" * 11, **wanted)
    assert len({sample.text for sample in whole.samples}) > 1
    assert generate(model, num=4, batch=3, prompt="a" * 11, **wanted).samples == whole.samples
    assert generate(model, num=2, seed=2, prompt="a" * 11, **wanted).samples == whole.samples[2:]


def test_a_condition_applies_to_the_samples_that_are_left() -> None:
    model = tiny(classes=3)
    wanted: dict[str, Any] = {"steps": 20, "window": 0.05, "order": "random", "label": "1", "guidance": 2.0}
    whole = generate(model, num=4, rows=4, **wanted)
    assert whole.network_calls < 20
    assert whole.samples != generate(model, num=4, rows=4, **{**wanted, "label": "2"}).samples


def overflowing(model: LanguageModel) -> LanguageModel:
    """Return the model with finite weights whose products are not."""
    with torch.no_grad():
        for parameter in model.method.network.parameters():
            parameter.fill_(3e38)
    return model


@pytest.mark.parametrize("options", [{}, {"regex": ".*"}, {"greedy": True}, {"solver": "heun"}, {"prompt": "abc"}])
def test_log_probabilities_that_are_not_finite_give_no_sample(options: dict[str, Any]) -> None:
    with pytest.raises(DamagedFileError, match="log-probabilities are not finite"):
        generate(overflowing(tiny()), steps=4, **options)


@pytest.mark.parametrize("name", ["mdlm", "udlm", "sedd", "autoregressive", "fisher_flow"])
def test_a_baseline_whose_numbers_are_not_finite_gives_no_sample(name: MethodName) -> None:
    tokenizer = Characters(TEXT8_ALPHABET)
    config = RunConfig(
        method=name, model=TransformerConfig(width=16, layers=1, heads=2, causal=name == "autoregressive")
    )
    method = METHODS[name](config, tokenizer.size, 0, 0)
    model = LanguageModel("baseline", method, tokenizer, config, {"kind": "text", "length": LENGTH})
    with pytest.raises(DamagedFileError, match="log-probabilities are not finite"):
        generate(overflowing(model), steps=4)
