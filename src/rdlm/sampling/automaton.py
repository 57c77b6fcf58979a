r"""Finite automata over tokens, and exact inference with them: marginals and joint draws of what they accept.

A model's probabilities are a product over positions. Restricted to the sequences that an automaton accepts they
are a Markov chain over its states, whose sums run backward once, and forward once.

Regular expressions over characters, read into a tree and compiled to an automaton over a model's tokens.

| written | means |
|---|---|
| `a`, `\.` | a character; a backslash takes away a special meaning |
| `.` | any character of the model |
| `[abc]`, `[a-z]`, `[^a-z]` | one of these; one that is none of these |
| `\d`, `\w`, `\s` | a digit; a letter, digit or underscore; a space, tab or line end |
| `xy`, `x|y`, `(x)` | one after the other; one or the other; a group |
| `x*`, `x+`, `x?`, `x{3}`, `x{2,}`, `x{2,5}` | repeated |

An expression describes whole sequences, as if it stood between `^` and `$`.
"""

from __future__ import annotations

import string
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rdlm.errors import InputError
from rdlm.random import pick_token

Choice = Callable[[Tensor], Tensor]
"""What becomes of the log-probabilities [..., v] of one position before a token is drawn from them."""


@dataclass(frozen=True, eq=False)
class Automaton:
    """A deterministic automaton; its last state is the dead one, which nothing leaves."""

    table: Int[Tensor, "states v"]
    """The next state for each state and token."""
    accepting: Bool[Tensor, " states"]
    start: int = 0

    def run(self, token: Int[Tensor, "batch n"], state: Int[Tensor, " batch"] | None = None) -> Int[Tensor, " batch"]:
        """Return the state after reading tokens, from the start or from given states."""
        state = torch.full((len(token),), self.start) if state is None else state
        for column in token.T:
            state = self.table[state, column]
        return state

    def alive(self, allowed: Bool[Tensor, "n v"]) -> Bool[Tensor, " states"]:
        """Return from which states some string of allowed tokens, one per row, is accepted."""
        alive = self.accepting
        for row in allowed.flip(0):
            alive = (alive[self.table] & row).any(-1)
        return alive


@dataclass(frozen=True, eq=False)
class Restriction:
    """An automaton at work on a stretch of positions: where each sample enters and in which states it may leave."""

    automaton: Automaton
    entry: Int[Tensor, " batch"]
    end: Bool[Tensor, " states"]

    def backward(self, log_probs: Float[Tensor, "batch n v"]) -> Float[Tensor, "batch steps states"]:
        """Return the log-mass of accepted rests from each position and state on, [batch, n + 1, states]."""
        batch, length, _ = log_probs.shape
        table = self.automaton.table
        mass = torch.full((batch, length + 1, len(table)), -torch.inf, dtype=torch.float64)
        mass[:, -1, self.end] = 0.0
        for i in reversed(range(length)):
            mass[:, i] = (log_probs[:, i, None] + mass[:, i + 1][:, table]).logsumexp(-1)
        return mass

    def marginals(self, log_probs: Float[Tensor, "batch n v"]) -> Float[Tensor, "batch n v"]:
        """Return each position's log-probabilities among the accepted sequences."""
        law = log_probs.double().cpu()
        mass, table = self.backward(law), self.automaton.table
        place = torch.nn.functional.one_hot(self.entry, len(table)).double()  # the law of the state
        result = torch.empty_like(law)
        for i in range(law.shape[1]):
            onward = law[:, i, None] + mass[:, i + 1][:, table]  # [batch, states, v]
            joint = place[..., None] * torch.softmax(onward, -1).nan_to_num(0.0)
            result[:, i] = joint.sum(1)
            place = torch.zeros_like(place).index_add_(1, table.flatten(), joint.flatten(1))
        return result.log().to(log_probs)

    def draw(
        self, log_probs: Float[Tensor, "batch n v"], point: Float[Tensor, "batch n"], choice: Choice
    ) -> Int[Tensor, "batch n"]:
        """Return sequences drawn jointly from the accepted ones, left to right, `choice` applied at each position."""
        law = log_probs.double().cpu()
        mass, table, state = self.backward(law), self.automaton.table, self.entry
        token = torch.empty(law.shape[:2], dtype=torch.long)
        for i in range(law.shape[1]):
            onward = law[:, i] + mass[:, i + 1].gather(1, table[state])
            token[:, i] = pick_token(choice(torch.log_softmax(onward, -1)), point[:, i].cpu())
            state = table[state, token[:, i]]
        return token.to(log_probs.device)


