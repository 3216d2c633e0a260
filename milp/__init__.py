"""The node allocation problem of BFTrainer (arXiv:2106.12091, section 3) and its solvers.

Pure, but for `milp.running`: it times a solve and has engines solve in a process of their own.
"""

from milp.checking import verify
from milp.curves import Curve, Points, interpolate
from milp.errors import MilpError, PlanError, ProblemError, UnsupportedError
from milp.files import plan_to_json, problem_from_json, problem_to_json
from milp.problem import Cap, NodeGroup, NodeSpec, Plan, Problem, TrainerSpec
from milp.running.solving import prepare, solve
from milp.solver import Feature
from milp.solvers.registry import after as solver_after
from milp.solvers.registry import named as check_solver
from milp.solvers.registry import names as solver_names

__all__ = [
    "Cap",
    "Curve",
    "Feature",
    "MilpError",
    "NodeGroup",
    "NodeSpec",
    "Plan",
    "PlanError",
    "Points",
    "Problem",
    "ProblemError",
    "TrainerSpec",
    "UnsupportedError",
    "check_solver",
    "interpolate",
    "plan_to_json",
    "prepare",
    "problem_from_json",
    "problem_to_json",
    "solve",
    "solver_after",
    "solver_names",
    "verify",
]
