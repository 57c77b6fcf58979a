"""Data-parallel training with DDP or FSDP2.

`torchrun --nproc-per-node N -m rdlm train ...` starts N processes, the first of which leads: it writes files and
prints. Without torchrun there is one process and no communication. Processes exchange tensors only.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from rdlm.config import RunConfig, TrainingConfig
from rdlm.errors import DivergedError, InputError, LeaderFailedError
from rdlm.model.network import compile_network, device_of
from rdlm.process.tokens import Codes

TIMEOUT = timedelta(minutes=30)
"""Time for which a process waits for the others: the leader may be downloading a corpus."""

RELEASE = 0.2
"""Seconds for which a process waits before it ends: gloo's threads release the tensors of finished collectives, for
which they need the interpreter, and one that asks for it during finalization aborts the process (7 of 20 runs)."""

CPU = torch.device("cpu")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Team:
    """This process in the group of processes."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Whether this process is the leader, which writes files and prints."""
        return self.rank == 0

    def add(self, values: Sequence[float]) -> list[float]:
        """Return the sum of each number over all processes."""
        if self.world == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        total: list[float] = sums.tolist()
        return total

    def decide(self, decision: Callable[[], int]) -> int:
        """Return the leader's result, a whole number >= 0; if the leader fails, the others raise LeaderFailedError."""
        if self.world == 1:
            return decision()
        answer = torch.full((), -1, dtype=torch.int64, device=self.device)
        try:
            if self.leads:
                answer.fill_(decision())
        finally:
            distributed.broadcast(answer, 0)
        if answer < 0:
            raise LeaderFailedError("the leading process failed")
        return int(answer)

    def together(self, work: Callable[[], object]) -> None:
        """Run `work` in all processes; if it fails in one, the others raise LeaderFailedError."""
        error: Exception | None = None
        try:
            work()
        except (InputError, DivergedError) as found:
            error = found
        failures = self.add([error is not None])[0]
        if error is not None:
            raise error
        if failures:
            raise LeaderFailedError("another process failed")

    def leader_first(self, work: Callable[[], Value]) -> Value:
        """Return this process's result of `work`; the leader runs it first, which fills the caches."""
        results = []

        def done() -> int:
            results.append(work())
            return 0

        self.decide(done)
        return results[0] if results else work()

    def share(self, network: nn.Module, config: TrainingConfig) -> nn.Module:
        """Return the module to call in place of `network`; FSDP shards the parameters of `network` in place."""
        call: nn.Module = MixedPrecision(network, self.device.type) if config.precision == "bfloat16" else network
        if config.compile:
            compile_network(network, self.device, "training.compile")
        if self.world == 1:
            return call
        if config.parallel == "fsdp":
            if any(isinstance(module, Codes) for module in network.modules()):
                raise InputError("process.codes learned cannot be sharded by training.parallel fsdp: use ddp")
            shard(network, self)
            return call
        indices = [self.device.index] if self.device.type == "cuda" else None
        # Buffers are constant tables. Broadcast in each forward pass, they would make the processes wait for each other
        # without end as soon as one of them draws a step with one forward pass and another a step with two.
        with warnings.catch_warnings():  # its successor since torch 2.13 sends them once, at the beginning
            warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
            return DistributedDataParallel(call, indices, broadcast_buffers=False)


def check_equal_passes(config: RunConfig, rows: int) -> None:
    """Raise InputError where sharded processes, with `rows` sequences each, would draw unequal numbers of passes.

    With FSDP every forward pass communicates, so that all processes need the same number of them in a step.
    """
    blockwise = config.objective.blockwise * rows if config.method == "rdlm" else 0.0
    if config.model.self_condition:
        raise InputError(
            "fsdp does not support model.self_condition, which has two passes in some steps: use training.parallel ddp"
        )
    if 0 < blockwise < 1 or rows - 1 < blockwise < rows:
        raise InputError(
            f"with objective.blockwise {config.objective.blockwise} and {rows} sequences per process, some steps have "
            "only blockwise ones or none: increase training.batch, or use training.parallel ddp"
        )


