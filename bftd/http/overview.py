"""Answers to `GET /v1/status`: made beside the loop, and on a large cluster shared for a moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bftd import __version__
from bftd.base import old_names
from bftd.base.folding import Folds, folded
from bftd.http.auth.caller import Caller
from bftd.http.auth.privacy import Privacy
from bftd.http.encoding import encoded
from bftd.http.response_cache import ResponseCache
from bftd.service.service import Service

# The value of the query's `nodes`: `bft status` shows groups of nodes only.
FOLDED = "folded"
# With at most this many nodes and trainers each answer is made anew; that of a larger cluster is made once a second.
FRESH_MOST = 500
KEPT_S = 1.0


class Overviews:
    """Statuses, made one at a time in a thread; callers that ask for the same one meanwhile share it."""

    def __init__(self) -> None:
        self._shared = ResponseCache[tuple[str, bool, bool, str], bytes]("status")
        self._folds = Folds()

    async def answer(self, service: Service, caller: Caller, nodes: str) -> bytes:
        """Return the JSON of a status for this caller."""
        state, private = service.state, service.private
        # callers without trainers all see the same
        owner = any(trainer.user == caller.user for trainer in state.trainers.values())
        key = (caller.user if owner and not caller.admin else "", caller.admin, private, nodes)

        def prepare() -> Callable[[], bytes]:
            later, folds = service.overview_later(__version__), self._folds if nodes == FOLDED else None
            return lambda: _encoded(later(), Privacy(caller, state, private), folds)

        anew = len(state.pool.nodes) + len(state.trainers) <= FRESH_MOST
        return await self._shared.answer(key, prepare, KEPT_S, anew=anew)

    def close(self) -> None:
        """Let the thread go."""
        self._shared.close()


def _encoded(shown: dict[str, Any], privacy: Privacy, folds: Folds | None) -> bytes:
    seen = old_names.status(privacy.overview(shown))
    return encoded(seen if folds is None else folded(seen, folds))
