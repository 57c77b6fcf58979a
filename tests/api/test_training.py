"""`rdlm.train`, with rdlm's parts and with the user's own, which are imported only with consent."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Generator
from dataclasses import MISSING, fields, replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch

import rdlm
from rdlm.api.generate import Generation, WindowStep, generate
from rdlm.api.language_model import LanguageModel
from rdlm.api.score import effort_for, order_for, score
from rdlm.api.training import train_model
from rdlm.cli import main as cli
from rdlm.config import ProcessConfig, RunConfig, SamplingOptions, TrainingConfig, TransformerConfig
from rdlm.errors import InputError
from rdlm.likelihood.estimators import path_bound
from rdlm.methods.rdlm import Rdlm
from rdlm.presets import preset
from rdlm.random import generator_of
from rdlm.storage.own_classes import UntrustedClassError, import_name, trusting
from tests.api import own_parts
from tests.api.own_parts import Mixer, Quadratic, Softer
from tests.methods.small import mean_and_error, method, tokens
from tests.sampling.untrained import tiny

NAMES = [import_name(one) for one in (Mixer, Quadratic, Softer)]


def small() -> RunConfig:
    training = TrainingConfig(steps=2, batch=2, device="cpu", validation_sequences=2, validation_nfe=2)
    model, process = TransformerConfig(width=8, layers=1, heads=1), ProcessConfig(levels=8, pairs=16)
    data = preset("own").data
    return RunConfig(data=data, model=model, process=process, training=training)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "book.txt"
    path.write_text("some text of mine, " * 800)
    return path


@pytest.fixture(scope="module")
def own_run(text: Path) -> Path:
    out = text.parent / "own"
    model = rdlm.train(text, config=small(), network=Mixer, schedule=Quadratic, bridge=Softer, out=out)
    assert isinstance(model.method.network, Mixer) and model.folder is not None and model.folder.parent == out
    return out


def test_a_preset_gives_up_its_blocks_for_a_network_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[RunConfig] = []
    monkeypatch.setattr("rdlm.api.training.train", lambda config, *_, **__: chosen.append(config))
    monkeypatch.setattr("rdlm.api.training.load", lambda *_, **__: None)
    assert preset("own").objective.blockwise > 0
    rdlm.train("letters.txt", config="own", network=Mixer)
    assert chosen[0].objective.blockwise == 0.0 and chosen[0].model.network_class == import_name(Mixer)
    rdlm.train("letters.txt", config=preset("own"), network=Mixer)
    assert chosen[1].objective == preset("own").objective
    with pytest.raises(InputError, match=r"set objective\.blockwise and process\.block to 0"):
        Rdlm(chosen[1], 27).check_blocks(1.0)


def test_train_returns_the_model_of_its_run(text: Path, tmp_path: Path) -> None:
    model = rdlm.train(text, config=small(), schedule="cosine", out=tmp_path / "run")
    again = rdlm.load(tmp_path / "run")
    assert again.config.process.schedule == "cosine" == model.config.process.schedule
    assert again.generate(steps=2).tokens.equal(model.generate(steps=2).tokens)


def test_own_parts_are_used_and_loaded_with_consent(own_run: Path) -> None:
    model = rdlm.load(own_run, trust=NAMES)
    assert isinstance(model.rdlm.process.schedule, Quadratic) and type(model.rdlm.process.bridge) is Softer
    again = rdlm.load(own_run, trust=[Mixer, Quadratic, Softer])
    assert model.generate(steps=3).tokens.equal(again.generate(steps=3).tokens)
    assert model.score(["some text of mine"])[0].nats.claims_bound


@pytest.mark.parametrize("missing", NAMES)
def test_nothing_is_built_from_a_class_that_is_not_trusted(own_run: Path, missing: str) -> None:
    with pytest.raises(UntrustedClassError, match=f"(?s)built with {missing}, .*trust="):
        rdlm.load(own_run, trust=[name for name in NAMES if name != missing])


def test_nothing_is_imported_silently(own_run: Path, root: Path) -> None:
    code = f"import sys, rdlm\ntry: rdlm.load({str(own_run)!r})\nexcept rdlm.errors.InputError: pass\n"
    code += "sys.exit('tests.api.own_parts' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", f"import rdlm.errors\n{code}"], cwd=root, check=False).returncode == 0


def test_a_saved_copy_needs_consent_too(own_run: Path, tmp_path: Path) -> None:
    rdlm.load(own_run, trust=NAMES).save(tmp_path / "copy")
    with pytest.raises(UntrustedClassError):
        rdlm.load(tmp_path / "copy")
    assert isinstance(rdlm.load(tmp_path / "copy", trust=NAMES).method.network, Mixer)


def test_the_command_line_asks_for_consent(own_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", str(own_run), "--steps", "2"]
    assert cli.main(words) == 2
    assert f"--trust {' '.join(NAMES)} to the command" in capsys.readouterr().err
    assert cli.main([*words, "--trust", *NAMES]) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"schedule": own_parts.Halved}, "must be a schedule of that total noise"),
        ({"schedule": own_parts.Wrong}, "not the inverse"),
        ({"bridge": own_parts.Inconsistent}, r"slope\(cos r, B\) must be its pull"),
        ({"bridge": Quadratic}, "must be derived from rdlm.process.bridge.Bridge"),
        ({"network": Quadratic}, "must be derived from torch.nn"),
        ({"network": torch.nn.Linear(1, 1)}, "must be a class, got Linear"),
        ({"schedule": "bent"}, "schedule must be geometric"),
        ({"config": "no such preset"}, "unknown preset"),
    ],
)
def test_wrong_parts_are_refused_before_training(
    options: dict[str, Any], message: str, text: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        rdlm.train(text, **{"config": small(), "out": tmp_path / "run", **options})
    assert not (tmp_path / "run").exists()


def test_a_local_class_has_no_import_name() -> None:
    class Local(torch.nn.Module):
        pass

    with pytest.raises(InputError, match="inside of a function"):
        import_name(Local)
    with pytest.raises(InputError, match="cannot import nowhere:At"), trusting(["nowhere:At"]):
        pass
    with pytest.raises(InputError, match=r"write module:Class"), trusting(["os.system"]):
        pass


def test_the_law_of_an_own_bridge_is_its_own() -> None:
    """Its weaker pull leaves states farther from the token; a table of rdlm's bridge would not."""
    made, plain = with_own_bridge(), method(3, bridge="logarithm")
    digit, level = torch.zeros(4000, dtype=torch.long), torch.full((4000,), 0.5 * plain.process.bridge.total)
    near, far = (float(one.draw(digit, level, generator_of("law"))[:, 0].mean()) for one in (plain, made))
    assert far < near - 0.01


