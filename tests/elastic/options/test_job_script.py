"""The rewritten script: the user's lines stay the user's, at their own line numbers."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.base.errors import UsageError
from elastic.options.job_script import (
    Header,
    backend_of,
    constraints,
    elastic_option,
    interpreter_of,
    restore,
    rewrite,
    words_of,
)
from tests.support.messages import pattern

HEADER = Header("1-4", "elastic", "/run/bftd.sock", "/home/a/train.py", "/usr/bin/python3", ("--nice=5",), "sbatch")

lines = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\n"), max_size=40)
scripts = st.lists(lines | st.sampled_from(["#SBATCH --time=5", "import torch", "", "# hello"]), max_size=12).map(
    lambda some: "\n".join(["#!/usr/bin/env python3", *some]) + "\n"
)


def test_regression_a_file_of_python_without_a_first_line_for_the_kernel_was_refused() -> None:
    source = "#SBATCH --elastic=1-4\n#SBATCH --time=5\nimport torch\n"
    assert interpreter_of(source, "finetune.py") == shutil.which("python3")
    rewritten = rewrite(source, "/d", HEADER)
    assert [line for line in rewritten.split("\n") if line.startswith("#SBATCH")] == ["#SBATCH --time=5"]
    assert restore(rewritten) == (HEADER, source.replace("#SBATCH --el", "##SBATCH --el"))


@given(scripts)
def test_the_driver_gets_back_exactly_the_script_that_was_submitted(source: str) -> None:
    assert restore(rewrite(source, "/opt/bft-driver", HEADER)) == (HEADER, source)


@given(scripts)
def test_the_rewritten_script_has_one_line_more_and_runs_the_driver(source: str) -> None:
    rewritten = rewrite(source, "/opt/bft-driver", HEADER)
    assert rewritten.startswith("#!/opt/bft-driver\n")
    assert rewritten.count("\n") == source.count("\n") + 1


def test_the_first_line_comes_back_even_where_its_end_is_unusual() -> None:
    for source in ("#!/usr/bin/python3\r\nimport os\r\n", "#!/usr/bin/python3 \x0c\nimport os\n"):
        assert restore(rewrite(source, "/d", HEADER))[1] == source


def test_sbatch_never_sees_the_elastic_option_of_the_script_and_line_numbers_stay() -> None:
    source = "#!/usr/bin/env python3\n#SBATCH --elastic=1-4\n#SBATCH --time=5\nraise SystemExit\n"
    rewritten = rewrite(source, "/d", HEADER)
    assert "\n#SBATCH --elastic" not in rewritten
    assert "\n#SBATCH --time=5\n" in rewritten
    back = restore(rewritten)[1].split("\n")
    assert back.index("raise SystemExit") == source.split("\n").index("raise SystemExit")


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("#SBATCH -C ib", "ib"),
        ("#SBATCH -Cib", "ib"),
        ("#SBATCH --constraint=a100&ib  # fast", "a100&ib"),
        ("#SBATCH --constraint 'a100&ib'", "a100&ib"),
        ('#SBATCH -C "a100&ib"', "a100&ib"),
    ],
)
def test_sbatch_never_sees_a_constraint_of_the_script_which_is_about_other_nodes(line: str, value: str) -> None:
    source = f"#!/usr/bin/env python3\n{line}\n#SBATCH --time=5\nraise SystemExit\n#SBATCH -C none\n"
    assert constraints(source) == (value,)
    rewritten = rewrite(source, "/d", replace(HEADER, constraint=value))
    assert f"\n#{line}\n#SBATCH --time=5\n" in rewritten
    assert restore(rewritten)[0].constraint == value


def test_a_constraint_beside_other_options_is_not_taken_for_one() -> None:
    assert constraints("#!/usr/bin/env python3\n#SBATCH -C ib -t 5\n#SBATCH --comment=x -C ib\n") == ()


def test_text_of_the_body_that_looks_like_an_option_is_left_alone() -> None:
    source = '#!/usr/bin/env python3\nJOB = """\n#SBATCH --elastic=1-4\n"""\n'
    assert elastic_option(source) is None
    assert restore(rewrite(source, "/d", HEADER))[1] == source


