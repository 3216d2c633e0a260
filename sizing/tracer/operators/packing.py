"""Packs sequences by known lengths, because torch reads the lengths in native code that a trace cannot follow."""

from __future__ import annotations

from typing import Any

import torch

from sizing.tracer import torch_internals
from sizing.tracer.refusal import Refusal


def stand_ins(fake: Any) -> dict[Any, Any]:
    """Map operators to their stand-ins."""

    def packed(func: Any, args: Any, kwargs: Any) -> Any:
        batch, lengths = args[:2]
        known = getattr(lengths, "constant", None) if isinstance(lengths, torch_internals.FakeTensor) else lengths
        if known is None:
            raise Refusal(
                "the step packs sequences of lengths that a trace does not know: make them of numbers (torch.tensor), "
                "or give the layer the padded batch"
            )
        with torch_internals.without_modes():
            steps = torch.arange(int(known.max()))
            # a real tensor, because the layers' native code reads it, too
            sizes = (known[None, :] > steps[:, None]).sum(1)
            rows = int(sizes.sum())
        sizes.followed = fake.from_tensor(sizes)  # for reads by Python; kept here, or torch forgets it
        torch_internals.know(fake, sizes.followed, sizes)
        return batch.new_empty([rows, *batch.shape[2:]]), sizes

    return {torch.ops.aten._pack_padded_sequence.default: packed}


def padded(func: Any, args: Any, kwargs: Any) -> Any:
    """Compute the result of `pad_packed_sequence` with the operators that torch uses for it."""
    data, sizes, batch_first, value, length = args
    with torch_internals.without_modes():
        batches = sizes.tolist()
        lengths = (sizes[None, :] > torch.arange(batches[0])[:, None]).sum(1).tolist()
    out = data.new_full([length, batches[0], *data.shape[1:]], value)
    begin = row = 0
    for step, batch in enumerate(batches):
        if step + 1 == len(batches) or batches[step + 1] != batch:
            rows = (step + 1 - begin) * batch
            part = data[row : row + rows].view(step + 1 - begin, batch, *data.shape[1:])
            out[begin : step + 1, :batch].copy_(part)
            begin, row = step + 1, row + rows
    return out.transpose(0, 1) if batch_first else out, torch.tensor(lengths)
