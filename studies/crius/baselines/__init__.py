"""Schedulers to compare with Crius, all simplified: each module says what it leaves out."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from studies.crius.baselines.by_gain import ByGain
from studies.crius.baselines.elasticflow import ElasticFlow
from studies.crius.baselines.fcfs import Easy, Fcfs
from studies.crius.baselines.gandiva import Gandiva
from studies.crius.baselines.gavel import Gavel
from studies.crius.baselines.profiled import Profiled
from studies.simulation.types import Policy, Speeds

__all__ = ["BASELINES", "ByGain", "Easy", "ElasticFlow", "Fcfs", "Gandiva", "Gavel", "Profiled"]

BASELINES: Mapping[str, Callable[[Speeds, Speeds], Policy]] = {
    "fcfs": lambda told, true: Fcfs(Profiled(told, true)),
    "easy": lambda told, true: Easy(Profiled(told, true)),
    "gandiva": lambda told, true: Gandiva(Profiled(told, true)),
    "gavel": lambda told, true: Gavel(Profiled(told, true)),
    "gavel-fair": lambda told, true: Gavel(Profiled(told, true), fair=True),
    "elasticflow-ls": lambda told, true: ElasticFlow(Profiled(told, true)),
    "elasticflow": lambda told, true: ElasticFlow(Profiled(told, true), deadlines=True),
}
"""Baselines by name, made from the speeds that schedulers are told, and the true ones that a job's start shows."""
