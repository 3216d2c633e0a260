#!/usr/bin/env python3
"""A study of hyperparameters with Optuna, whose trials are elastic trainers on the idle nodes.

    python examples/optuna_hpo.py --folder /shared/me/study --trials 20 --parallel 6 --elastic 1-4

Each trial is one elastic job (train_trial.py), submitted with `bft sbatch`; all of them share what is idle. The study
itself only submits, reads reports and results, and prunes: run it where you submit jobs.

A trial that loses its nodes is suspended and goes on: it is not failed. A trial is FAIL where its script fails or its
job is cancelled by somebody else, and the study goes on with others. Where the job of a trial is ended by Slurm (its
time limit, a lost service node), it goes on in another job from its checkpoint.

End it with Ctrl-C, which cancels the jobs of the trials that run; a study that is killed, or cannot go on for want of
Slurm or of disk, leaves them running. Either way the same command goes on with them, and with all that is done. All of
it is in --folder, which all nodes see.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import itertools
import json
import math
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend
    from optuna.trial import FrozenTrial, Trial, TrialState
except ImportError as error:
    raise SystemExit(f"optuna_hpo.py needs Optuna: pip install optuna ({error})") from None

TRAIN = Path(__file__).resolve().with_name("train_trial.py")
CLEARED = "\r\x1b[K"
"""Clears the line of a terminal."""
POLL_S = 2.0
TRIES_S = (1.0, 5.0, 20.0, 60.0)
"""Between two tries to submit; the last is the longest."""
LIVE_S = 600.0
"""Between two lines on how far the study is, where its output is no terminal; on one, a line below the log is kept."""
STATUS_S = 15.0
"""Between two looks at how often trials were suspended: that is only told, and a large machine's status is long."""
# Slurm ended these jobs, and not for what their script did: they go on in another job, so often at most.
ENDED_BY_SLURM = {"TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "DEADLINE"}
GOES_ON_MOST = 20
FAILED = {"FAILED", "CANCELLED", "OUT_OF_MEMORY", "REVOKED", "SPECIAL_EXIT"}


def suggested(trial: Trial) -> list[str]:
    """The trial's hyperparameters as arguments of its script: change this, and train_trial.py, for your own study."""
    lr = trial.suggest_float("lr", 1e-3, 30.0, log=True)
    momentum = trial.suggest_float("momentum", 0.0, 0.95)
    batch = trial.suggest_categorical("global_batch", [128, 256, 512])
    return [f"--lr={lr:.6g}", f"--momentum={momentum:.4g}", f"--global-batch={batch}"]


class SlurmError(Exception):
    """Slurm or bft did not do what it was asked to."""


class RefusedError(SlurmError):
    """What was asked for is wrong, and would be however often it were asked for."""


class StorageError(Exception):
    """The study's journal cannot be read."""


def output_of(*command: str) -> str:
    """What a command prints; raises SlurmError with its own words."""
    try:
        # in a session of its own: Ctrl-C is the study's, and must not end a command in its midst
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=120, check=False, start_new_session=True
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"{command[0]}: {error}") from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        kind = RefusedError if command[0] == "bft" and done.returncode == 2 else SlurmError
        raise kind(f"{' '.join(command[:2])}: {said[-1]}")
    return done.stdout


def jobs() -> dict[str, tuple[str, str]]:
    """State and name of every job of this user that Slurm knows, those that ended a few minutes ago included."""
    lines = output_of("squeue", "--me", "--noheader", "--states=all", "--format=%i|%T|%j").splitlines()
    rows = (line.strip().split("|", 2) for line in lines if line.count("|") >= 2)
    return {id_: (state, name) for id_, state, name in rows}


def trainers() -> dict[str, dict[str, Any]]:
    """What bftd knows of its trainers, by the ids of their jobs; nothing where it does not answer."""
    with contextlib.suppress(SlurmError, ValueError):
        return {str(item["id"]): item for item in json.loads(output_of("bft", "status", "--json"))["trainers"]}
    return {}


def checkpoints() -> set[str]:
    """The ids of the jobs that have left a checkpoint to go on from."""
    shown = json.loads(output_of("bft", "checkpoints", "ls", "--json"))["checkpoints"]
    return {str(item["id"]).partition("@")[0] for item in shown if (item.get("step") or 0) > 0}


