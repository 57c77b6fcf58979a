"""The queue of curves: one at a time, a few that wait, and nothing else delayed."""

from __future__ import annotations

import asyncio
import threading

import pytest

from rdlm.serve import trajectory
from rdlm.serve.http_errors import HttpError


def test_a_flood_of_curves_is_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes a thread for a tenth of a second; 200 at once delayed a short completion by 16 s."""
    begun, go = [], threading.Event()

    def slow(*given: object) -> dict[str, object]:
        begun.append(given)
        assert go.wait(30)
        return {"given": given}

    monkeypatch.setattr(trajectory, "curves", slow)

    async def flood() -> list[object]:
        queue = trajectory.CurveQueue()
        asked = [asyncio.create_task(queue.compute("masked", noise, "linear", 28)) for noise in range(1, 41)]
        await asyncio.sleep(0.2)
        assert len(begun) == 1 and sum(task.done() for task in asked) == 40 - trajectory.MOST_WAITING
        go.set()
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert await queue.compute("masked", 99, "linear", 28)  # there is room again
        return list(found)

    found = asyncio.run(flood())
    refused = [one for one in found if isinstance(one, HttpError)]
    assert len(refused) == 40 - trajectory.MOST_WAITING and {one.status for one in refused} == {429}
    assert all("Retry-After" in one.headers for one in refused)
