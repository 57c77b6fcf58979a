"""Peak memory of a training step on one sphere of 30,523 coordinates, each measured in a process of its own.

`python -m benchmarks.memory (rdlm | network) BATCH LENGTH WIDTH LAYERS` prints by how much a step raises the peak.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import Figure, at_most

FLOAT = 4


def memory(quick: bool) -> list[Figure]:
    """Return the step's peak over that of the network on dense features, and over logits and states alone."""
    batch, length, width, layers = (8, 64, 64, 2) if quick else (8, 128, 256, 6)
    peaks = {
        name: [_peak(name, batch, length, width, layers) for _ in range(1 if quick else 3)]
        for name in ("rdlm", "network")
    }
    both = batch * length * (30522 + 30523) * FLOAT
    name, note = "peak memory, 30,522 tokens on one sphere", "activations included"
    against = [peak / both for peak in peaks["rdlm"]]
    network = [ours / theirs for ours, theirs in zip(peaks["rdlm"], peaks["network"], strict=True)]
    least = sum(peaks["network"]) / len(peaks["network"]) / both
    return [
        Figure(name, "logits and states alone", against, at_most(1.3), None, f"{note}; the network alone {least:.2f}"),
        Figure(name, "the network on dense features", network, None, None, note),
    ]


def _peak(subject: str, *sizes: int) -> int:
    command = [sys.executable, "-m", "benchmarks.memory", subject, *map(str, sizes)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _in_memory(now: bool) -> int:
    """Return the bytes that the process has in memory now, or had at its peak.

    Linux tells both, of this program alone; its `ru_maxrss` goes on from the parent's. Elsewhere there is only that.
    """
    page = Path("/proc/self/status")
    if page.exists():
        kilobytes = re.search(rf"{'VmRSS' if now else 'VmHWM'}:\s+(\d+) kB", page.read_text())
        assert kilobytes is not None
        return 1024 * int(kilobytes[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main(subject: str, batch: int, length: int, width: int, layers: int) -> None:
    """Print the bytes that a step of `subject` needs beyond what stood before it."""
    import torch

    from benchmarks.subject import ONE_SPHERE, PIECES, PLAIN, method, network_on_features, tokens, training_step
    from rdlm.config import RunConfig, TransformerConfig

    torch.set_num_threads(1)
    config = TransformerConfig(width=width, layers=layers)
    few, ids = tokens(PIECES, 1, 1), tokens(PIECES, batch, length)
    # A small step first: libraries and tables are in memory then.
    if subject == "rdlm":
        trainee = method(RunConfig(process=ONE_SPHERE, denoiser=PLAIN, model=config), PIECES)
        training_step(trainee, few)()
        before = _in_memory(now=True)
        training_step(trainee, ids)()
    else:
        step = network_on_features(config, PIECES)
        step(torch.rand(1, 1, PIECES), few)
        before = _in_memory(now=True)
        step(torch.rand(*ids.shape, PIECES), ids)
    print(_in_memory(now=False) - before)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