def test_the_bound_of_an_own_bridge_is_that_of_its_sampler() -> None:
    """States from the law, which is computed from `pull`, and whole paths, whose steps use `slope`, agree."""
    made = with_own_bridge()
    batch = tokens(3, 3000, 2)
    by_steps, error = mean_and_error(made.bound(batch, 4, generator_of("steps")))
    paths = path_bound(replace(made.problem(batch, 4), batch=3000), 1, generator_of("paths"))[0].sum((0, 2))
    by_paths, other = mean_and_error(paths)
    assert abs(by_steps - by_paths) < 4 * (error**2 + other**2) ** 0.5
    assert max(error, other) < 0.08


def with_own_bridge() -> Rdlm:
    with trusting([Softer]):
        return method(3, bridge_class=import_name(Softer), scrambled=True)


def test_a_list_of_prompts_gives_the_samples_of_each() -> None:
    model, options, seen = tiny(), SamplingOptions(steps=3, num=2, seed=5), []
    found = model.generate_each(["ab", "c"], options, progress=lambda done, total: seen.append((done, total)))
    alone = [model.generate(prompt=prompt, steps=3, num=2, seed=5) for prompt in ("ab", "c")]
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in alone]
    assert seen[-1] == (6, 6) and seen == sorted(seen)
    with pytest.raises(InputError, match=r"write \[text\] for one"):
        model.generate_each("ab")
    with pytest.raises(InputError, match="generate_each"):
        model.generate(prompt=["ab"])  # type: ignore[arg-type]


def test_scores_take_the_options_of_the_command() -> None:
    model = tiny()
    (one,) = model.score(["abc"], nfe=2, order="random", draws=3, seed=1)
    order = order_for(model, "random", 2)
    effort = replace(effort_for(model, 1, 2, None, 1, order), draws=3)
    assert one.nats == score(model, ["abc"], effort)[0].nats
    with pytest.raises(InputError, match="lists of texts"):
        model.score("abc")


def test_a_device_that_is_not_there_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    for wrong in ("cuda", "cuda:3", "tpu", "cpu:x"):
        with pytest.raises(InputError, match=f"device '{wrong}' is not"):
            rdlm.load(tmp_path / "no model", device=wrong)


def test_bfloat16_changes_the_network_and_not_the_states() -> None:
    model = tiny()
    exact = model.score(["some text"], nfe=4)[0].nats.value
    half = model.to("cpu", precision="bfloat16").score(["some text"], nfe=4)[0].nats.value
    assert exact != half and abs(exact - half) < 0.05 * exact
    assert next(model.method.network.parameters()).dtype == torch.float32
    assert model.to(precision="float32").score(["some text"], nfe=4)[0].nats.value == exact
    with pytest.raises(InputError, match="unknown precision"):
        model.to(precision="float8")  # type: ignore[arg-type]


def test_the_steps_of_samples_can_be_iterated_over() -> None:
    model, options = tiny(), SamplingOptions(num=2, steps=4, prompt="ab", order="synchronous", seed=3)
    returned = list[Generation]()

    def followed() -> Generator[WindowStep, None, None]:
        returned.append((yield from model.generate_steps(options)))

    steps = list(followed())
    made = generate(model, options)
    assert returned[0].samples == made.samples and returned[0].network_calls == made.network_calls
    assert len(steps) == 4 and all(step.info.log_probs.shape[0] == 2 for step in steps)
    assert torch.is_grad_enabled()
    with pytest.raises(InputError, match="one batch"):
        next(model.generate_steps(SamplingOptions(num=3, batch=2)))


def test_a_compiled_network_gives_the_same_number(monkeypatch: pytest.MonkeyPatch) -> None:
    model, graphs = tiny(), []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    compile_module = torch.nn.Module.compile
    monkeypatch.setattr(torch.nn.Module, "compile", lambda network: compile_module(network, backend=backend))
    exact = model.score(["some text"], nfe=4)[0].nats.value
    assert not graphs
    assert model.to(compile=True).score(["some text"], nfe=4)[0].nats.value == pytest.approx(exact, rel=1e-5)
    assert graphs


def test_the_signatures_are_typed_and_have_the_defaults_of_the_options() -> None:
    found = signature(LanguageModel.generate).parameters
    for one in fields(SamplingOptions):
        default = None if one.default is MISSING else one.default
        assert found[one.name].default == default, one.name
    for function in (LanguageModel.generate, LanguageModel.score, LanguageModel.restore, rdlm.load, train_model):
        parameters = signature(function).parameters.values()
        assert all(one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL) for one in parameters)
        words = inspect.getdoc(function) or ""
        assert len(words) > 200
