"""The inference layer against enumeration, and inside networks."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rdlm.config import Interface, TransformerConfig
from rdlm.errors import InputError
from rdlm.model.belief import SMALLEST, TABLES, Belief, BeliefNetwork, HiddenMarkov, Ngram
from rdlm.model.bigram import Bigram, count_pairs
from rdlm.model.network import build
from rdlm.model.ngram import count_contexts

VOCABULARY, LENGTH = 3, 5


def source(rows: int = 400, length: int = 50, seed: int = 0) -> Tensor:
    """Rows of a Markov source of order 3: a symbol is likely if it continues a pattern of the last three."""
    generator = torch.Generator().manual_seed(seed)
    law = torch.rand(VOCABULARY**3, VOCABULARY, generator=generator).pow(4) + 0.02
    found = torch.randint(VOCABULARY, (rows, length), generator=generator)
    for i in range(3, length):
        code = (found[:, i - 3] * VOCABULARY + found[:, i - 2]) * VOCABULARY + found[:, i - 1]
        found[:, i] = torch.multinomial(law[code], 1, generator=generator)[:, 0]
    return found


def ngram(order: int = 4, states: int = 25) -> Ngram:
    belief = Ngram(VOCABULARY, order, states)
    belief.fit(lambda: source())
    return belief


def hidden_markov(seed: int = 0) -> HiddenMarkov:
    torch.manual_seed(seed)
    belief = HiddenMarkov(VOCABULARY, 7)
    torch.nn.init.normal_(belief.start)
    return belief


def bigram(pairs: int = 7) -> Bigram:
    belief = Bigram(VOCABULARY, pairs)
    belief.fit(lambda: source())
    return belief


def log_joint(belief: Belief, length: int = LENGTH, prefix: tuple[int, ...] = ()) -> Tensor:
    """The log-probability of every sequence after a prefix, [V, ..., V], from the chain's own predictions."""
    sequences = torch.tensor(list(itertools.product(range(VOCABULARY), repeat=length)))
    whole = torch.cat([torch.tensor(prefix, dtype=torch.long).expand(len(sequences), -1), sequences], 1)
    with torch.no_grad():
        predicted = belief.predicted(whole).gather(-1, whole[..., None])[..., 0]
    return predicted[:, len(prefix) :].double().sum(1).view([VOCABULARY] * length)


def enumerated(joint: Tensor, evidence: Tensor) -> Tensor:
    """The context of every position of one sequence, by summing over all sequences."""
    length = joint.ndim
    found = []
    for position in range(length):
        total = joint
        for other in range(length):
            if other != position:
                shape = [VOCABULARY if axis == other else 1 for axis in range(length)]
                total = total + evidence[other].double().view(shape)
        found.append(total.movedim(position, 0).reshape(VOCABULARY, -1).logsumexp(1))
    return torch.stack(found).log_softmax(-1)


BELIEFS = [
    ngram,
    hidden_markov,
    bigram,
    lambda: bigram(20),
    lambda: ngram(order=2, states=4),
    lambda: ngram(order=6, states=200),
]


@pytest.mark.parametrize("make", BELIEFS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), strength=st.sampled_from([0.0, 0.3, 3.0, 30.0]))
def test_context_equals_enumeration(make, seed: int, strength: float) -> None:
    belief = make()
    evidence = strength * torch.randn(2, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(seed))
    with torch.no_grad():
        context = belief(evidence)
    for row in range(2):
        expected = (enumerated(log_joint(belief), evidence[row]).exp() + SMALLEST).log()
        assert torch.allclose(context[row].double(), expected, atol=2e-4), (context[row] - expected).abs().max()


@pytest.mark.parametrize("make", BELIEFS)
@pytest.mark.parametrize("block", [1, 2, 3, 5, 7])
def test_context_behind_clean_blocks_equals_enumeration(make, block: int) -> None:
    belief = make()
    generator = torch.Generator().manual_seed(block)
    clean = torch.randint(VOCABULARY, (2, 7), generator=generator)
    evidence = torch.randn(2, 7, VOCABULARY, generator=generator)
    with torch.no_grad():
        context = belief.behind(clean, evidence, block)
        assert torch.equal(context, belief.behind(clean, evidence, torch.tensor([block, block])))
    for row, first in itertools.product(range(2), range(0, 7, block)):
        end = min(first + block, 7)
        joint = log_joint(belief, end - first, tuple(clean[row, :first].tolist()))
        expected = enumerated(joint, evidence[row, first:end])
        assert torch.allclose(context[row, first:end].double(), expected, atol=2e-4)


