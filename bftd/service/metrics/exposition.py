"""All metrics of a daemon as text, by the client library: in Prometheus's format, or as OpenMetrics."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric

from bftd.service.instrumentation import Figures
from bftd.service.metrics.counters import Counters
from bftd.service.metrics.gauges import families


class Exposition:
    """The counters of `measured` and the values of `figures` together, as one collector."""

    def __init__(self, measured: Counters, figures: Figures, version: str) -> None:
        self._measured = measured
        self._figures = figures
        self._version = version

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client: yields all families of metrics."""
        yield from families(self._figures, self._version, self._measured.snapshot_age_s)
        yield from self._measured.registry.collect()

    def encoded(self, accept: str = "") -> tuple[bytes, str]:
        """Return the text and its content type, in a format that an Accept header allows."""
        encode, content_type = choose_encoder(accept)
        return encode(self), content_type