class Running:
    """A trial that is not told yet: its folder, its job, and how much of its reports was read."""

    def __init__(self, trial: Trial, folder: Path) -> None:
        self.trial = trial
        self.folder = folder
        self.reported = 0
        self.state = "waiting"
        self._read = 0

    @property
    def job(self) -> str | None:
        """The job that trains it now; None before it is submitted."""
        job = self.trial.user_attrs.get("job")
        return None if job is None else str(job)

    def note(self, **facts: Any) -> None:
        """Writes facts into the storage, those that are news."""
        for name, value in facts.items():
            if self.trial.user_attrs.get(name) != value:
                self.trial.set_user_attr(name, value)

    def report(self) -> bool:
        """Hands new reports to Optuna; whether there were any."""
        path, before = self.folder / "reports.jsonl", self.reported
        if not path.exists():
            return False
        with path.open("rb") as file:
            file.seek(self._read)
            for line in file:
                if not line.endswith(b"\n"):  # it is being written
                    break
                self._read += len(line)
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    told = json.loads(line)
                    if int(told["step"]) > self.reported:
                        self.reported = int(told["step"])
                        self.trial.report(float(told["loss"]), self.reported)
        return self.reported > before

    def result(self) -> float | None:
        """The trainer's own result, None where it has not written one."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            return float(json.loads((self.folder / "result.json").read_text())["loss"])
        return None


class Hpo:
    """One study: keeps `parallel` trials under way until `trials` are told."""

    def __init__(self, options: argparse.Namespace, study: optuna.Study) -> None:
        self.options = options
        self.study = study
        self.running: dict[int, Running] = {}
        self.stop = threading.Event()
        self._looked_s = -STATUS_S
        self._began_s = self._live_s = time.monotonic()
        self._taken = False
        if "token" not in study.user_attrs:  # jobs of a study of the same name in another folder are not its own
            study.set_user_attr("token", uuid.uuid4().hex[:8])
        self.name = f"{options.name}-{study.user_attrs['token']}"

    def take_up(self) -> None:
        """Goes on with the trials that another run of this study has left."""
        left = self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        if not left:
            return
        named = {name: id_ for id_, (_, name) in self._jobs().items()}
        for frozen in left:
            # Optuna has no public way from a trial that runs to one that can be reported to.
            one = Running(Trial(self.study, frozen._trial_id), self.folder_of(frozen.number))
            if one.job is None and (job := named.get(self.job_name(frozen.number))):
                one.note(job=job)  # it was submitted, and the study killed before it had noted so
            one.reported = frozen.last_step or 0
            self.running[frozen.number] = one
            if one.job is None:
                self.submit(one)
            say(f"trial {frozen.number} was under way: job {one.job}")

    def run(self) -> None:
        """Until all trials are told, or somebody stops the study."""
        self.take_up()
        while not self.stop.is_set():
            while len(self.running) < self.options.parallel and self.left() > 0 and not self.stop.is_set():
                trial = self.study.ask()
                one = self.running[trial.number] = Running(trial, self.folder_of(trial.number))
                self.submit(one)
                say(f"trial {trial.number} is job {one.job}: {arguments_of(trial)}")
            if not self.running:
                return
            self.stop.wait(POLL_S)
            try:
                self.look()
            except RefusedError:
                raise
            except SlurmError as error:
                say(f"{error}; trying again")
            self.live()

    def live(self) -> None:
        """Tells how far the study is: on a terminal in a line below the log, elsewhere now and then in the log."""
        if sys.stdout.isatty():
            width = shutil.get_terminal_size().columns - 1
            print(f"{CLEARED}{self.progress()[:width]}", end="", flush=True)
        elif time.monotonic() - self._live_s >= LIVE_S:
            self._live_s = time.monotonic()
            say(self.progress())

    def progress(self) -> str:
        """The trials that are done, run and wait, the best so far, and the time that this process has run."""
        trials = self.study.get_trials(deepcopy=False)
        done = sum(trial.state.is_finished() for trial in trials)
        running = sum(one.state == "running" for one in self.running.values())
        parts = [f"{done}/{max(len(trials), self.options.trials)} trials done", f"{running} running"]
        parts += [f"{len(self.running) - running} waiting"]
        finished = [trial for trial in trials if trial.state == TrialState.COMPLETE and trial.value is not None]
        if best := min(finished, key=lambda trial: float(trial.value or 0.0), default=None):
            parts += [f"best {best.value:.4f} (trial {best.number})"]
        minutes, seconds = divmod(int(time.monotonic() - self._began_s), 60)
        return ", ".join([*parts, f"{minutes // 60}:{minutes % 60:02d}:{seconds:02d}"])

    def left(self) -> int:
        """How many trials are still to be asked for."""
        return int(self.options.trials) - len(self.study.get_trials(deepcopy=False))

    def look(self) -> None:
        """Reads what the trials under way have come to; raises SlurmError, and begins again where it left off."""
        known = jobs()
        states = {known.get(str(one.job), ("", ""))[0] for one in self.running.values()}
        told = {}
        if time.monotonic() - self._looked_s >= STATUS_S or states & {"COMPLETED", *FAILED, *ENDED_BY_SLURM}:
            told, self._looked_s = trainers(), time.monotonic()
        for number, one in list(self.running.items()):
            if item := told.get(str(one.job)):
                before = one.trial.user_attrs.get("suspends_before", 0)
                one.note(suspends=before + item["suspends"], resizes=item["resizes"])
                one.state = item["state"]
            news, state = one.report(), known.get(str(one.job), ("", ""))[0]
            noted = one.trial.user_attrs
            if state in ("COMPLETED", "") and (value := one.result()) is not None:
                if math.isnan(value):  # Optuna takes none
                    self.tell(number, TrialState.FAIL, None, "its result is no number")
                else:
                    self.tell(number, TrialState.COMPLETE, value, f"loss {value:.4f}")
            elif noted.get("pruned") and state in ("CANCELLED", ""):
                self.tell(number, TrialState.PRUNED, None, f"after step {one.reported}")
            elif noted.get("stopped") and state in ("CANCELLED", ""):
                self.go_on(one, "the study was stopped", known)
            elif state == "COMPLETED":
                self.tell(number, TrialState.FAIL, None, "its job ended well and wrote no result")
            elif state == "" and str(one.job) in checkpoints():  # Slurm forgets a job some minutes after its end
                self.go_on(one, f"job {one.job} ended while nobody looked", known)
            elif state == "":
                self.tell(number, TrialState.FAIL, None, f"Slurm knows no job {one.job} any more, and it has no result")
            elif state in ENDED_BY_SLURM:
                self.go_on(one, f"Slurm ended job {one.job} ({state})", known)
            elif state in FAILED:
                self.tell(number, TrialState.FAIL, None, f"job {one.job} is {state}: see {one.folder / 'job.out'}")
            elif news and one.trial.should_prune():
                one.note(pruned=True)  # before its job is cancelled: by that alone it would be failed
                self.cancel([one])

    def submit(self, one: Running, resume: str = "") -> None:
        """Submits a trial's job; raises SlurmError.

        Once Slurm has taken one, what it does not take is a matter of time: of a restart, or of a limit on jobs.
        """
        one.folder.mkdir(parents=True, exist_ok=True)
        command = self.command(one.trial, one.folder, resume)
        for wait_s in itertools.chain(TRIES_S, itertools.repeat(TRIES_S[-1])):
            try:
                said = output_of(*command)
                found = re.search(r"[Jj]ob (\d+)", said)
                if found is None:
                    raise SlurmError(f"bft sbatch said {said.strip()!r}, which names no job")
                one.note(job=found[1])
                self._taken = True
                return
            except SlurmError as error:
                for_good = isinstance(error, RefusedError) or (wait_s == TRIES_S[-1] and not self._taken)
                if for_good or self.stop.wait(wait_s):
                    raise
                say(f"{error}; trying again")

    def command(self, trial: Trial, folder: Path, resume: str = "") -> list[str]:
        """What submits a trial."""
        elastic = f"--elastic={self.options.elastic}{f',resume={resume}' if resume else ''}"
        own = ["-J", self.job_name(trial.number), "-o", str(folder / "job.out"), "--open-mode=append"]
        script = [str(self.options.script), f"--folder={folder}", *suggested(trial)]
        return ["bft", "sbatch", elastic, *own, *self.options.sbatch, *script, *self.options.arguments]

    def go_on(self, one: Running, why: str, known: Mapping[str, tuple[str, str]]) -> None:
        """Goes on with a trial in another job, from its checkpoint if there is one."""
        name = self.job_name(one.trial.number)
        newer = [id_ for id_, (_, called) in known.items() if called == name and int(id_) > int(one.job or 0)]
        if newer:  # it was submitted, and the study killed before it had noted so
            one.note(job=max(newer, key=int), stopped=False)
            return
        before, count = str(one.job), int(one.trial.user_attrs.get("jobs", 1))
        if count > GOES_ON_MOST:
            self.tell(one.trial.number, TrialState.FAIL, None, f"{why}, after {count} jobs")
            return
        self.submit(one, before if before in checkpoints() else "")
        suspends = int(one.trial.user_attrs.get("suspends", 0))
        one.note(jobs=count + 1, suspends_before=suspends, stopped=False)
        say(f"trial {one.trial.number} goes on with job {one.job}: {why}")

    def tell(self, number: int, state: TrialState, value: float | None, why: str) -> None:
        """Ends a trial."""
        one = self.running.pop(number)
        one.note(why=why)
        self.study.tell(number, value, state)
        suspends = one.trial.user_attrs.get("suspends", 0)
        times = f", suspended {suspends} time{'s' * (suspends != 1)}" if suspends else ""
        say(f"trial {number} is {state.name.lower()}: {why}{times}")

    def close(self) -> None:
        """Cancels what runs; the trials go on when the study is started again."""
        left = [one for one in self.running.values() if one.job is not None]
        for one in left:
            one.note(stopped=True)
        self.cancel(left)
        if left:
            say(f"{len(left)} trials are stopped: the same command goes on with them")

    def leave(self) -> None:
        """Says of what runs that it goes on."""
        if left := [str(one.job) for one in self.running.values() if one.job is not None]:
            say(f"{len(left)} jobs of trials go on: {' '.join(left)}")

    def cancel(self, ones: list[Running]) -> None:
        """Cancels the jobs of these trials, by their ids."""
        if ids := [str(one.job) for one in ones]:
            try:
                output_of("scancel", *ids)
            except SlurmError as error:
                say(f"{error}; cancel them yourself: scancel {' '.join(ids)}")

    def _jobs(self) -> dict[str, tuple[str, str]]:
        while True:
            try:
                return jobs()
            except SlurmError as error:  # a job that cannot be seen is not one that is not there
                say(f"{error}; trying again")
                if self.stop.wait(POLL_S):
                    raise

    def folder_of(self, number: int) -> Path:
        """Where a trial's files are: no other study in the same folder has it, nor one whose journal is gone."""
        return Path(self.options.folder) / self.name / str(number)

    def job_name(self, number: int) -> str:
        """The name of a trial's jobs: no other study has it."""
        return f"{self.name}-{number}"


