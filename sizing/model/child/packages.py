"""What packages on torch do otherwise when they see tensors without contents, put right."""

from __future__ import annotations

import sys
from typing import Any


def as_without_a_trace() -> None:
    """Let packages that the step has imported take the way that they take on real tensors.

    transformers looks whether each row of a batch is one sequence, cannot see it here, and would then attend by a mask
    that it makes: rows are taken to be one sequence each. A mask that the user hands over is taken to mask something.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    if hasattr(masking, "find_packed_sequence_indices"):
        masking.find_packed_sequence_indices = lambda position_ids: None
