"""Command-line options that several commands of `bft size` share."""

from __future__ import annotations

from collections.abc import Callable

import click

from bftd.base.errors import UsageError
from bftd.cli import options

model_sizes = click.option(
    "--config", "text", metavar="SIZES|FILE.json[:SIZES]", help="The model by its sizes; docs/howto/size.md."
)
global_batch = click.option(
    "--global-batch", type=int, required=True, metavar="B", help="Samples of a step on all GPUs together."
)
partitions = click.option(
    "--partitions", default="auto", metavar="auto|FILE", help="GPUs of live Slurm (auto), or of a file."
)
partition = click.option("--partition", "-p", default="", metavar="NAME[,NAME...]", help="Of these partitions only.")
gpu_type = click.option("--gpu", "gpu_type", default="", metavar="TYPE", help="Of this type only.")
max_gpus = click.option("--max-gpus", type=int, metavar="N", help="At most so many.")
stages = click.option(
    "--stages", "counts", default="", metavar="N[,N...]", help="Pipeline stages; default 1, 2, 4, ... N."
)
precision = click.option(
    "--precision", default="", metavar="P", help="Compute in fp32, tf32, fp16 or bf16; default: its own."
)
python = click.option("--python", default="", metavar="P", help="The Python to trace with; it must have torch.")
asks_start = click.option(
    "--start/--no-start", "asks_start", default=True, help="Ask Slurm when the best could start (default)."
)

# Below the help of commands that trace a step.
STEP = """
make_step(batch_size) is a function of your script. It builds the model, the optimizer and a batch of one GPU, and
returns a function that does one training step:

\b
  def make_step(batch_size):
      model, x = Net().cuda(), torch.randn(batch_size, 512, device="cuda")
      optimizer = torch.optim.AdamW(model.parameters())
      return lambda: (model(x).sum().backward(), optimizer.step())

docs/howto/size.md has longer ones.
"""


def refuse_untraced(step: str | None, *names: str) -> None:
    """Raise UsageError for options of a trace, also those with these `names`, where no step is traced."""
    if step is None:
        options.refuse_idle(("python", "timeout_s", *names), "is for a step that is traced: name MODULE.py:make_step")


def timeout(
    default_s: float = 120.0, help: str = "For a trace; default 120 s."
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return the option --timeout, which must be above 0."""

    def above_zero(ctx: click.Context, param: click.Parameter, value: float) -> float:
        if not value > 0:
            raise UsageError(f"--timeout {value:g}: seconds, more than 0")
        return value

    return click.option(
        "--timeout", "timeout_s", type=float, default=default_s, metavar="S", callback=above_zero, help=help
    )
