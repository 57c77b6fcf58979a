r"""Finite automata over tokens: exact inference under a regular constraint, and the compiler of regular expressions.

A denoiser's distribution is a product over positions. Conditioned on acceptance by an automaton it is a Markov chain
over the automaton's states, so that one backward and one forward recursion give exact marginals and joint draws.

A regular expression over characters is parsed into a syntax tree, translated to a non-deterministic automaton
(Thompson's construction) and made deterministic (subset construction). The syntax:

| expression | matches |
|---|---|
| `a`, `\.` | a character; a backslash escapes a special character |
| `.` | any character of the model |
| `[abc]`, `[a-z]`, `[^a-z]` | one of these characters; any other character |
| `\d`, `\w`, `\s` | a digit; a letter, digit or underscore; a space, tab or line end, of any script |
| `xy`, `x|y`, `(x)` | concatenation; alternatives; a group |
| `x*`, `x+`, `x?`, `x{3}`, `x{2,}`, `x{2,5}` | repetition |

An expression must match the entire sequence, as if between `^` and `$`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.random import pick_token

Choice = Callable[[Tensor], Tensor]
"""A map of the log-probabilities [..., v] of one position before a token is drawn, such as top-k truncation."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic finite automaton; its last state is the dead state, which has no way out."""

    table: Int[Tensor, "states v"]
    """The next state for each state and token."""
    accepting: Bool[Tensor, " states"]
    start: int = 0

    def run(self, token: Int[Tensor, "batch n"], state: Int[Tensor, " batch"] | None = None) -> Int[Tensor, " batch"]:
        """Return the state after reading the tokens, from the start state or from given states."""
        state = torch.full((len(token),), self.start) if state is None else state
        for column in token.T:
            state = self.table[state, column]
        return state

    def alive(self, allowed: Bool[Tensor, "n v"]) -> Bool[Tensor, " states"]:
        """Return the states from which some sequence of `n` allowed tokens is accepted."""
        alive = self.accepting
        for row in allowed.flip(0):
            alive = (alive[self.table] & row).any(-1)
        return alive


@dataclass(frozen=True, eq=False)
class Restriction:
    """An automaton on a range of positions: the initial state of each sample and the states allowed at the end."""

    automaton: Automaton
    entry: Int[Tensor, " batch"]
    end: Bool[Tensor, " states"]

    def backward(self, log_probs: Float[Tensor, "batch n v"]) -> Float[Tensor, "batch steps states"]:
        """Return the log-probability of acceptance from each position and state on, [batch, n + 1, states]."""
        batch, length, _ = log_probs.shape
        table = self.automaton.table
        mass = torch.full((batch, length + 1, len(table)), -torch.inf, dtype=torch.float64)
        mass[:, -1, self.end] = 0.0
        for i in reversed(range(length)):
            mass[:, i] = (log_probs[:, i, None] + mass[:, i + 1][:, table]).logsumexp(-1)
        return mass

    def marginals(self, log_probs: Float[Tensor, "batch n v"]) -> Float[Tensor, "batch n v"]:
        """Return the marginal log-probabilities of each position, conditioned on acceptance."""
        free = log_probs.double().cpu()
        mass, table = self.backward(free), self.automaton.table
        occupancy = torch.nn.functional.one_hot(self.entry, len(table)).double()  # [batch, states]: P(state)
        marginal = torch.empty_like(free)
        for i in range(free.shape[1]):
            log_weight = free[:, i, None] + mass[:, i + 1][:, table]  # [batch, states, v]
            joint = occupancy[..., None] * torch.softmax(log_weight, -1).nan_to_num(0.0)
            marginal[:, i] = joint.sum(1)
            occupancy = torch.zeros_like(occupancy).index_add_(1, table.flatten(), joint.flatten(1))
        return marginal.log().to(log_probs)

    def draw(
        self, log_probs: Float[Tensor, "batch n v"], point: Float[Tensor, "batch n"], choice: Choice
    ) -> Int[Tensor, "batch n"]:
        """Return accepted sequences, drawn jointly from left to right; `choice` is applied at each position."""
        free = log_probs.double().cpu()
        mass, table, state = self.backward(free), self.automaton.table, self.entry
        token = torch.empty(free.shape[:2], dtype=torch.long)
        for i in range(free.shape[1]):
            log_weight = free[:, i] + mass[:, i + 1].gather(1, table[state])  # [batch, v]
            token[:, i] = pick_token(choice(torch.log_softmax(log_weight, -1)), point[:, i].cpu())
            state = table[state, token[:, i]]
        return token.to(log_probs.device)