def summary(study: optuna.Study) -> str:
    """What came of a study, in two lines."""
    trials: list[FrozenTrial] = study.get_trials(deepcopy=False)
    counts = Counter(trial.state.name.lower() for trial in trials)
    preempted = sum(bool(trial.user_attrs.get("suspends")) for trial in trials)
    told = ", ".join(f"{count} {name}" for name, count in counts.most_common())
    lines = [f"{len(trials)} trials: {told}; {preempted} of them were suspended in between and went on"]
    with contextlib.suppress(ValueError):
        best = study.best_trial
        lines.append(f"best: trial {best.number}, loss {best.value:.4f}: {arguments_of(best)}")
    return "\n".join(lines)


def arguments_of(trial: Trial | FrozenTrial) -> str:
    """A trial's hyperparameters."""
    params: Mapping[str, Any] = trial.params
    return ", ".join(f"{name} {value:.4g}" for name, value in params.items())


def say(text: str) -> None:
    """One line of the study's own log."""
    print(f"{CLEARED * sys.stdout.isatty()}{time.strftime('%H:%M:%S')} {text}", flush=True)


def at_least_one(text: str) -> int:
    """A count for argparse."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number of 1 or more")
    return int(text)


def plain_name(text: str) -> str:
    """What can be a part of the name of a job and of a folder, for argparse."""
    if not re.fullmatch(r"\w[\w.-]{0,63}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not of letters, digits, '.', '_' and '-'")
    return text


def shell_words(text: str) -> list[str]:
    """A line of options in words, for argparse."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text}: {error}") from None


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the study and its trials; all nodes see it")
    parser.add_argument("--name", type=plain_name, default="study", help="begins the names of the jobs")
    parser.add_argument("--trials", type=at_least_one, default=20)
    parser.add_argument("--parallel", type=at_least_one, default=6, help="trials under way at once")
    parser.add_argument("--elastic", default="1-4", metavar="MIN-MAX[,...]", help="as for bft sbatch")
    parser.add_argument(
        "--sbatch", type=shell_words, default=[], metavar="OPTIONS", help="more for bft sbatch, such as '-A account'"
    )
    parser.add_argument("--script", type=Path, default=TRAIN, help="what a trial runs")
    parser.add_argument("--pruner", choices=("median", "halving", "none"), default="median")
    parser.add_argument("--seed", type=int, help="of the sampler")
    parser.add_argument("--dry-run", action="store_true", help="print what the first trials would submit")
    parser.add_argument("arguments", nargs="*", help="more for the script, after --")
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    return options