def token_codes(vocabulary: int, base: int, digits: int) -> Automaton:
    """Return the automaton over digits that accepts the codes of existing tokens, Eq. (39).

    State `2 j` has read `j` digits that begin the last token's code, `2 j + 1` a smaller beginning.
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
MOST_STATES = 4096
"""States of the largest automaton that is built."""

DIGITS = frozenset(string.digits)
CLASSES = {"d": DIGITS, "w": frozenset(string.ascii_letters) | DIGITS | {"_"}, "s": frozenset(" \t\n\r")}


@dataclass(frozen=True)
class Characters:
    """One character of a set."""

    members: frozenset[str]


@dataclass(frozen=True)
class Row:
    """Parts one after the other."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Either:
    """One of several parts."""

    parts: tuple[Tree, ...]


@dataclass(frozen=True)
class Repeat:
    """A part between `low` and `high` times; None: any number of times."""

    part: Tree
    low: int
    high: int | None


Tree = Characters | Row | Either | Repeat


class Parser:
    """A recursive descent through one expression."""

    def __init__(self, pattern: str, alphabet: str) -> None:
        self.pattern, self.alphabet, self.at = pattern, frozenset(alphabet), 0

    def parse(self) -> Tree:
        """Return the tree of the whole expression."""
        tree = self._either()
        if self.at < len(self.pattern):
            self._fail(f"{self._peek()!r} closes nothing")
        return tree

    def _fail(self, reason: str) -> NoReturn:
        raise InputError(f"the regex {self.pattern!r} is wrong at position {self.at}: {reason}")

    def _peek(self) -> str:
        return self.pattern[self.at : self.at + 1]

    def _next(self, what: str) -> str:
        if self.at == len(self.pattern):
            self._fail(f"{what} is missing")
        self.at += 1
        return self.pattern[self.at - 1]

    def _either(self) -> Tree:
        parts = [self._row()]
        while self._peek() == "|":
            self.at += 1
            parts.append(self._row())
        return Either(tuple(parts))

    def _row(self) -> Tree:
        parts = []
        while self._peek() not in ("", "|", ")"):
            part = self._atom()
            while self._peek() and self._peek() in "*+?{":
                part = Repeat(part, *self._counts())
            parts.append(part)
        return Row(tuple(parts))

    def _counts(self) -> tuple[int, int | None]:
        symbol = self._next("a count")
        if symbol != "{":
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[symbol]
        body, closed, _ = self.pattern[self.at :].partition("}")
        low, comma, high = body.partition(",")
        if not (closed and low.isdecimal() and (high.isdecimal() or not high)):
            self._fail("a count is written {3}, {2,} or {2,5}")
        self.at += len(body) + 1
        least, most = int(low), int(high) if high else None if comma else int(low)
        if max(least, most or 0) > MOST_REPEATS or (most is not None and most < least):
            self._fail(f"counts must rise and be at most {MOST_REPEATS}, got {{{body}}}")
        return least, most

    def _atom(self) -> Tree:
        symbol = self._next("a character")
        if symbol == "(":
            inner = self._either()
            if self._next("the end ')' of a group") != ")":
                self._fail("a group is not closed")
            return inner
        if symbol == "[":
            return Characters(self._class())
        if symbol in "*+?{":
            self._fail(f"{symbol!r} has nothing before it to repeat")
        if symbol == ".":
            return Characters(self.alphabet)
        if symbol == "\\":
            return Characters(self._escaped())
        return Characters(self._known(symbol))

    def _escaped(self) -> frozenset[str]:
        symbol = self._next("what follows a backslash")
        if symbol in CLASSES:
            return CLASSES[symbol]
        if symbol.isalnum():
            self._fail(f"'\\{symbol}' has no meaning here; known are \\d, \\w and \\s")
        return self._known(symbol)

    def _known(self, symbol: str) -> frozenset[str]:
        if symbol not in self.alphabet:
            self._fail(f"the model does not know the character {symbol!r}")
        return frozenset(symbol)

    def _class(self) -> frozenset[str]:
        negated = self._peek() == "^"
        self.at += negated
        members: set[str] = set()
        while (symbol := self._next("the end ']' of a class")) != "]":
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
class Machine:
    """A non-deterministic machine: moves by sets of characters, and free moves."""

    moves: list[tuple[frozenset[str], int] | None] = field(default_factory=list)
    free: list[list[int]] = field(default_factory=list)

    def state(self) -> int:
        """Return a new state."""
        if len(self.free) > 16 * MOST_STATES:
            raise InputError("the regex is too large: it repeats too much")
        self.moves.append(None)
        self.free.append([])
        return len(self.free) - 1

    def build(self, tree: Tree, begin: int) -> int:
        """Return the state in which the tree ends when it is read from the state `begin`."""
        match tree:
            case Characters(members):
                here, end = self.state(), self.state()
                self.free[begin].append(here)
                self.moves[here] = (members, end)
                return end
            case Row(parts):
                for part in parts:
                    begin = self.build(part, begin)
                return begin
            case Either(parts):
                ends = [self.build(part, begin) for part in parts]
                return self._joined(ends)
            case Repeat(part, low, high):
                return self._repeat(part, low, high, begin)

    def _repeat(self, part: Tree, low: int, high: int | None, begin: int) -> int:
        for _ in range(low):
            begin = self.build(part, begin)
        if high is None:
            again = self._joined([begin])
            self.free[self.build(part, again)].append(again)
            return self._joined([again])
        ends = [begin]
        for _ in range(high - low):
            begin = self.build(part, begin)
            ends.append(begin)
        return self._joined(ends)

    def _joined(self, states: list[int]) -> int:
        joined = self.state()
        for state in states:
            self.free[state].append(joined)
        return joined

    def closure(self, states: set[int]) -> frozenset[int]:
        """Return all that is reached by free moves."""
        found, waiting = set(states), list(states)
        while waiting:
            fresh = [state for state in self.free[waiting.pop()] if state not in found]
            found.update(fresh)
            waiting += fresh
        return frozenset(found)


