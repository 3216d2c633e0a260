"""The measurements behind docs/evidence/: a command a figure, and a folder for what is measured together.

At the top: give-backs (`give_back`), a centre (`centre`), solvers (`milp`, `classes`), the core (`core`, `preempting`,
`earmark_times`), the ledger (`ledger`, `history`) and equal bits (`pieces`). Each prints its figures, or all of them
with --json.
"""
