"""What each of two processes does in test_parallel: `torchrun --nproc-per-node 2 worker.py FOLDER`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from toy import FEW, Toy, blockwise_config, coded_config, failing, toy_config, toy_corpus

from rdlm.errors import InputError, LeaderFailedError
from rdlm.methods import build
from rdlm.random import Draw
from rdlm.storage import checkpoint
from rdlm.train.loop import train
from rdlm.train.parallel import team

PLACE = Path(sys.argv[1])


def run(name: str, parallel: str, trouble: object = None, **training: object) -> None:
    build = partial(Toy, trouble=trouble) if trouble else Toy
    train(toy_config(parallel=parallel, **training), PLACE / name, build, load=toy_corpus)


def crash(draw: Draw) -> float:
    """Both processes fail at step 8."""
    if draw.step == 8:
        raise RuntimeError("struck")
    return 1.0


class Cut(BaseException):
    """The end of the process."""


def cut(folder: Path, step: int, about: object, shards: int) -> Path:
    """Finish checkpoints before step 20; that of step 20 has no name when the process ends."""
    if step == 20:
        raise Cut
    return FINISH(folder, step, about, shards)  # type: ignore[arg-type]


def full(folder: Path, step: int, parts: object, shard: tuple[int, int]) -> None:
    """Write shards, but not that of the second process at step 20."""
    if step == 20 and shard[0] == 1:
        raise InputError("cannot write the checkpoint: no space left on device")
    WRITE(folder, step, parts, shard)  # type: ignore[arg-type]


FINISH, WRITE = checkpoint.finish, checkpoint.write_parts
torch.set_num_threads(1)
with team("cpu"):  # one meeting for all runs
    run("ddp", "ddp")
    run("fsdp", "fsdp")
    if not (PLACE / "fsdp-resumed").exists():
        with pytest.raises(RuntimeError, match="struck"):
            run("fsdp-resumed", "fsdp", crash)
    run("fsdp-resumed", "fsdp")
    run("ddp-muon", "ddp", optimizer="muon")
    run("fsdp-muon", "fsdp", optimizer="muon")
    for parallel in ("ddp", "fsdp"):
        train(blockwise_config(parallel=parallel), PLACE / f"{parallel}-blockwise", build, load=toy_corpus)
    train(blockwise_config(FEW), PLACE / "ddp-uneven", build, load=toy_corpus)
    train(coded_config(parallel="ddp"), PLACE / "ddp-coded", build, load=toy_corpus)
    with pytest.raises(InputError, match="cannot be sharded"):
        train(coded_config(parallel="fsdp"), PLACE / "fsdp-coded", build, load=toy_corpus)
    run("ddp-joined", "ddp")  # one process began these two
    run("fsdp-joined", "fsdp")
    with pytest.MonkeyPatch.context() as patch:  # the leader dies before the checkpoint gets its name
        patch.setattr(checkpoint, "finish", cut)
        patch.setattr(checkpoint, "discard", lambda run, step: None)
        with pytest.raises((Cut, LeaderFailedError)):
            run("fsdp-cut", "fsdp")
    with pytest.MonkeyPatch.context() as patch:  # the second process cannot write
        patch.setattr(checkpoint, "write_parts", full)
        with pytest.raises((InputError, LeaderFailedError)):
            run("fsdp-full", "fsdp")
    # The second process kills itself; torchrun then ends the first one and starts both anew, from the top.
    run("ddp-killed", "ddp", failing(8, PLACE / "mark"))
