"""Two processes that are timed: what they have measured outlives the way in which they leave."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.multiprocessing.spawn import ProcessExitedException

from benchmarks import processes

TAKEN = {
    f"{clock} {number}": [1.0 + (number == "two")]
    for clock in ("wall clock", "processor time")
    for number in ("one", "two")
}


@pytest.mark.parametrize("measured", [True, False])
def test_a_process_that_dies_on_leaving_spoils_nothing(measured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def dying(member: object, given: tuple[str, bool], world: int) -> None:
        if measured:
            (Path(given[0]) / "taken.json").write_text(json.dumps(TAKEN))
        raise ProcessExitedException("process 0 terminated", error_index=0, error_pid=1, exit_code=-6)

    monkeypatch.setattr(processes, "spawn", dying)
    if measured:
        assert [figure.ratio for figure in processes.parallel(True)] == [0.5, 0.5]
    else:
        with pytest.raises(ProcessExitedException):
            processes.parallel(True)