@pytest.mark.parametrize(
    ("head", "value"),
    [
        ("#SBATCH --elastic=1-4\n", "1-4"),
        ("#SBATCH   --elastic 2-8,backend=torchrun\n", "2-8,backend=torchrun"),
        ("\n# words\n#SBATCH --time=5\n#SBATCH --elastic=1-4  # as many as there are\n", "1-4"),
        ("#SBATCH --elastic=1-2\n#SBATCH --elastic=1-4\n", "1-4"),
        ("import os\n#SBATCH --elastic=1-4\n", None),
        ("##SBATCH --elastic=1-4\n", None),
        ("# SBATCH --elastic=1-4\n", None),
        ("#SBATCH --elastic=1-4,progress='step (?P<step>[0-9]+)'\n", "1-4,progress=step (?P<step>[0-9]+)"),
        ('#SBATCH --elastic="1-4,progress=it\'s (?P<step>[0-9]+)#"  # why\n', "1-4,progress=it's (?P<step>[0-9]+)#"),
        ('#SBATCH --elastic "1-4,progress=\\"a\\" (?P<step>\\\\d+)"\n', '1-4,progress="a" (?P<step>\\d+)'),
        ("#SBATCH --elastic=1-4,progress='(?P<step>\\d+)'\n", "1-4,progress=(?P<step>d+)"),  # sbatch does it, too
        ("#SBATCH --elastic=1-4,progress=a\\#(?P<step>.)\n", "1-4,progress=a#(?P<step>.)"),
        ("#SBATCH --elastic=1-4\\ # a space ends it\n", "1-4"),
        ("#SBATCH --elastic=1-4 --time=5\n", None),
        ("#SBATCH --elastic\n#SBATCH-like comment\n", None),
        ("#SBATCH --elastic\n#comment\n", None),
        ("", None),
    ],
)
def test_the_option_is_found_in_the_head_of_the_script_only(head: str, value: str | None) -> None:
    assert elastic_option("#!/usr/bin/env python3\n" + head + "print()\n") == value


def test_a_quoted_option_is_hidden_from_sbatch_and_comes_back() -> None:
    source = "#!/usr/bin/env python3\n#SBATCH --elastic='1-4,progress=a (?P<step>[0-9]+)' # b\nprint()\n"
    header = replace(HEADER, elastic='1-4,progress="a" (?P<step>\\d+)')
    rewritten = rewrite(source, "/d", header)
    assert "\n##SBATCH --elastic='1-4" in rewritten
    assert restore(rewritten) == (header, source.replace("\n#SB", "\n##SB"))


@pytest.mark.parametrize("line", ["#SBATCH --elastic='1-4", '#SBATCH -J "x', "#SBATCH -J don't"])
def test_regression_an_open_quote_in_the_head_was_a_traceback(line: str) -> None:
    with pytest.raises(UsageError, match=pattern("elastic.script.open_quote") + "$"):
        words_of(line)


def test_the_interpreter_is_the_one_that_the_first_line_names() -> None:
    here = sys.executable
    assert interpreter_of(f"#!{here}\n", "a.py") == here
    assert interpreter_of(f"#!{here} -u\n", "a.py") == here


def test_env_is_followed_to_the_python_of_the_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert interpreter_of("#!/usr/bin/env python3\n", "a.py") == str(python)
    assert interpreter_of("#!/usr/bin/env -S python3 -u\n", "a.py") == str(python)