def made(options: argparse.Namespace, storage: JournalStorage | None) -> optuna.Study:
    """The study, with all that its storage has of it."""
    pruner: optuna.pruners.BasePruner = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=32),
        "halving": optuna.pruners.SuccessiveHalvingPruner(min_resource=32),
        "none": optuna.pruners.NopPruner(),
    }[options.pruner]
    study = optuna.create_study(storage=storage, study_name=options.name, load_if_exists=True, pruner=pruner)
    # a study that goes on must not draw the same once more
    seed = None if options.seed is None else options.seed + len(study.get_trials(deepcopy=False))
    # constant_liar keeps trials that run at once apart
    study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
    return study


def main() -> int:
    """Runs the study; 0 once all trials are told, 130 where it was stopped, 1 where it could not go on."""
    options = parsed()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    if options.dry_run:
        hpo = Hpo(options, made(options, None))
        for _ in range(min(options.trials, options.parallel)):
            trial = hpo.study.ask()
            print(shlex.join(hpo.command(trial, hpo.folder_of(trial.number))))
        return 0
    try:
        options.folder.mkdir(parents=True, exist_ok=True)
        with (options.folder / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                print(f"another process runs the study in {options.folder}: stop that one first", file=sys.stderr)
                return 1
            return studied(options)
    except StorageError as error:
        print(error, file=sys.stderr)
    except SlurmError as error:
        print(f"{error}; start the study again once that is mended", file=sys.stderr)
    except OSError as error:
        where = error.filename or options.folder
        print(f"{where}: {error.strerror}; start the study again once that is mended", file=sys.stderr)
    return 1


def studied(options: argparse.Namespace) -> int:
    """Runs or goes on with the study in a folder that is this process's alone; raises as main tells."""
    hpo = Hpo(options, opened(options))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: hpo.stop.set())
    try:
        hpo.run()
    except SlurmError:
        if not hpo.stop.is_set():
            raise
    finally:  # an error is no reason to stop trainings: what cannot be followed now is found again later
        if hpo.stop.is_set():
            hpo.close()
        else:
            hpo.leave()
    print(f"{CLEARED * sys.stdout.isatty()}{summary(hpo.study)}")
    return 130 if hpo.stop.is_set() else 0


def opened(options: argparse.Namespace) -> optuna.Study:
    """The study of the journal in its folder; raises OSError and StorageError."""
    path = options.folder / "journal"
    if path.exists():
        whole(path)
    try:
        # a journal in a file is made for file systems without good locks, which sqlite is not
        return made(options, JournalStorage(JournalFileBackend(str(path))))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        raise StorageError(f"{path} cannot be read ({error}): put it back, or move it away to begin anew") from error


def whole(journal: Path) -> None:
    """Cuts off a last line that a full disk or a kill has left without its end: what follows would be lost too."""
    with journal.open("r+b") as file:
        size = file.seek(0, 2)
        file.seek(begin := max(0, size - (1 << 20)))
        if (tail := file.read()) and not tail.endswith(b"\n"):
            file.truncate(begin + tail.rfind(b"\n") + 1)


if __name__ == "__main__":
    raise SystemExit(main())