@pytest.mark.parametrize(("order", "states"), [(4, 25), (2, 4), (6, 200)])
def test_the_evidence_ahead_equals_enumeration(order: int, states: int) -> None:
    belief = ngram(order, states)
    evidence = torch.randn(1, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(order))
    ahead, prefixes = belief.lookahead(evidence), list(itertools.product(range(VOCABULARY), repeat=2))
    found, expected = [], []
    for prefix in prefixes:
        state = belief._messages_before(torch.tensor([[*prefix, 0]]))[0, -1]
        found.append(ahead[1][state, 0].double())
        joint = log_joint(belief, LENGTH - 2, prefix)
        for axis, row in enumerate(evidence[0, 2:].double()):
            joint = joint + row.view([VOCABULARY if one == axis else 1 for one in range(LENGTH - 2)])
        expected.append(joint.flatten().logsumexp(0).exp())
    share, wanted = (torch.stack(values) / torch.stack(values).sum() for values in (found, expected))
    assert torch.allclose(share, wanted, atol=1e-5)
    assert torch.equal(ahead[-1], torch.ones(states, 1))


def test_predictions_are_probabilities_and_approach_the_source() -> None:
    rows = source(2000, 50)
    belief = Ngram(VOCABULARY, 4, 41)
    belief.fit(lambda: rows)
    held_out = source(200, 50, seed=0)[:, 3:]
    predicted = belief.predicted(held_out)
    assert torch.allclose(predicted.exp().sum(-1), torch.ones(()), atol=1e-5)
    nats = -predicted.gather(-1, held_out[..., None])[:, 3:].mean()
    table = torch.zeros(VOCABULARY**3, VOCABULARY, dtype=torch.double) + 0.01
    codes = (rows[:, :-3] * VOCABULARY + rows[:, 1:-2]) * VOCABULARY + rows[:, 2:-1]
    table.view(-1).index_add_(0, (codes * VOCABULARY + rows[:, 3:]).flatten(), torch.ones(codes.numel()).double())
    law = table / table.sum(1, keepdim=True)
    entropy = -(table * law.log()).sum() / table.sum()
    assert abs(float(nats) - float(entropy)) < 0.02
    memoryless = Ngram(VOCABULARY, 4, 41).predicted(held_out)  # nothing counted: uniform
    assert torch.allclose(memoryless, torch.tensor(-math.log(VOCABULARY)))


def test_fewer_states_keep_the_contexts_that_gain_most() -> None:
    rows, held_out = source(), source(seed=0)[:50]
    nats = []
    for states in (4, 8, 13, 25, 41):
        belief = Ngram(VOCABULARY, 4, states)
        belief.fit(lambda: rows)
        nats.append(float(-belief.predicted(held_out).gather(-1, held_out[..., None]).mean()))
    assert nats == sorted(nats, reverse=True) and nats[0] > nats[-1] + 0.1


def test_states_that_are_not_needed_change_nothing() -> None:
    symbols, generator = 14, torch.Generator().manual_seed(0)
    rows = (torch.rand(400, 50, generator=generator).pow(3) * symbols).long().cumsum(1) % symbols
    enough, plenty = Ngram(symbols, 3, 1 + symbols + symbols**2), Ngram(symbols, 3, 4000)
    for belief in (enough, plenty):
        belief.fit(lambda: rows)
    assert int((plenty.suffix >= 0).sum()) == int((enough.suffix >= 0).sum())
    # There may be more weights, because their number grows with that of the states, but not fewer.
    assert int(plenty.weight.count_nonzero()) >= int(enough.weight.count_nonzero())


