"""One set of weights on the ranks of a group: FSDP2 shards it, DCP saves and loads it.

Every rank holds a part of each parameter, of its gradient and of its moments. All ranks make the
same calls with the same arguments and get the same results; each works on its own share of them.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.modeling_layers import GradientCheckpointingLayer

from mappa_trainer.errors import TrainingError

TIMEOUT = timedelta(minutes=10)
"""How long a rank waits for the others before it takes one of them for stuck."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """The processes that hold one set of weights together; without a mesh, this one alone."""

    mesh: DeviceMesh | None = None

    @property
    def size(self) -> int:
        """How many there are."""
        return self.mesh.size() if self.mesh else 1

    @property
    def rank(self) -> int:
        """Which of them this process is, counted from 0."""
        return self.mesh.get_local_rank() if self.mesh else 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum of the ranks' tensors."""
        return self._reduced(values, dist.ReduceOp.SUM)

    def max(self, values: Tensor) -> Tensor:
        """Return the largest of the ranks' tensors, element by element."""
        return self._reduced(values, dist.ReduceOp.MAX)

    def join(self, values: Sequence[Tensor], device: torch.device) -> list[Tensor]:
        """Return for each place the vector of the one rank that has it; the others have zeros."""
        if self.mesh is None or not values:
            return list(values)
        whole = self.sum(torch.cat(list(values)).to(device)).cpu()
        return [part.clone() for part in torch.split(whole, [len(value) for value in values])]

    def _reduced(self, values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
        if self.mesh is None:
            return values
        reduced = values.clone()
        dist.all_reduce(reduced, operation, group=self.mesh.get_group())
        return reduced


ALONE = Ranks()


@contextmanager
def join_ranks(device: str = "cpu", timeout: timedelta = TIMEOUT) -> Iterator[Ranks]:
    """Join the group that the environment names, as torchrun and other launchers set it.

    A rank that fails must end its process: the others then fail at their next exchange with it,
    while one that is merely silent is waited for until the timeout.

    Args:
        device: `cpu` for gloo, `cuda` for NCCL.
        timeout: After it, an exchange that a rank does not take part in is an error.

    Raises:
        TrainingError: another rank has failed, or is stuck.
    """
    backend = "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend, timeout=timeout)
    try:
        yield Ranks(init_device_mesh(device, (dist.get_world_size(),)))
    except RuntimeError as error:
        if not _of_an_exchange(error):
            raise
        raise TrainingError(
            f"rank {dist.get_rank()} of {dist.get_world_size()}: an exchange with the other ranks "
            f"failed: {str(error).splitlines()[0]}; one of them has failed, which its own error "
            f"explains, or was silent for {timeout.total_seconds():.0f} s; start all of them again "
            "from the last checkpoint"
        ) from error
    finally:
        dist.destroy_process_group()


def _of_an_exchange(error: RuntimeError) -> bool:
    """Tell whether the backend raised it; that of gloo has no type of its own."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)


def shard(module: nn.Module, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Leave each rank its part of every weight of a module, layer by layer.

    Gradients are summed over the ranks, not averaged: the weights of tokens are those of the whole
    optimiser step already.

    Args:
        module: Whose call is all that is computed with the weights.
        mesh: The ranks.
        dtype: Of weights and activations in a pass; weights, gradients and their sums over ranks
            are float32.
    """
    policy = MixedPrecisionPolicy(
        param_dtype=None if dtype == torch.float32 else dtype, reduce_dtype=torch.float32
    )
    layers = [part for part in module.modules() if isinstance(part, GradientCheckpointingLayer)]
    for part in (*layers, module):
        sharded = fully_shard(part, mesh=mesh, mp_policy=policy)
        sharded.set_gradient_divide_factor(1.0)
        sharded.set_force_sum_reduction_for_comms(True)  # gloo cannot scale as it sums


def whole(tensor: Tensor) -> Tensor:
    """Return a tensor with the parts of all ranks; all of them must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a sharded model on rank 0, on the processor; nothing on the others."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return {
        name: value
        for name, value in get_model_state_dict(model, options=options).items()
        if isinstance(value, Tensor)
    }


def save_tensors(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Write tensors as safetensors files, each rank its own parts.

    Raises:
        OSError: a rank cannot write; all of them raise it.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    with _plainly():
        save(dict(tensors), storage_writer=writer, no_dist=ranks.mesh is None)


def load_tensors(folder: Path, tensors: Mapping[str, Tensor], ranks: Ranks) -> None:
    """Overwrite tensors by those that any number of ranks saved.

    Raises:
        ValueError: a tensor is not there, or not whole, or of another shape; none is overwritten.
        OSError: a rank cannot read; all of them raise it.
    """
    reader = HuggingFaceStorageReader(str(folder))
    found = reader.read_metadata().state_dict_metadata
    for name, tensor in tensors.items():
        saved = found.get(name)
        if not isinstance(saved, TensorStorageMetadata) or saved.size != tensor.shape:
            raise ValueError(f"{name} is missing or of another shape")
        if sum(math.prod(chunk.sizes) for chunk in saved.chunks) != tensor.numel():
            raise ValueError(f"{name} is incomplete")
    with _plainly():
        load(dict(tensors), storage_reader=reader, no_dist=ranks.mesh is None)


@contextmanager
def _plainly() -> Iterator[None]:
    """Make an ordinary error of DCP's, which is no `Exception`; one rank alone is no warning."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")
            yield
    except CheckpointException as error:
        rank, (first, _) = next(iter(error.failures.items()))
        raise OSError(f"rank {rank}: {first}") from error