def token_codes(vocabulary: int, base: int, digits: int) -> Automaton:
    """Return the automaton over digits that accepts the codes of tokens, Eq. (39).

    After `j` digits, state `2 j` means that they equal those of the last token's code, `2 j + 1` that they are less.
    """
    last = [(vocabulary - 1) // base ** (digits - 1 - j) % base for j in range(digits)]
    dead = 2 * digits + 2
    table = torch.full((dead + 1, base), dead)
    for j, limit in enumerate(last):
        table[2 * j, :limit] = 2 * j + 3
        table[2 * j, limit] = 2 * j + 2
        table[2 * j + 1] = 2 * j + 3
    accepting = torch.zeros(dead + 1, dtype=torch.bool)
    accepting[2 * digits : 2 * digits + 2] = True
    return Automaton(table, accepting)


MOST_REPEATS = 4096
"""Largest count of a repetition."""
MOST_STATES = 4096
"""Largest number of states of an automaton."""
MOST_NESTED = 32
"""Deepest nesting of groups."""
MOST_STACKED = 4
"""Most repetitions of one part directly after each other, as in `a{2}{3}`; parsing and building are recursive."""
SHOWN = 80
"""Characters of an expression in messages."""

CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdecimal,
    "w": lambda character: character.isalnum() or character == "_",
    "s": str.isspace,
}
"""Letters of the escapes of classes -> whether a character of the model belongs to them, as in Python's `re`."""


@dataclass(frozen=True)
class CharacterSet:
    """Any one character of a set."""

    members: frozenset[str]


@dataclass(frozen=True)
class Concatenation:
    """All parts in order."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Alternatives:
    """Any one of the parts."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeat:
    """A part repeated `low` to `high` times; None: without limit."""

    part: Tree
    low: int
    high: int | None


Tree = CharacterSet | Concatenation | Alternatives | Repeat


def shortened(pattern: str) -> str:
    """Return the beginning of an expression, for messages."""
    return pattern if len(pattern) <= SHOWN else pattern[:SHOWN] + "..."


class Parser:
    """A recursive-descent parser of one expression."""

    def __init__(self, pattern: str, alphabet: str) -> None:
        self.pattern, self.alphabet, self.at, self.depth = pattern, frozenset(alphabet), 0, 0

    def parse(self) -> Tree:
        """Return the syntax tree of the expression."""
        tree = self._alternatives()
        if self.at < len(self.pattern):
            self._fail(f"unmatched {self._peek()!r}")
        return tree

    def _fail(self, reason: str) -> NoReturn:
        raise InputError(f"invalid regex {shortened(self.pattern)!r} at position {self.at}: {reason}")

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _next(self, what: str) -> str:
        if self.at == len(self.pattern):
            self._fail(f"{what} is missing")
        self.at += 1
        return self.pattern[self.at - 1]

    def _alternatives(self) -> Tree:
        parts = [self._concatenation()]
        while self._peek() == "|":
            self.at += 1
            parts.append(self._concatenation())
        return Alternatives(tuple(parts))

    def _concatenation(self) -> Tree:
        parts = []
        while self._peek() not in ("", "|", ")"):
            part, stacked = self._atom(), 0
            while self._peek() and self._peek() in "*+?{":
                part, stacked = Repeat(part, *self._counts()), stacked + 1
                if stacked > MOST_STACKED:
                    self._fail(f"more than {MOST_STACKED} repetitions follow each other")
            parts.append(part)
        return Concatenation(tuple(parts))

    def _counts(self) -> tuple[int, int | None]:
        symbol = self._next("a count")
        if symbol != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[symbol]
        body, closed, _ = self.pattern[self.at :].partition("}")
        low, comma, high = body.partition(",")
        if not (closed and low.isdecimal() and (high.isdecimal() or not high)):
            self._fail("a count must have the form {3}, {2,} or {2,5}")
        if len(body) > SHOWN:  # Python refuses to convert thousands of digits
            self._fail(f"counts must be at most {MOST_REPEATS}")
        self.at += len(body) + 1
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            self._fail(f"counts must be increasing and at most {MOST_REPEATS}, got {{{body}}}")
        return least, most

    def _atom(self) -> Tree:
        symbol = self._next("a character")
        if symbol == "(":
            return self._group()
        if symbol == "[":
            return CharacterSet(self._class())
        if symbol in "*+?{":
            self._fail(f"nothing to repeat before {symbol!r}")
        if symbol == ".":
            return CharacterSet(self.alphabet)
        if symbol == "\\":
            return CharacterSet(self._escaped())
        return CharacterSet(self._known(symbol))

    def _group(self) -> Tree:
        self.depth += 1
        if self.depth > MOST_NESTED:
            self._fail(f"more than {MOST_NESTED} groups are nested")
        inner = self._alternatives()
        if self._next("the closing ')' of a group") != ")":
            self._fail("a group is not closed")
        self.depth -= 1
        return inner

    def _escaped(self) -> frozenset[str]:
        symbol = self._next("the character after a backslash")
        if symbol in CLASSES:
            return frozenset(filter(CLASSES[symbol], self.alphabet))
        if symbol.isalnum():
            self._fail(f"unknown escape '\\{symbol}'; supported are \\d, \\w and \\s")
        return self._known(symbol)

    def _known(self, symbol: str) -> frozenset[str]:
        if symbol not in self.alphabet:
            self._fail(f"the character {symbol!r} is not in the model's vocabulary")
        return frozenset(symbol)

    def _class(self) -> frozenset[str]:
        negated = self._peek() == "^"
        self.at += negated
        members: set[str] = set()
        while (symbol := self._next("the closing ']' of a class")) != "]":
            if symbol == "\\":
                members |= self._escaped()
            elif self._peek() == "-" and self.pattern[self.at + 1 : self.at + 2] not in ("", "]"):
                self.at += 1
                last = self._next("the end of a range")
                members |= {chr(point) for point in range(ord(symbol), ord(last) + 1)}
            else:
                members.add(symbol)
        return frozenset(self.alphabet - members if negated else self.alphabet & members)