def compile_regex(pattern: str, alphabet: str) -> Automaton:
    """Return the automaton whose token `k` is the alphabet's character `k`; mistakes in the pattern are named."""
    machine = Machine()
    begin = machine.state()
    end = machine.build(Parser(pattern, alphabet).parse(), begin)
    sets = [machine.closure({begin})]
    number, rows = {sets[0]: 0}, []
    for current in sets:  # grows while it is walked
        onward = _onward(machine, current)
        for target in set(onward.values()) - number.keys():
            number[target] = len(sets)
            sets.append(target)
        if len(sets) > MOST_STATES:
            raise InputError(f"the regex {pattern!r} needs more than {MOST_STATES} states")
        rows.append([number[onward[symbol]] if symbol in onward else -1 for symbol in alphabet])
    dead = len(sets)
    table = torch.tensor([*rows, [dead] * len(alphabet)])
    accepting = torch.tensor([*(end in current for current in sets), False])
    return Automaton(table.masked_fill(table < 0, dead), accepting)


def _onward(machine: Machine, current: frozenset[int]) -> dict[str, frozenset[int]]:
    """Return the set of states that each character leads to from a set of states."""
    reached: dict[str, set[int]] = {}
    for move in filter(None, (machine.moves[state] for state in current)):
        for symbol in move[0]:
            reached.setdefault(symbol, set()).add(move[1])
    # Most characters lead to the same few sets: each is closed once.
    closures = {key: machine.closure(set(key)) for key in map(frozenset, reached.values())}
    return {symbol: closures[frozenset(states)] for symbol, states in reached.items()}
