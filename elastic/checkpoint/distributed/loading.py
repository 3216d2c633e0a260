"""Loading a distributed checkpoint: all workers agree on a version and read it into the tensors of a state."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as read
from torch.distributed.tensor import DTensor, Replicate

from elastic.base.errors import CheckpointError
from elastic.checkpoint.buffers import free_bytes
from elastic.checkpoint.distributed import Loaded, files, rng, tree
from elastic.checkpoint.distributed.groups import Groups, current
from elastic.checkpoint.distributed.shards import RNG, SKELETON
from elastic.worker import driver_link as _session

KIND = "torchrun"
"""The kind of script whose workers all save together; a checkpoint of another kind is marked with its kind."""

_MEMORY_SHARE = 0.8
"""The most of a node's free memory that whole states may take."""


class _Unusable(Exception):
    """A checkpoint version that cannot be used; the previous one may be."""


def load(versions: Sequence[dict[str, Any]], into: Any | None, kind: str = KIND) -> Loaded | None:
    """Load as elastic.checkpoint.distributed.load does, from the versions that the driver listed, newest first.

    Raises CheckpointError for checkpoints of scripts of another `kind`.
    """
    groups = current()
    # Rank 0's answer from the driver counts: a newer version may have come between two workers' requests.
    versions = groups.gathered(list(versions) if groups.rank == 0 or groups.main is None else None)[0]
    whys: list[str] = []
    for version in versions:
        try:
            return _loaded(version, into, groups, kind)
        except _Unusable as unusable:
            whys.append(f"{version.get('name')}: {unusable}")
            if groups.rank == 0:
                _session.current().tell(
                    {"op": "corrupt", "name": version.get("name"), "text": str(unusable)},
                )
                if version is not versions[-1]:
                    _say(f"the checkpoint {whys[-1]}; going on from the one before it")
    if not whys:
        return None
    raise CheckpointError(
        f"the checkpoint cannot be read: {'; '.join(whys)}; nothing is removed: "
        "put the files back, or submit the job without resume= to start anew"
    )


def copied(state: Any, into: Any) -> Any:
    """Copy as elastic.checkpoint.distributed.copied does."""
    saved, skeleton = tree.flatten(state)
    given, asked = tree.flatten(into)
    empty = tree.empty_below(into)
    kept = {name: tensor for name, tensor in saved.items() if name not in given and name.startswith(empty)}
    _compare({name: tensor.shape for name, tensor in saved.items() if name not in kept}, _shapes(given))
    with torch.no_grad():
        for name, target in given.items():
            if isinstance(target, DTensor):
                _fill(target, saved[name])
            else:
                _copy(name, target, saved[name])
    return tree.rebuild(tree.merged(skeleton, asked), {**kept, **given})


def _loaded(version: dict[str, Any], into: Any | None, groups: Groups, kind: str) -> Loaded:
    """Verify a version and read it; raises _Unusable or CheckpointError, on all workers alike."""
    folder = Path(str(version.get("path", "")))
    _verify(folder, version, groups)
    metadata = _all(lambda: FileSystemReader(folder).read_metadata(), groups)
    about = _all(lambda: _objects(folder, [SKELETON], metadata)[SKELETON], groups)
    header = torch.load(io.BytesIO(about), map_location="cpu", weights_only=False)
    _of_kind(header, kind)
    skeleton = header["skeleton"]
    targets = _targets(metadata, skeleton, into, groups)
    group = groups.main if into is not None else None
    whole = {
        name: torch.empty(each.shape, dtype=each.dtype, device="cpu")
        for name, each in targets.items()
        if _apart(each) is not each
    }
    try:
        reader, planner = (
            FileSystemReader(folder),
            DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
        )
        read({**targets, **whole}, storage_reader=reader, planner=planner, process_group=group, no_dist=group is None)
    except (Exception, CheckpointException) as error:
        raise CheckpointError(f"the checkpoint in {folder} cannot be read: {_cause(error)}; it is kept") from error
    for name, each in whole.items():
        _copy(name, targets[name], each)
    _session.current().costs["load_bytes"] = float(sum(file.size_bytes for file in files.listed(version)))
    if kind == KIND:
        _set_generators(folder, str(version.get("name")), metadata, groups.rank)
        _session.current().goes_on(header)
    state = tree.rebuild(skeleton if into is None else tree.merged(skeleton, tree.flatten(into)[1]), targets)
    return Loaded(state, int(header["step"]), int(header["samples"]), header["size"])