@pytest.mark.parametrize(
    "source",
    [
        "",
        "import os\n",
        "#!/bin/sh\n",
        "#!/usr/bin/env bash\n",
        "#!/usr/bin/env 'python3\n",
        "#!/nowhere/python3\n",
        "#!\n",
        "#!/usr/bin/env\n",
    ],
)
def test_a_script_without_a_python_is_refused_with_one_line_that_names_it(source: str) -> None:
    with pytest.raises(UsageError, match=r"^train: ") as caught:
        interpreter_of(source, "train")
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("source", "backend"),
    [
        ("import horovod.torch as hvd\n", "horovod"),
        ("import elastic.horovod\n", "horovod"),
        ("from horovod import torch\n", "horovod"),
        ("if x:\n    import horovod.torch as hvd\n", "horovod"),
        ("import torch\nimport elastic\n", "torchrun"),
        ("# import horovod\nprint('import horovod')\n", "torchrun"),
        ("import horovodlike\n", "torchrun"),
    ],
)
def test_the_back_end_is_horovod_where_the_script_imports_it(source: str, backend: str) -> None:
    assert backend_of(source, "train.py") == backend


@pytest.mark.parametrize(
    ("source", "module"),
    [
        ("import horovod.tensorflow as hvd\n", "horovod.tensorflow"),
        ("import horovod.tensorflow.keras as hvd\n", "horovod.tensorflow"),
        ("import os, horovod.keras\n", "horovod.keras"),
        ("from horovod import keras as hvd\n", "horovod.keras"),
        ("from horovod.mxnet import init\n", "horovod.mxnet"),
        ("import elastic.horovod\nimport horovod.tensorflow as hvd\nimport torch\n", "horovod.tensorflow"),
        ("def main():\n    import horovod.keras as hvd\n", "horovod.keras"),
        (
            "try:\n    from horovod import tensorflow as hvd\nexcept ImportError:\n    hvd = None\n",
            "horovod.tensorflow",
        ),
        ("print 'two'\nif x:\n  import horovod.keras\n", "horovod.keras"),
        ("import tensorflow.keras\n", "tensorflow"),
        ("from tensorflow import keras\nimport elastic\n", "tensorflow"),
        ("import mxnet as mx\n", "mxnet"),
    ],
)
@pytest.mark.parametrize("asked", [None, "horovod", "torchrun"])
def test_a_script_for_another_library_than_torch_is_refused_with_one_line(
    source: str, module: str, asked: str | None
) -> None:
    with pytest.raises(UsageError) as caught:
        backend_of(source, "train.py", asked)
    assert len(str(caught.value).splitlines()) == 1
    assert str(caught.value).startswith(f"train.py imports {module},")


@pytest.mark.parametrize(
    "source",
    [
        "import tensorflow as tf\nimport torch\n",
        "import tensorflow as tf\nfrom torch import nn\n",
        "import tensorflow_datasets\n",
        "from .horovod import keras\n",
        '\'\\d\'\n"""\nimport horovod.keras\n"""\n',
        "try:\n    import horovod.torch as hvd\nexcept ImportError:\n    import horovod.keras as hvd\n",
        "print 'two'\n# import horovod.keras\n",
        "print 'two'\nimport (\n",
        "\0",
        "\udcff",
        "(" * 100_000,
    ],
)
def test_a_script_that_may_train_with_torch_is_not_refused(source: str) -> None:
    assert backend_of(source, "train.py") in ("horovod", "torchrun")


@pytest.mark.parametrize("text", ["", "#!/d\n", "#!/d\nprint()\n", "#!/d\nprint()\nprint()\n", "#!/d\n#BFT {\nx\n"])
def test_a_script_that_was_not_rewritten_is_refused_with_one_line(text: str) -> None:
    with pytest.raises(UsageError, match="bft sbatch"):
        restore(text)


def test_the_python_of_a_script_in_an_image_is_not_looked_for_on_this_host() -> None:
    assert interpreter_of("#!/usr/bin/env python3.99\n", "a.py", contained=True) == "python3.99"
    assert interpreter_of("#!/opt/conda/bin/python\n", "a.py", contained=True) == "/opt/conda/bin/python"
    with pytest.raises(UsageError, match="Python script"):
        interpreter_of("#!/bin/bash\n", "a.py", contained=True)
