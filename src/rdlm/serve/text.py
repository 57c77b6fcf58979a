"""The text of a sample while it settles: pieces that never change again, and the place where it stops.

A sample's tokens become final in any order, so only those that have nothing open before them can be sent. For a model
whose positions run together that is everything at once, at the end; from left to right, or window by window past the
model's length, the text grows as it is written. The pieces always add up to the whole.
"""

from __future__ import annotations

from collections.abc import Sequence

from rdlm.data.tokenizer import Tokenizer

UNREADABLE = "\ufffd"
"""What stands for bytes that are no character, or not yet a whole one."""


class Draft:
    """The text of tokens `begin` to `end` of a sample, as far as it is settled."""

    def __init__(self, tokenizer: Tokenizer, begin: int, end: int, stops: Sequence[str] = ()) -> None:
        self.tokenizer, self.begin, self.end, self.stops = tokenizer, begin, end, stops
        self.ids: list[int] = []
        self.stopped = False
        """Whether a stop has been met: nothing that comes later matters."""
        self._sent = ""

    def add(self, settled: Sequence[int]) -> str:
        """Return the text that has become certain with some more settled tokens."""
        if self.stopped or not settled:
            return ""
        self.ids += settled
        text = self.tokenizer.decode(self.ids[self.begin : self.end]).rstrip(UNREADABLE)
        cut = self._cut(text)
        if cut is not None:
            return self._send(text[:cut])
        # What may yet turn out to be the beginning of a stop is held back.
        held = max((len(stop) for stop in self.stops), default=1) - 1
        return self._send(text[: max(len(text) - held, 0)])

    def finish(self, tokens: Sequence[int]) -> str:
        """Return the rest of the text, now that all tokens are known."""
        if self.stopped:
            return ""
        text = self.tokenizer.decode(tokens[self.begin : self.end])
        cut = self._cut(text)
        return self._send(text if cut is None else text[:cut])

    @property
    def text(self) -> str:
        """Return all that was returned so far."""
        return self._sent

    @property
    def reason(self) -> str:
        """Return why the text ends, in OpenAI's words."""
        return "stop" if self.stopped else "length"

    def _cut(self, text: str) -> int | None:
        """Return where the first stop begins."""
        found = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        self.stopped = bool(found)
        return min(found, default=None)

    def _send(self, text: str) -> str:
        piece = text[len(self._sent) :]
        self._sent += piece
        return piece