def _of_kind(header: Mapping[str, Any], kind: str) -> None:
    saved = header.get("kind", KIND)
    if saved != kind:
        raise CheckpointError(f"the distributed checkpoint is a {saved} script's; submit that one; it is kept")


def _set_generators(folder: Path, version: str, metadata: Metadata, rank: int) -> None:
    name = f"{RNG}{rank}"
    if name in metadata.state_dict_metadata:
        rng.restore(_objects(folder, [name], metadata)[name])
    else:
        rng.begin(version, rank)


def _verify(folder: Path, version: dict[str, Any], groups: Groups) -> None:
    """Have each file read by one worker and compared with its record. Raises _Unusable or CheckpointError on all."""
    found: list[str] = []
    away = ""
    try:
        os.stat(folder.parent)  # a node that does not see the folder cannot tell what is there
        listed = files.listed(version)
        # Without a group no other worker looks at the other files.
        mine = files.share(listed, groups.rank, groups.size) if groups.main is not None else listed
        found = list(files.faults(folder, mine))
    except ValueError as error:
        found = [str(error)]
    except OSError as error:
        away = f"{os.environ.get('SLURMD_NODENAME', 'a node')} cannot read {error.filename or folder}: {error.strerror}"
    heard = groups.gathered((found, away))
    if away := next((away for _, away in heard if away), ""):
        raise CheckpointError(f"the checkpoint cannot be read: {away}; it is kept, and the job can be submitted again")
    faults = [fault for found, _ in heard for fault in found]
    if faults:
        more = f" and {len(faults) - 1} more" if len(faults) > 1 else ""
        raise _Unusable(f"{faults[0]}{more}")


def _targets(metadata: Metadata, skeleton: Any, into: Any | None, groups: Groups) -> dict[str, torch.Tensor]:
    """Return the tensor to read each saved one into; raises CheckpointError on all workers, as for another model."""
    saved = {
        name: each for name, each in metadata.state_dict_metadata.items() if isinstance(each, TensorStorageMetadata)
    }
    why = ""
    targets: dict[str, torch.Tensor] = {}
    given = tree.flatten(into)[0] if into is not None else {}
    shapes = _shapes(given)
    if len({row[0] for row in groups.vote([tree.fingerprint(given)])}) > 1:
        # For example the stages of a pipeline: together they have everything that was saved.
        shapes = {name: shape for each in groups.gathered(shapes) for name, shape in each.items()} | shapes
    try:
        targets = _given(saved, skeleton, into, given, shapes)
    except CheckpointError as error:
        why = str(error)
    whys = groups.gathered(why)
    if any(whys):
        raise CheckpointError(next(filter(None, whys)))
    return targets


def _given(
    saved: Mapping[str, TensorStorageMetadata],
    skeleton: Any,
    into: Any | None,
    given: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int]],
) -> dict[str, torch.Tensor]:
    """Return the tensors of this worker; `shapes` are those of all workers."""
    if into is None:
        _fits(saved)
        return {name: _empty(each) for name, each in saved.items()}
    empty = tree.empty_below(into)
    fresh = {name: each for name, each in saved.items() if name not in shapes and name.startswith(empty)}
    _compare({name: each.size for name, each in saved.items() if name not in fresh}, shapes)
    leaves = tree.leaves(skeleton)
    sharded = [name for name in fresh if name in leaves and leaves[name].sharded]
    if sharded:
        raise CheckpointError(
            f"{sharded[0].removeprefix(tree.ROOT + '.')} was saved in shards, and into= has an empty dict there; "
            "give into= the state as torch.distributed.checkpoint.state_dict.get_state_dict returns it"
        )
    return {**given, **{name: _empty(each) for name, each in fresh.items()}}


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def _empty(saved: TensorStorageMetadata) -> torch.Tensor:
    return torch.empty(saved.size, dtype=saved.properties.dtype, device="cpu")


