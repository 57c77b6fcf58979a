"""The table of estimated error rates."""

from __future__ import annotations

from experiments.error_rates import summary


def test_estimates_are_judged_by_the_share_that_is_really_wrong() -> None:
    about = {"corpus": "text8", "channel": "keyboard", "rate": "0.1"}
    pairs = (("0.1000", "0.109"), ("0.0800", "0.092"))
    ends = {"low": "0.07", "high": "0.09"}
    rows = [{**about, **ends, "text": str(at), "share": one, "found": found} for at, (one, found) in enumerate(pairs)]
    (found,) = summary([*rows])
    assert (found["texts"], found["within_10%"], found["in_interval"]) == (2, 1, 1)
    assert (found["mean_%"], found["worst_%"]) == ("+12.0", "+15.0")