def test_counts_are_cached_by_the_digest_of_the_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RDLM_CACHE", str(tmp_path))
    first, again, other, unnamed = (Ngram(VOCABULARY, 4, 25) for _ in range(4))
    first.fit(source, "digest")
    again.fit(lambda: pytest.fail("counted again"), "digest")
    assert all(torch.equal(getattr(first, name), getattr(again, name)) for name in TABLES)
    counted = []
    for belief, digest in ((other, "another"), (unnamed, "")):
        belief.fit(lambda: counted.append(1) or source(), digest)
    assert len(counted) == 2


def test_a_symbol_that_was_never_seen_is_possible() -> None:
    belief = Ngram(VOCABULARY + 1, 3, 12)
    belief.fit(lambda: source(20, 20))
    context = belief(torch.tensor([[[0.0, 0, 0, 50.0], [0, 0, 0, 0], [0, 0, 0, 0]]]))
    assert context.isfinite().all()
    assert (belief.predicted(torch.tensor([[3, 3, 1]])).exp() > 0).all()


def test_a_pair_whose_probability_rounds_to_0_is_possible() -> None:
    """With many data the weights of a context can sum to 1 in float32, and nothing is left for symbols not seen."""
    belief = ngram(order=2, states=4)
    belief.weight[1] = torch.tensor([0.0, 0.5, 0.5])  # symbol 0 never follows itself
    certain = torch.eye(VOCABULARY).log()[torch.tensor([[1, 0, 0, 2, 0, 0, 0]])]
    context = belief(certain)
    assert context.isfinite().all() and bool((context.exp().sum(-1) - 1).abs().max() < 1e-5)
    assert belief.predicted(torch.tensor([[1, 0, 0, 2]])).isfinite().all()
    assert belief.behind(torch.tensor([[0, 0, 0, 0, 1, 0, 0]]), certain, 2).isfinite().all()


@pytest.mark.parametrize("kind", [torch.uint8, torch.uint16])
def test_rows_are_counted_as_corpora_store_them(kind: torch.dtype) -> None:
    """Corpora of more than 256 tokens are stored with 16 bits, for which torch has few operations."""
    rows = torch.randint(0, 5, (20, 12), generator=torch.Generator().manual_seed(0))
    found, wanted = (count_contexts(given, 5, 3, 20) for given in (rows.to(kind), rows))
    assert torch.equal(found.weight, wanted.weight) and torch.equal(found.suffix, wanted.suffix)


