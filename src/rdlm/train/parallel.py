"""Several processes as one: who leads, what is added up, and how the network is shared (DDP or FSDP2).

`torchrun --nproc-per-node N -m rdlm train ...` starts N of them; without torchrun a team has one member and nothing
here communicates. What crosses between processes are plain tensors.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.rendezvous import rendezvous
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from rdlm.config import TrainingConfig
from rdlm.errors import InputError

PATIENCE = timedelta(minutes=30)
"""How long a member waits for the others: the leader may be fetching a corpus."""

CPU = torch.device("cpu")
Answer = TypeVar("Answer")


class LeaderFailedError(RuntimeError):
    """The leading process failed and says why; the others stop without a word of their own."""


@dataclass(frozen=True)
class Team:
    """This process among its peers."""

    rank: int = 0
    world: int = 1
    device: torch.device = CPU

    @property
    def leads(self) -> bool:
        """Return whether this process writes files and talks to people."""
        return self.rank == 0

    def add(self, values: Sequence[float]) -> list[float]:
        """Return the sums of each number over all members."""
        if self.world == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        total: list[float] = sums.tolist()
        return total

    def decide(self, decision: Callable[[], int]) -> int:
        """Return the whole number, at least 0, that the leader decides; its failure ends the others too."""
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

    def leader_first(self, work: Callable[[], Answer]) -> Answer:
        """Return every member's own result of `work`, which the leader does first: it fills the caches."""
        results = []

        def done() -> int:
            results.append(work())
            return 0

        self.decide(done)
        return results[0] if results else work()

    def share(self, network: nn.Module, config: TrainingConfig) -> nn.Module:
        """Return what to call instead of `network`, whose parameters may become sharded in place."""
        call: nn.Module = Mixed(network, self.device.type) if config.precision == "bfloat16" else network
        if config.compile:
            if self.device.type == "cpu" and " " in torch.__file__:
                raise InputError(
                    f"training.compile: torch's compiler fails in a folder with a space in its name, {torch.__file__}: "
                    "install rdlm elsewhere, or leave training.compile out"
                )
            network.compile()
        if self.world == 1:
            return call
        if config.parallel == "fsdp":
            shard(network, self)
            return call
        indices = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(call, indices)


class Mixed(nn.Module):
    """A network whose matrix products run in bfloat16; what surrounds it, the geometry above all, does not."""

    def __init__(self, network: nn.Module, device_type: str) -> None:
        super().__init__()
        self.network = network
        self.device_type = device_type

    def forward(self, *inputs: Tensor | float | None) -> Tensor:
        """Return the network's answer."""
        with torch.autocast(self.device_type, torch.bfloat16):
            answer: Tensor = self.network(*inputs)
        return answer


def shard(network: nn.Module, team: Team) -> None:
    """Shard the parameters over the team in place: every block of the network on its own, then what is left."""
    # The logits are a view, which would be a danger if somebody changed them in place; nobody does.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    mesh = init_device_mesh(team.device.type, (team.world,))
    blocks = [block for stack in network.modules() if isinstance(stack, nn.ModuleList) for block in stack]
    # The outermost module would by default stay whole after a forward pass without backward, as in a validation.
    for module in (*blocks, network):
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


@contextmanager
def gradients(call: nn.Module, network: nn.Module, last: bool) -> Iterator[None]:
    """Let the gradients of this pass be averaged over the team only if it is the step's `last`."""
    if isinstance(network, FSDPModule):
        network.set_requires_gradient_sync(last)
    if isinstance(call, DistributedDataParallel) and not last:
        with call.no_sync():
            yield
    else:
        yield


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor as one piece on the CPU; of a sharded one every member must ask."""
    found = tensor.detach()
    return (found.full_tensor() if isinstance(found, DTensor) else found).cpu()


def like(tensor: Tensor, value: Tensor) -> Tensor:
    """Return a whole `value` sharded as a tensor is, if it is."""
    if not isinstance(tensor, DTensor):
        return value
    # Every member has the value already: nothing needs to be sent.
    return distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements, src_data_rank=None)


@torch.no_grad()
def assign(tensor: Tensor, value: Tensor) -> None:
    """Copy a whole `value` into a tensor that may be sharded."""
    tensor.copy_(like(tensor, value))


@contextmanager
def team(device: str = "auto", environment: Mapping[str, str] = os.environ) -> Iterator[Team]:
    """Join the processes that torchrun started, or be alone, and leave them in order; a group that is there is used."""
    world, rank = int(environment.get("WORLD_SIZE", "1")), int(environment.get("RANK", "0"))
    chosen = device_of(device, int(environment.get("LOCAL_RANK", "0")))
    if world == 1:
        yield Team(device=chosen)
        return
    if chosen.type == "mps":
        raise InputError("the device mps serves one process only; choose --training.device cpu")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    given = distributed.is_initialized()
    if not given:
        _meet(chosen, environment.get("TORCHELASTIC_RESTART_COUNT", "0"))
    yield Team(rank, world, chosen)
    # Not after an error: to leave in order would be to wait for members who may be dead.
    if not given:
        distributed.destroy_process_group()


def _meet(device: torch.device, attempt: str) -> None:
    store, rank, world = next(rendezvous("env://", timeout=PATIENCE))
    # After a restart torchrun may hand out the same store, in which the addresses of the dead still stand.
    store = PrefixStore(f"rdlm-{attempt}", store)
    # Two backends: what lies on a graphics card goes one way, what lies in memory the other.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=PATIENCE)


def device_of(name: str, index: int = 0) -> torch.device:
    """Return the device of this name; `auto` is the best that this machine has."""
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, here in available.items() if here)
    kind = name.partition(":")[0]
    if not available.get(kind, False):
        here = ", ".join(kind for kind, found in available.items() if found)
        raise InputError(f"training.device {name!r} is not available; this machine has: {here}")
    try:
        return torch.device(f"cuda:{index}" if name == "cuda" else name)
    except RuntimeError as error:
        raise InputError(f"training.device {name!r} is no device: {error}") from None
