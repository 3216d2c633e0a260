"""Corrects packages that behave differently when they see tensors without contents."""

from __future__ import annotations

import sys
from typing import Any


def as_without_a_trace() -> None:
    """Let packages that the step has imported behave as on real tensors.

    transformers checks whether each row of a batch is one sequence. It cannot see that here and would make a mask for
    attention, so each row is assumed to be one sequence. A mask that the user passes is assumed to mask something.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    if hasattr(masking, "find_packed_sequence_indices"):
        masking.find_packed_sequence_indices = lambda position_ids: None
