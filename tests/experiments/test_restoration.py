"""The comparison of restorers: its baselines on a source of known law, and tables that continue."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from experiments import restoration
from experiments.restoration import Reading, Restorer, chosen, gibbs, means, measures, rows_of, words_right, write_rows
from rdlm.config import RunConfig, TransformerConfig
from rdlm.methods.mdlm import MDLM

SIZE, LENGTH = 4, 6


def masked_method() -> tuple[MDLM, Tensor]:
    """Return an untrained masked network above a bigram layer, whose posterior is that of the chain; and its text."""
    torch.manual_seed(0)
    model = TransformerConfig(width=8, layers=1, heads=1, belief="ngram", order=2, states=SIZE + 1)
    method = MDLM(RunConfig(method="mdlm", model=model), SIZE)
    text = torch.where(torch.rand(1, 20_000) < 0.4, torch.randint(SIZE, (1, 20_000)), torch.arange(20_000) % SIZE)
    method.network.belief.fit(lambda: text)
    method.network.eval()
    return method, text


def test_gibbs_sampling_by_a_masked_network_approaches_the_posterior() -> None:
    method, _ = masked_method()
    evidence = 1.5 * torch.randn(4, LENGTH, SIZE, generator=torch.Generator().manual_seed(1))
    frequency = torch.full((SIZE,), 1 / SIZE)
    with torch.no_grad():
        exact = (method.network.belief(evidence) + evidence).softmax(-1)
        one = gibbs(method, frequency, 1, 0.3)(evidence).exp()
        many = gibbs(method, frequency, 3000, 0.05)(evidence).exp()  # rarely two positions at once, which is not exact
    torch.testing.assert_close(one, exact, atol=1e-4, rtol=0)  # all positions are masked, and the layer reads them all
    torch.testing.assert_close(many, exact, atol=0.12, rtol=0)
    assert float((evidence.softmax(-1) - exact).abs().max()) > 0.24  # what the evidence alone says


def test_the_parameter_is_chosen_by_bits_on_validation_sequences() -> None:
    ids = torch.zeros(1, LENGTH, dtype=torch.long)
    reading = Reading("none", ids, torch.zeros(1, LENGTH, SIZE), torch.ones_like(ids, dtype=torch.bool))

    def law(value: float):
        return lambda evidence: torch.tensor([value, 1 - value, 0, 0]).log().expand_as(evidence)

    restorer = Restorer("one", 1, law(0.5), None, ((0.2,), (0.9,), (0.6,)), law, law)
    assert chosen(restorer, reading) == (0.9,)
    assert chosen(Restorer("one", 1, law(0.5)), reading) == ()
    row = restoration.measure(restorer, reading, reading)
    assert row["parameters"] == "0.9" and float(row["bits"]) == pytest.approx(0.152, abs=1e-3)


def test_words_count_where_all_symbols_are_right() -> None:
    ids = torch.tensor([[1, 0, 2, 3, 0, 1, 1, 0, 2]])  # whole words: 2 3 and 1 1
    right = torch.tensor([[0, 1, 1, 1, 1, 1, 0, 1, 1]]).bool()
    everywhere = torch.ones_like(right)
    assert words_right(ids, right, everywhere) == 0.5
    assert words_right(ids, right, torch.arange(9)[None] < 4) == 1.0  # a word without a position that counts


def test_measures_state_the_floor_of_calibration() -> None:
    generator = torch.Generator().manual_seed(0)
    law = torch.randn(400, 50, SIZE, generator=generator).softmax(-1)
    ids = torch.multinomial(law.flatten(0, 1), 1, generator=generator).view(400, 50)
    found = measures(law.log(), law.argmax(-1), Reading("own", ids, law, torch.ones_like(ids, dtype=torch.bool)))
    assert found["calibration"] < 2 * found["calibration_floor"] < 0.02
    assert found["symbols"] == pytest.approx(float(law.max(-1).values.mean()), abs=0.01)


def test_rows_are_added_and_not_measured_twice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ids = torch.zeros(2, LENGTH, dtype=torch.long)
    reading = Reading("none", ids, torch.zeros(2, LENGTH, SIZE), torch.ones_like(ids, dtype=torch.bool))
    calls: list[str] = []

    def named(name: str, seed: int) -> Restorer:
        def law(evidence: Tensor) -> Tensor:
            calls.append(name)
            return evidence.log_softmax(-1)

        return Restorer(name, 1, law, seed=seed)

    monkeypatch.setattr(restoration, "restorers", lambda *_: [named("a", 0), named("a", 1), named("b", 0)])
    monkeypatch.setattr(restoration, "evidence_of", lambda *_: {"none": reading})
    monkeypatch.setattr(restoration, "load_corpus", lambda _: SimpleNamespace(train=torch.zeros(4096).numpy()))
    path = tmp_path / "data" / "rows.csv"
    for arguments in (["--only", "a"], [], []):
        restoration.main([*arguments, "--csv", str(path), "--commit", "abc"])
    assert calls == ["a", "a", "b"]
    rows = rows_of(path)
    assert [(row["restorer"], row["seed"], row["commit"], row["bits"]) for row in rows] == [
        ("a", "0", "abc", "2"),
        ("a", "1", "abc", "2"),
        ("b", "0", "abc", "2"),
    ]
    rows[1]["bits"] = "3"
    write_rows(path, rows)
    assert [(row["restorer"], row["seeds"], row["bits"]) for row in means(rows_of(path))] == [
        ("a", 2, "2.5"),
        ("b", 1, "2"),
    ]