class MixedPrecision(nn.Module):
    """A network under bfloat16 autocast, which excludes the code around it, such as the geometry."""

    def __init__(self, network: nn.Module, device_type: str) -> None:
        super().__init__()
        self.network = network
        self.device_type = device_type

    def forward(self, *inputs: Any, **options: Any) -> Tensor:
        """Return the output of the network."""
        with torch.autocast(self.device_type, torch.bfloat16):
            output: Tensor = self.network(*inputs, **options)
        return output


def shard(network: nn.Module, team: Team) -> None:
    """Shard the parameters over all processes in place: each block of the network separately, then the rest."""
    # The logits are a view, which is unsafe to modify in place; no code does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = init_device_mesh(team.device.type, (team.world,))
    blocks = [block for stack in network.modules() if isinstance(stack, nn.ModuleList) for block in stack]
    # By default the outermost module would stay unsharded after a forward pass without backward, as in validation.
    for module in (*blocks, network):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


@contextmanager
def gradient_sync(call: nn.Module, network: nn.Module, last: bool) -> Iterator[None]:
    """Average the gradients of a pass over all processes only if it is the `last` one of the step."""
    if isinstance(network, FSDPModule):
        network.set_requires_gradient_sync(last)
    if isinstance(call, DistributedDataParallel) and not last:
        with call.no_sync():
            yield
    else:
        yield


def unsharded(tensor: Tensor) -> Tensor:
    """Return an unsharded copy of a tensor on the CPU; all processes must call this for a sharded tensor."""
    found = tensor.detach()
    return (found.full_tensor() if isinstance(found, DTensor) else found).cpu()


def local_shard(tensor: Tensor) -> Tensor:
    """Return this process's rows of a sharded tensor on the CPU, or the tensor."""
    found = tensor.detach()
    return (found.to_local() if isinstance(found, DTensor) else found).cpu()


def local_rows(tensors: Mapping[str, Tensor]) -> dict[str, tuple[int, int]]:
    """Return the first and the last row + 1 that this process has of each sharded tensor, as `shard` divides them."""
    found = {}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            rows, size = tensor.shape[0], -(-tensor.shape[0] // tensor.device_mesh.size())
            first = min(tensor.device_mesh.get_local_rank() * size, rows)
            found[name] = first, min(first + size, rows)
    return found


def sharded_like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return an unsharded `value` with the sharding of a tensor."""
    if not isinstance(tensor, DTensor):
        return value
    # Every process has the value: no communication is needed.
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def assign(tensor: Tensor, value: Tensor) -> None:
    """Copy a value, whole or this process's rows of it, into a tensor that may be sharded."""
    if isinstance(tensor, DTensor) and value.shape == tensor.to_local().shape:
        tensor.to_local().copy_(value)
    else:
        tensor.copy_(sharded_like(tensor, value))


@contextmanager
def team(device: str = "auto", environment: Mapping[str, str] = os.environ) -> Iterator[Team]:
    """Context manager: join the process group of torchrun, if any, and leave it on success."""
    world, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
    chosen = device_of(device, int(environment.get("LOCAL_RANK", "0")), "training.device")
    if world == 1:
        yield Team(device=chosen)
        return
    if chosen.type == "mps":
        raise InputError("the device mps supports one process only; choose --training.device cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    existing = distributed.is_initialized()
    if not existing:
        _initialize(chosen, environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    try:
        yield Team(rank, world, chosen)
        # Not after an error: this would wait for processes that may have died.
        if not existing:
            distributed.destroy_process_group()
    finally:
        if not existing:
            time.sleep(RELEASE)


def _initialize(device: torch.device, attempt: str) -> None:
    store, rank, world = next(rendezvous("env://", timeout=TIMEOUT))
    # After a restart torchrun may provide the same store, which still has the addresses of dead processes.
    store = PrefixStore(f"rdlm-{attempt}", store)
    # Two backends: nccl for tensors on a GPU, gloo for tensors in memory.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=TIMEOUT)