def test_rows_are_not_joined() -> None:
    """The last symbols of a row are no context of the next row's first."""
    rows = torch.tensor([[0, 0, 0, 1]] * 50)  # 1 is never followed by anything
    found = count_contexts(rows, 2, 3, 7)
    state = int(found.following[0, 1])
    assert torch.equal(found.weight[state], torch.zeros(2))
    assert float(found.backoff[state]) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((3, 1, 10), "order of at least 2"), ((3, 4, 3), "needs more than 3 states"), ((30522, 2, 40000), "too large")],
)
def test_impossible_chains_are_refused(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Ngram(*arguments)


# -- bigrams of large vocabularies ------------------------------------------------------------------


def test_pairs_are_interpolated_with_the_number_of_symbols_before() -> None:
    """Three rows by hand: counts 0: 2, 1: 5, 2: 2; pairs 01 twice, 10, 12 and 11 once; 0 and 2 have one predecessor."""
    rows = torch.tensor([[0, 1, 2], [0, 1, 1], [1, 0, 2]])[:, :3]
    belief = Bigram(4, 10)
    belief.fit(lambda: rows)
    count = torch.tensor([3.5, 4.5, 2.5, 0.5])  # half an occurrence more
    assert torch.allclose(belief.log_start.exp(), count / count.sum())
    pairs = {(0, 1): 2, (1, 2): 1, (1, 1): 1, (1, 0): 1, (0, 2): 1}
    lower = torch.tensor([1.5, 2.5, 2.5, 0.5])
    lower = lower / lower.sum()
    expected = torch.zeros(4, 4)
    for (first, second), found in pairs.items():
        expected[first, second] = (found - 0.75) / count[first]
    expected += (1 - expected.sum(1, keepdim=True)) * lower
    behind = belief.predicted(torch.tensor([[0, 0], [1, 0], [2, 0], [3, 0]]))
    assert torch.allclose(behind[:, 1].exp(), expected, atol=1e-6)
    assert torch.allclose(behind[:, 0].exp(), count / count.sum(), atol=1e-6)


def test_the_pairs_that_gain_most_are_kept() -> None:
    rows = source()
    whole, few = (count_pairs(rows, VOCABULARY, most) for most in (9, 3))

    def pairs(tables: dict[str, Tensor]) -> list[tuple[int, int]]:
        first = torch.arange(VOCABULARY).repeat_interleave(tables["count"])
        return list(zip(first.tolist(), tables["second"].tolist(), strict=True))

    assert len(pairs(few)) == 3 and set(pairs(few)) < set(pairs(whole)) and len(set(pairs(whole))) == 9
    gain = dict(
        zip(pairs(whole), (whole["log_weight"] - whole["log_lower"][whole["second"].long()]).tolist(), strict=True)
    )
    assert min(gain[pair] for pair in pairs(few)) > min(gain.values())


@pytest.mark.parametrize(
    ("table", "value", "message"),
    [
        ("second", torch.tensor([0, 1, 2, 0, 1, 2, 99]), "not symbols"),
        ("second", torch.tensor([0, 1, 2, 0, 1, 2, -1]), "not symbols"),
        ("count", torch.tensor([3, 3, 2]), "not as many"),
        ("count", torch.tensor([5, 5, -3]), "not as many"),
        ("log_weight", torch.zeros(7), "more than 1"),
        ("log_lower", torch.zeros(3), "do not sum to 1"),
        ("log_start", torch.full((3,), math.nan), "do not sum to 1"),
    ],
)
def test_damaged_pairs_are_refused(table: str, value: Tensor, message: str) -> None:
    belief = bigram(7)
    belief.check()
    getattr(belief, table).copy_(value)
    with pytest.raises(ValueError, match=message):
        belief.check()


def test_a_bigram_model_needs_pairs() -> None:
    with pytest.raises(InputError, match=r"at least 1 pair, got model\.states 0"):
        Bigram(3, 0)


def test_some_steps_train_the_network_alone() -> None:
    """In a share of the steps the chain is not evaluated, and the network's logits are the output."""
    net = network("bigram").train()
    evidence = features_of(torch.randn(8, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(0)))
    torch.manual_seed(1)
    with torch.no_grad():
        own = net.network(evidence, 0.0)[..., :VOCABULARY]
        alone = [torch.equal(net(evidence, 0.0), own) for _ in range(200)]
    assert 0.75 < sum(alone) / len(alone) < 0.97


@pytest.mark.parametrize("belief", ["ngram", "bigram"])
def test_tied_logits_above_a_chain_start_at_the_frequencies(belief: str) -> None:
    """The weights of the chain have rows of their own, and the joint prediction starts at the chain's."""
    torch.manual_seed(0)
    config = TransformerConfig(width=16, layers=1, heads=2, belief=belief, states=9, tie=True, frequencies=True)
    net = build(config, Interface(VOCABULARY, VOCABULARY))
    assert isinstance(net, BeliefNetwork)
    net.belief.fit(lambda: source())
    net.start_at_frequencies(source())
    evidence = features_of(torch.zeros(1, 4, VOCABULARY))
    own = net.network(evidence, 0.0)
    assert own.shape[-1] == VOCABULARY + 2 and net.network.head.untied.shape == (2, 16)
    assert torch.allclose(
        own[..., :VOCABULARY].softmax(-1), net.belief.log_frequencies.exp().expand(1, 4, -1), atol=1e-5
    )
    joint = net.eval()(evidence, 0.0).softmax(-1)
    assert torch.allclose(joint, net.belief(torch.zeros(1, 4, VOCABULARY)).exp(), atol=1e-5)


# -- inside a network ------------------------------------------------------------------------------


def network(
    belief: str = "ngram", causal: bool = False, features: int = VOCABULARY, belief_input: bool = False
) -> BeliefNetwork:
    torch.manual_seed(0)
    config = TransformerConfig(
        width=16, layers=2, heads=2, belief=belief, order=4, states=25, causal=causal, belief_input=belief_input
    )
    found = build(config, Interface(features, VOCABULARY))
    assert isinstance(found, BeliefNetwork)
    found.belief.fit(lambda: source())
    for parameter in found.network.parameters():  # logits are 0 at initialisation
        torch.nn.init.normal_(parameter, std=0.3)
    return found.eval()


def features_of(evidence: Tensor) -> Tensor:
    return (evidence.softmax(-1) - 1 / VOCABULARY) * VOCABULARY**0.5


def test_an_untrained_network_predicts_what_the_chain_does() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(width=16, layers=2, heads=2, belief="ngram", order=4, states=25)
    fresh = build(config, Interface(VOCABULARY, VOCABULARY))
    fresh.belief.fit(lambda: source())
    evidence = torch.randn(2, LENGTH, VOCABULARY)
    assert torch.allclose(fresh.eval()(features_of(evidence), 0.5), fresh.belief(evidence), atol=1e-5)


def test_in_training_the_network_predicts_alone_at_half_of_the_positions() -> None:
    net = network()
    evidence = features_of(torch.randn(40, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(0)))
    with torch.no_grad():
        joint, own = net(evidence, 0.0), net.network(evidence, 0.0)[..., :VOCABULARY]
        mixed = net.train()(evidence, 0.0)
    alone = (mixed == own).all(-1)
    assert 0.35 < alone.float().mean() < 0.65
    assert torch.equal(mixed[~alone], joint[~alone])


@pytest.mark.parametrize("belief", ["ngram", "bigram", "hmm"])
def test_ids_are_certain_evidence_and_the_mask_is_none(belief: str) -> None:
    net = network(belief, features=VOCABULARY + 1)
    ids = torch.tensor([[0, 3, 2, 3, 1]])  # 3 is the mask
    evidence = torch.where(ids[..., None] == 3, 0.0, 200.0 * torch.nn.functional.one_hot(ids % 3, 3))
    with torch.no_grad():
        logits, weights = net.network(ids, 0.0).split((VOCABULARY, 2), -1)
        own, chain = weights.sigmoid().split(1, -1)
        assert torch.allclose(net(ids, 0.0), own * logits + 2 * chain * net.belief(evidence), atol=1e-5)


@pytest.mark.parametrize("belief_input", [False, True])
@pytest.mark.parametrize("belief", ["ngram", "bigram", "hmm"])
def test_no_block_sees_a_later_block_or_its_own_clean_symbols(belief: str, belief_input: bool) -> None:
    net, block = network(belief, belief_input=belief_input), 2
    generator = torch.Generator().manual_seed(1)
    clean = torch.randint(VOCABULARY, (1, 6), generator=generator)
    noisy = torch.randn(1, 6, VOCABULARY, generator=generator)

    def logits(clean: Tensor, noisy: Tensor) -> Tensor:
        certain = 200.0 * torch.nn.functional.one_hot(clean, VOCABULARY)
        both = features_of(torch.cat([certain, noisy], 1))
        return net(both, torch.zeros(1, 12), block=block, doubled=True)[0]

    with torch.no_grad():
        before = logits(clean, noisy)
        for position in range(6):
            changed = clean.clone()
            changed[0, position] = (changed[0, position] + 1) % VOCABULARY
            first_allowed = (position // block + 1) * block
            assert torch.equal(before[:first_allowed], logits(changed, noisy)[:first_allowed])
            stirred = noisy.clone()
            stirred[0, position] += torch.tensor([1.0, 0.0, -1.0])
            after = logits(clean, stirred)
            others = [i for i in range(6) if i // block != position // block]
            assert torch.equal(before[others], after[others])
            assert not torch.equal(before, after)


@pytest.mark.parametrize("belief_input", [False, True])
@pytest.mark.parametrize("belief", ["ngram", "bigram", "hmm"])
def test_a_cache_gives_the_logits_of_whole_sequences(belief: str, belief_input: bool) -> None:
    net, block = network(belief, belief_input=belief_input), 2
    ids = torch.randint(VOCABULARY, (2, 6), generator=torch.Generator().manual_seed(2))
    certain = features_of(200.0 * torch.nn.functional.one_hot(ids, VOCABULARY))
    noisy = features_of(torch.randn(2, 6, VOCABULARY, generator=torch.Generator().manual_seed(3)))
    cache = net.network.cache()
    with torch.no_grad():
        for first in range(0, 6, block):
            end = first + block
            found = net(noisy[:, first:end], torch.zeros(2, block), cache=cache, block=block)
            cache.keep(first)
            whole = torch.cat([certain[:, :first], noisy[:, first:end]], 1)
            expected = net(whole, torch.zeros(2, end), block=block)[:, first:]
            assert torch.allclose(found, expected, atol=1e-5)
            net(certain[:, first:end], torch.zeros(2, block), cache=cache, block=block)
            cache = cache.rows(torch.tensor([0, 1]))


@pytest.mark.parametrize("belief_input", [False, True])
@pytest.mark.parametrize("belief", ["ngram", "bigram", "hmm"])
def test_causal_networks_see_the_past_only_and_cache_it(belief: str, belief_input: bool) -> None:
    net = network(belief, causal=True, features=VOCABULARY + 1, belief_input=belief_input)
    ids = torch.cat([torch.full((2, 1), VOCABULARY), torch.randint(VOCABULARY, (2, 5))], 1)
    with torch.no_grad():
        whole = net(ids, 0.0)
        cache = net.network.cache()
        steps = torch.cat([net(ids[:, i : i + 1], 0.0, cache=cache) for i in range(6)], 1)
        assert torch.allclose(whole, steps, atol=1e-5)
        changed = ids.clone()
        changed[:, 3] = (changed[:, 3] + 1) % VOCABULARY
        assert torch.equal(net(changed, 0.0)[:, :3], whole[:, :3])
        assert not torch.equal(net(changed, 0.0)[:, 3:], whole[:, 3:])


def test_a_hidden_markov_model_learns_through_forward_backward() -> None:
    net = network("hmm")
    evidence = torch.randn(4, LENGTH, VOCABULARY)
    net(features_of(evidence), 0.0).logsumexp(-1).sum().backward()
    for name in ("start", "transition", "emission"):
        gradient = getattr(net.belief, name).grad
        assert gradient is not None and gradient.isfinite().all() and gradient.abs().sum() > 0


@pytest.mark.parametrize("features", [VOCABULARY, VOCABULARY + 1])
def test_the_posterior_of_the_chain_is_an_input_of_the_network(features: int) -> None:
    net = network(features=features, belief_input=True)
    if features == VOCABULARY:
        evidence = torch.randn(2, LENGTH, VOCABULARY, generator=torch.Generator().manual_seed(4))
        inputs = features_of(evidence)
    else:
        inputs = torch.tensor([[0, 3, 2, 3, 1]])  # 3 is the mask
        evidence = torch.where(inputs[..., None] == 3, 0.0, 200.0 * torch.nn.functional.one_hot(inputs % 3, 3))
    with torch.no_grad():
        context = net.belief(evidence)
        posterior = torch.nn.functional.pad(features_of(context + evidence), (0, features - VOCABULARY))
        logits, weights = net.network(inputs, 0.0, None, posterior).split((VOCABULARY, 2), -1)
        own, chain = weights.sigmoid().split(1, -1)
        found = net(inputs, 0.0)
        assert torch.allclose(found, own * logits + 2 * chain * context, atol=1e-5)
        net.network.input.previous.zero_()  # as it is initialised: the input changes nothing
        assert not torch.allclose(net(inputs, 0.0), found)
        net.input_width = 0
        assert torch.allclose(net(inputs, 0.0), own_logits(net, inputs, context), atol=1e-5)


def own_logits(net: BeliefNetwork, inputs: Tensor, context: Tensor) -> Tensor:
    logits, weights = net.network(inputs, 0.0).split((VOCABULARY, 2), -1)
    own, chain = weights.sigmoid().split(1, -1)
    return own * logits + 2 * chain * context


@pytest.mark.parametrize("interface", [Interface(4, 3, digits=2), Interface(9, 3)])
def test_split_tokens_are_refused(interface: Interface) -> None:
    with pytest.raises(InputError, match=r"process\.base null"):
        build(TransformerConfig(width=16, layers=1, heads=2, belief="ngram", states=25), interface)