@dataclass
class Nondeterministic:
    """A non-deterministic automaton; each state has at most one move by a set of characters, and epsilon moves."""

    moves: list[tuple[frozenset[str], int] | None] = field(default_factory=list)
    epsilon: list[list[int]] = field(default_factory=list)

    def state(self) -> int:
        """Add a state and return its number."""
        if len(self.epsilon) > 16 * MOST_STATES:
            raise InputError(f"the regex needs more than {16 * MOST_STATES} states: reduce its repetitions")
        self.moves.append(None)
        self.epsilon.append([])
        return len(self.epsilon) - 1

    def build(self, tree: Tree, begin: int) -> int:
        """Add the states of a tree that starts in state `begin`, and return its final state."""
        match tree:
            case CharacterSet(members):
                source, end = self.state(), self.state()
                self.epsilon[begin].append(source)
                self.moves[source] = (members, end)
                return end
            case Concatenation(parts):
                for part in parts:
                    begin = self.build(part, begin)
                return begin
            case Alternatives(parts):
                ends = [self.build(part, begin) for part in parts]
                return self._joined(ends)
            case Repeat(part, low, high):
                return self._repeat(part, low, high, begin)

    def _repeat(self, part: Tree, low: int, high: int | None, begin: int) -> int:
        for _ in range(low):
            begin = self.build(part, begin)
        if high is None:
            loop = self._joined([begin])
            self.epsilon[self.build(part, loop)].append(loop)
            return self._joined([loop])
        ends = [begin]
        for _ in range(high - low):
            begin = self.build(part, begin)
            ends.append(begin)
        return self._joined(ends)

    def _joined(self, states: list[int]) -> int:
        joined = self.state()
        for state in states:
            self.epsilon[state].append(joined)
        return joined

    def closure(self, states: set[int]) -> frozenset[int]:
        """Return all states that epsilon moves reach from the given ones."""
        reached, queue = set(states), list(states)
        while queue:
            new = [state for state in self.epsilon[queue.pop()] if state not in reached]
            reached.update(new)
            queue += new
        return frozenset(reached)


def compile_regex(pattern: str, alphabet: str) -> Automaton:
    """Return the automaton whose token `k` is character `k` of the alphabet, or raise an error."""
    nfa = Nondeterministic()
    begin = nfa.state()
    end = nfa.build(Parser(pattern, alphabet).parse(), begin)
    sets = [nfa.closure({begin})]
    number, rows = {sets[0]: 0}, []
    for current in sets:  # grows during the loop
        targets = _targets(nfa, current)
        for target in set(targets.values()) - number.keys():
            number[target] = len(sets)
            sets.append(target)
        if len(sets) > MOST_STATES:
            raise InputError(f"the regex {shortened(pattern)!r} needs more than {MOST_STATES} states")
        rows.append([number[targets[symbol]] if symbol in targets else -1 for symbol in alphabet])
    dead = len(sets)
    table = torch.tensor([*rows, [dead] * len(alphabet)])
    accepting = torch.tensor([*(end in current for current in sets), False])
    return Automaton(table.masked_fill(table < 0, dead), accepting)


def _targets(nfa: Nondeterministic, current: frozenset[int]) -> dict[str, frozenset[int]]:
    """Return the set of states that each character reaches from a set of states."""
    reached: dict[str, set[int]] = {}
    for move in filter(None, (nfa.moves[state] for state in current)):
        for symbol in move[0]:
            reached.setdefault(symbol, set()).add(move[1])
    # Most characters reach the same few sets: compute each closure once.
    closures = {key: nfa.closure(set(key)) for key in map(frozenset, reached.values())}
    return {symbol: closures[frozenset(states)] for symbol, states in reached.items()}
