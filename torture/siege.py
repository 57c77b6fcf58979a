"""Attacks on the service: malformed requests, generated requests and a load test, after which it must have recovered.

`python torture/siege.py --requests 600 --seconds 5` runs this part of the campaign alone.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import secrets
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "serve"))

from abuse import abuse
from crowd import Crowd, crowd
from description import misuse
from process import become_ordinary
from running import Served, save, serving
from wire import Tally, Target

from rdlm.data.tokenizer import Levels, bases

TOKEN = secrets.token_hex(16)
"""Made anew each time: what stands in a source may be drawn by a fuzzer, and quoted back to it."""
CREW = 8
"""Clients that send hand-made abuses at the same time."""
ROUND = 2000
"""Requests between two signs of progress."""
TOLERANCE = 16.0
"""Megabytes by which the service may have grown when all is over, beyond what it took after a tenth of it.

Some 25,000 requests lie between the two, so that a leak of more than 0.7 kB of each is noticed; `test_abuse` sees that
one is, and `serve/test_memory` finds a leak of a single object of each. What the service has in use stays within 2 MB;
the rest are pages of its heap on which something small is left: 7 MB after 30,000 requests, 9 MB after 8,000.
"""
REST = 6.0
"""Seconds that the service is left alone before its memory is measured: it gives some back when it rests."""
SILENT = 300
"""Lines on which nothing, or half a head, is ever sent, while others are served."""
LIMITS = ("--steps", "4", "--queue", "32", "--threads", "1")


@dataclass
class Siege:
    """The results of all attacks on the service."""

    tally: Tally = field(default_factory=Tally)
    crowd: Crowd | None = None
    level: float = 0.0
    """Megabytes of the service after it was warmed up, and"""
    after: float = 0.0
    """when all was over."""
    rounds: list[float] = field(default_factory=list)
    """Megabytes after each round of abuses."""
    seconds: float = 0.0
    defects: list[str] = field(default_factory=list)

    @property
    def requests(self) -> int:
        """The number of requests."""
        return self.tally.tried.total() + (0 if self.crowd is None else self.crowd.sent)

    def summary(self) -> dict[str, object]:
        """Return the results as JSON values."""
        found: dict[str, object] = {
            "abuses": dict(self.tally.tried),
            "answers": dict(self.tally.answered),
            "megabytes before": self.level,
            "megabytes after rounds": self.rounds,
            "megabytes after": self.after,
            "seconds": round(self.seconds, 1),
            "defects": len(self.defects),
        }
        if self.crowd is not None:
            times = {code: self.crowd.percentiles(code) for code in self.crowd.answered}
            found |= {"crowd": dict(self.crowd.answered), "crowd, milliseconds": times, "crowd sent": self.crowd.sent}
        return found

    def lines(self) -> list[str]:
        """Return the results as lines of text."""
        kinds = ", ".join(f"{name} {count}" for name, count in self.tally.tried.most_common())
        codes = ", ".join(f"{code}: {count}" for code, count in sorted(self.tally.answered.items()))
        found = [f"service: {self.tally.tried.total()} abuses ({kinds}); answers {codes}"]
        found += [] if self.crowd is None else [self.crowd.line()]
        memory = f"{SILENT} silent lines beside them, {self.level:.0f} MB before and {self.after:.0f} MB after"
        lost = f"lost: {len(self.defects)} ({self.seconds:.0f} s)"
        return [*found, f"service: {self.requests} requests, {memory}; {lost}"]


class Fortress:
    """A service with a token and small models, whose log is checked at the end."""

    def __init__(self, served: Served, place: Path, seed: int) -> None:
        host, _, port = served.url.removeprefix("http://").rpartition(":")
        self.served, self.target, self.seed = served, Target(host, int(port), TOKEN), seed
        self.secrets = (TOKEN, str(place), str(Path(__file__).parents[1]), sys.prefix)

    @property
    def megabytes(self) -> float:
        """Return the resident memory of the service."""
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.served.process.pid}/status").read_text())
        assert found is not None
        return int(found[1]) / 1024

    def abused(self, count: int, seed: int) -> Tally:
        """Send abusive and generated requests from several clients at once, and return the results."""
        drawn = count * 2 // 5
        with ThreadPoolExecutor(CREW + 1) as crew:
            parts = [crew.submit(misuse, self.target, drawn, seed, self.secrets)]
            share = -(-(count - drawn) // CREW)
            for number in range(CREW):
                parts.append(crew.submit(abuse, self.target, share, CREW * seed + number, self.secrets))
            return sum((part.result() for part in parts), Tally())

    @contextmanager
    def silent(self, count: int) -> Iterator[None]:
        """Hold idle connections: without a request, with half a header, or with a stream that is never read."""
        half = self.target.head("POST", "/v1/completions", "Content-Type: application/json")[:-7]
        unread = self.target.post("/v1/trajectory", b'{"prompt": "a", "steps": 4}')
        with contextlib.ExitStack() as stack:
            for number in range(count):
                line = stack.enter_context(socket.create_connection((self.target.host, self.target.port), timeout=60))
                line.sendall((b"", half, b"GET", unread if number % 40 == 3 else b"")[number % 4])
            yield

    def quiet(self) -> float:
        """Return the resident memory some seconds after the last request has ended."""
        for _ in range(240):
            time.sleep(0.25)
            if not any(self.served.counted(name) for name in ("rdlm_live_samples", "rdlm_waiting_samples")):
                break
        time.sleep(REST)
        return self.megabytes

    def broken(self) -> list[str]:
        """Return signs that the service has not recovered: dead, not ready, or still busy."""
        found = [] if self.served.process.poll() is None else ["the process has ended"]
        if not found:
            found += [] if self.served.get("/readyz").status_code == 200 else ["the service is not ready"]
            found += ["samples are left over"] if self.served.counted("rdlm_live_samples") else []
        return found


def silence(line: str) -> None:
    """Print nothing."""


def besiege(
    place: Path,
    requests: int,
    clients: int,
    seconds: float,
    seed: int = 0,
    say: Callable[[str], object] = silence,
    program: Sequence[str] = ("-m", "rdlm"),
) -> Siege:
    """Send requests, then run the load test, and return the results.

    The service is started below `place`, where its home and its temporary files are, too: whatever it writes there is
    a defect.
    """
    begin, siege, log, home, cache = time.monotonic(), Siege(), place / "messages.txt", place / "home", place / "cache"
    home.mkdir(parents=True)
    runs = [str(save(place / "plain")), str(save(place / "baseline", method="mdlm"))]
    runs.append(str(save(place / "classed", corpus={"classes": ["cat", "dog"]})))
    runs.append(str(save(place / "image", Levels(4), corpus={"kind": "image", "length": 16, "image": [4, 4, 1]})))
    runs.append(str(save(place / "dna", bases(), corpus={"kind": "dna"})))
    written = stamps(place)
    environment = {"RDLM_TOKEN": TOKEN, "HOME": str(home), "TMPDIR": str(home), "RDLM_CACHE": str(cache)}
    with (
        log.open("w") as messages,
        serving(
            *runs, *LIMITS, messages=messages, program=program, cwd=home, prepare=become_ordinary, **environment
        ) as served,
    ):
        fortress = Fortress(served, place, seed)
        say("service: warmed up by a tenth of it")
        siege.tally += fortress.abused(requests // 10, seed=seed)
        siege.defects += crowd(fortress.target, clients, seconds / 10).defects
        siege.level = fortress.quiet()
        with fortress.silent(min(SILENT, requests)):
            while (left := requests - siege.tally.tried.total()) > 0:
                siege.tally += fortress.abused(min(left, ROUND), seed=seed + siege.tally.tried.total())
                siege.rounds.append(fortress.megabytes)
                count, defects = siege.tally.tried.total(), len(siege.tally.defects)
                say(f"service: {count} abuses, {siege.rounds[-1]:.0f} MB, {defects} defects")
        siege.crowd = crowd(fortress.target, clients, seconds, fortress.secrets)
        say(siege.crowd.line())
        siege.after = fortress.quiet()
        siege.defects += fortress.broken()
    siege.defects += siege.tally.defects + siege.crowd.defects + failures(log.read_text(errors="replace"))
    touched = {path for path, _ in stamps(place) ^ written} - {log}
    siege.defects += [f"{path} was written" for path in sorted(touched) if not path.is_relative_to(cache)]
    if siege.after > siege.level + TOLERANCE:
        siege.defects.append(f"the service has grown from {siege.level:.0f} to {siege.after:.0f} MB")
    siege.seconds = time.monotonic() - begin
    return siege


def stamps(place: Path) -> set[tuple[Path, int]]:
    """Return all files below a folder with their modification times."""
    return {(path, path.stat().st_mtime_ns) for path in place.rglob("*") if path.is_file()}


def failures(log: str) -> list[str]:
    """Return the defects in the log of the service."""
    return [f"the log: {part[:1500]}" for part in re.findall(r"(?s)Traceback.*?(?=\nrdlm: |\Z)", log)][:5]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name, count in {"requests": 10_000, "clients": 200, "seconds": 60, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=count)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rdlm-siege-") as place:
        siege = besiege(
            Path(place),
            options.requests,
            options.clients,
            options.seconds,
            options.seed,
            lambda line: print(line, file=sys.stderr, flush=True),
        )
    print("\n".join([*siege.defects[:50], *siege.lines()]))
    return 1 if siege.defects else 0


if __name__ == "__main__":
    sys.exit(main())