def _compare(saved: Mapping[str, Sequence[int]], given: Mapping[str, Sequence[int]]) -> None:
    found = tree.differences(saved, given)
    if found:
        raise CheckpointError(
            f"the checkpoint is of another model: {tree.told(found)}; nothing was read: "
            "submit the script that saved it, or a new job to start anew"
        )


def _fits(saved: Mapping[str, TensorStorageMetadata]) -> None:
    """Raise CheckpointError if a whole state for every worker of this node would take too much of its free memory."""
    needed = sum(each.size.numel() * each.properties.dtype.itemsize for each in saved.values())
    workers = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    free = free_bytes()
    if free is not None and needed * workers > _MEMORY_SHARE * free:
        raise CheckpointError(
            f"the checkpoint has {needed / 1e9:.1f} GB, too much for {workers} workers and "
            f"{free / 1e9:.1f} GB of free memory: call elastic.load(into=state), "
            "which reads each worker's part into its own tensors"
        )


def _objects(folder: Path, names: Sequence[str], metadata: Metadata) -> dict[str, Any]:
    """Read values that are not tensors, by name; each worker reads for itself."""
    found: dict[str, Any] = dict.fromkeys(names)
    planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    read(found, storage_reader=FileSystemReader(folder), planner=planner, no_dist=True)
    return found


def _all(call: Callable[[], Any], groups: Groups) -> Any:
    """Return the result of `call`; a failure on one worker raises _Unusable or CheckpointError on all."""
    value, why, away = None, "", False
    try:
        value = call()
    except (Exception, CheckpointException) as error:
        why, away = _cause(error), isinstance(_root(error), OSError)
    heard = [each for each in groups.gathered((why, away)) if each[0]]
    if heard:
        why, away = heard[0]
        if away:  # all of it was there a moment ago
            raise CheckpointError(
                f"the checkpoint cannot be read: {why}; it is kept, and the job can be submitted again"
            )
        raise _Unusable(why)
    return value


def _fill(target: DTensor, whole: torch.Tensor) -> None:
    """Copy this worker's part of a whole tensor into its shard; every worker has the whole, so nothing is sent."""
    mesh, placements = target.device_mesh, target.placements
    everywhere = DTensor.from_local(whole.to(target.device), mesh, [Replicate()] * mesh.ndim, run_check=False)
    target.to_local().copy_(everywhere.redistribute(mesh, placements).to_local())


def _apart(tensor: torch.Tensor, like: torch.Tensor | None = None) -> torch.Tensor:
    """Narrow `tensor` to one element along each dimension in which `like` (None: `tensor` itself) is expanded."""
    strides = () if isinstance(tensor, DTensor) else (tensor if like is None else like).stride()
    for dimension, stride in enumerate(strides):
        if stride == 0 and tensor.size(dimension) > 1:
            tensor = tensor.narrow(dimension, 0, 1)
    return tensor


def _copy(name: str, target: torch.Tensor, saved: torch.Tensor) -> None:
    """Copy into a tensor that may be expanded; raises CheckpointError if its elements would have to differ."""
    once = _apart(saved, like=target)
    if once is not saved and not torch.allclose(once.expand_as(saved), saved, rtol=0.0, atol=0.0, equal_nan=True):
        raise CheckpointError(
            f"{name.removeprefix(tree.ROOT + '.')} is expanded in into=, and what was saved for it differs along that "
            "dimension; give into= a tensor of its own there (.clone())"
        )
    with torch.no_grad():
        _apart(target).copy_(once)


def _root(error: BaseException) -> BaseException:
    """Return the error behind a failure that torch.distributed.checkpoint reports by rank."""
    while isinstance(error, CheckpointException) and error.failures:
        error = next(iter(error.failures.values()))[0]
    return error


def _cause(error: BaseException) -> str:
    root = _root(error)
    lines = str(root).splitlines()
    return files.why_of(root) if isinstance(root, OSError) else lines[0] if lines else type(root).__name__


def _say(text: str) -> None:
    print(f"bft: {text}", flush=True)


__all__ = ["copied", "load"]
