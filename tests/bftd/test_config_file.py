"""The configuration file."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from bftd import config_file
from bftd.base import old_names
from bftd.base.errors import ConfigError, UsageError
from bftd.config import keys
from bftd.config.keys import PoolConfig, tunable
from bftd.daemon.process import _command
from milp.running import process
from tests.support.messages import excerpt, fragment, pattern, says, wording


def test_an_empty_file_means_the_defaults() -> None:
    assert config_file.parse("") == keys.Config()


def test_the_printed_configuration_reads_back_to_the_same_values() -> None:
    changed = config_file.parse('[pool]\nmin_window_s = 33\n[slurm]\nconf = "/etc/x \\"y\\""\n')
    assert changed.pool.min_window_s == 33.0
    assert config_file.parse(config_file.to_toml(changed)) == changed
    assert config_file.parse(config_file.to_toml(keys.Config())) == keys.Config()


def test_every_key_has_a_line_of_documentation_and_an_example_of_its_type() -> None:
    for key in keys.reference():
        assert key.doc.endswith((".", ")")), key
        assert type(key.example).__name__ == key.type, key


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[pol]\n", "unknown section [pol]; did you mean pool?"),
        ("[pool]\nmin_windw_s = 3\n", "unknown key min_windw_s in [pool]; did you mean min_window_s?"),
        (
            "[decide]\nt_fwd_s = 'long'\n",
            wording(
                "bftd.key_fields.wrong", where="[decide] t_fwd_s", wanted="a number", shown="'long'", example=120.0
            ),
        ),
        ("[decide]\npj_max = 2.5\n", wording("milp.fields.not_whole", where="[decide] pj_max", shown=2.5)),
        ("[decide]\npj_max = true\n", wording("milp.fields.not_whole", where="[decide] pj_max", shown="True")),
        ("[decide]\npj_max = 0\n", wording("bftd.key_fields.too_small", where="[decide] pj_max", low=1, value=0)),
        (
            "[pool]\nspare_nodes = -1\n",
            wording("bftd.key_fields.too_small", where="[pool] spare_nodes", low=0, value=-1),
        ),
        ("[decide]\nt_fwd_s = nan\n", excerpt("bftd.key_fields.not_finite", where="[decide] t_fwd_s")),
        (
            "[slurm]\npoll_s = 1e9\n",
            excerpt("bftd.key_fields.too_large", where="[slurm] poll_s", high=fragment("60.0")),
        ),
        (
            "[slurm]\npilot_mode = 'srun'\n",
            wording("bftd.key_fields.not_one_of", where="[slurm] pilot_mode", choices="salloc, sbatch", value="srun"),
        ),
        ("pool = 3\n", excerpt("bftd.config.not_a_section", section=fragment("pool"), section2="pool")),
        ("[pool\n", "not valid TOML"),
        ("[api]\ntcp = 'host:1'\nauth = 'token'\n", 'auth = "token" needs token_file'),
        (
            "[slurm]\npoll_s = 15\n",
            excerpt("bftd.config.stale_after_too_short", poll_s=15, stale_after_s=fragment("10")),
        ),
        (
            "[slurm]\npoll_s = 15\n[pool]\nstale_after_s = 45\n",
            excerpt("bftd.config.vacate_ahead_too_short", poll_s=15, vacate_ahead_s=fragment("5")),
        ),
        (
            "[pool]\nmin_window_s = 4\n",
            excerpt("bftd.config.min_window_too_short", vacate_ahead_s=5, min_window_s=fragment("4")),
        ),
        (
            "[decide]\nsolve_time_limit_s = 11\n",
            excerpt("bftd.config.solve_limit_too_long", stale_after_s=10),
        ),
        (
            "[slurm]\ndriver_partition = 'elastic'\n",
            excerpt("bftd.config.driver_partition_same", driver_partition="elastic"),
        ),
    ],
)
def test_a_wrong_file_is_told_in_one_line_that_names_file_and_key(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "bftd.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        config_file.load(path)
    message = str(error.value)
    assert told in message
    assert str(path) in message
    assert "\n" not in message
    assert error.value.exit_code == 2


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (f"t_fwd_s = 1{'0' * 400}", excerpt("bftd.key_fields.not_finite", where="[decide] t_fwd_s")),
        (f"t_fwd_s = -1{'0' * 400}", excerpt("bftd.key_fields.not_finite", where="[decide] t_fwd_s")),
        (f"pj_max = 1{'0' * 400}", excerpt("bftd.key_fields.too_long", where="[decide] pj_max")),
        (f"pj_max = 1{'0' * 5000}", excerpt("bftd.config.integer_too_long")),
        # no limit on digits keeps Python from reading these, only from showing them
        (f"pj_max = 0x{'f' * 5000}", excerpt("bftd.key_fields.too_long", where="[decide] pj_max")),
        (f"t_fwd_s = 0x{'f' * 5000}", excerpt("bftd.key_fields.not_finite", where="[decide] t_fwd_s")),
        (
            f"solver = 0x{'f' * 5000}",
            excerpt(
                "bftd.key_fields.wrong",
                where="[decide] solver",
                wanted="a text",
                shown=wording("bftd.key_fields.long_number"),
            ),
        ),
    ],
    ids=lambda text: text[:12],
)
def test_an_integer_too_long_for_its_key_is_told_in_one_line(line: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_file.parse(f"[decide]\n{line}\n")
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_key_without_a_maximum_takes_no_integer_beyond_64_bits() -> None:
    assert config_file.parse(f"[pool]\nspare_nodes = {2**63 - 1}\n").pool.spare_nodes == 2**63 - 1
    with pytest.raises(ConfigError, match="at most 64 bits"):
        config_file.parse(f"[pool]\nspare_nodes = {2**63}\n")


def test_tuning_to_an_integer_too_large_for_a_float_is_told_in_one_line() -> None:
    key = next(key for key in tunable() if key.name == "t_fwd_s")
    with pytest.raises(
        ConfigError, match="^" + pattern("bftd.key_fields.not_finite", where="--t-fwd", value="inf") + "$"
    ):
        key.checked(10**400, "--t-fwd")


def test_regression_tuning_t_fwd_beyond_what_solvers_take_ended_all_lending() -> None:
    key = next(key for key in tunable() if key.name == "t_fwd_s")
    assert key.checked(30 * 86_400.0, "--t-fwd") == 30 * 86_400.0
    with pytest.raises(
        ConfigError,
        match="^" + pattern("bftd.key_fields.too_large", where="--t-fwd", high=2592000.0, value="1e+300") + "$",
    ):
        key.checked(1e300, "--t-fwd")


def test_a_missing_file_and_a_binary_one_are_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        config_file.load(tmp_path / "none.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="UTF-8"):
        config_file.load(tmp_path / "binary")


def test_the_file_is_found_by_option_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BFTD_CONFIG", raising=False)
    assert config_file.find() == Path("/etc/bftd/bftd.toml")
    monkeypatch.setenv("BFTD_CONFIG", "/a")
    assert config_file.find() == Path("/a")
    assert config_file.find("/b") == Path("/b")


def test_a_file_that_is_named_must_be_there_and_without_one_the_defaults_hold(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(config_file, "DEFAULT_PATH", tmp_path / "bftd.toml")
    monkeypatch.setenv("BFTD_CONFIG", "")
    assert config_file.load_found() == keys.Config()
    (tmp_path / "bftd.toml").write_text("[decide]\npj_max = 3\n")
    assert config_file.load_found().decide.pj_max == 3
    with pytest.raises(ConfigError, match="No such file"):
        config_file.load_found(str(tmp_path / "none.toml"))
    monkeypatch.setenv("BFTD_CONFIG", str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="No such file"):
        config_file.load_found()


def test_check_config_tells_an_unknown_solver_and_print_config_needs_no_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("BFTD_CONFIG", raising=False)
    path = tmp_path / "bftd.toml"
    path.write_text("[decide]\nsolver = 'cplex'\n")
    run = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    assert isinstance(run.exception, ConfigError)
    assert run.exception.exit_code == 2
    assert f"{path}: [decide] solver: unknown solver 'cplex'" in str(run.exception)
    path.write_text("[decide]\nsolver = 'gurobbi'\n")
    run = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    assert "'gurobi'" in str(run.exception), "the nearest match"
    path.write_text("[decide]\nsolver = 'exact'\n")
    assert CliRunner().invoke(_command, ["--config", str(path), "--check-config"]).exit_code == 0
    assert 'solver = "exact"' in CliRunner().invoke(_command, ["--config", str(path), "--print-config"]).output


@pytest.mark.parametrize("lacks", ["package", "licence"])
def test_check_config_tries_the_solver_and_says_in_one_line_what_it_lacks(
    lacks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "bftd.toml"
    path.write_text("[decide]\nsolver = 'gurobi'\n")
    licence = tmp_path / "gurobi.lic"
    if lacks == "package":
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    else:
        pytest.importorskip("gurobipy")
        licence.write_text("TOKENSERVER=127.0.0.1\nPORT=1\n")
        monkeypatch.setenv("GRB_LICENSE_FILE", str(licence))
        process._end_idle()  # a process of before has another environment
    run = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    process._end_idle()
    assert isinstance(run.exception, ConfigError)
    assert str(run.exception).startswith(f"{path}: [decide] solver: ")
    assert ("bftd[gurobi]" if lacks == "package" else "licence") in str(run.exception)


WITH_ONE_GONE = "[pool]\nplan_wait_s = 'whatever'\nspare_nodes = 2\n"


def test_regression_an_upgrade_stopped_the_daemon_whose_file_had_a_key_that_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "bftd.toml"
    path.write_text(WITH_ONE_GONE)
    told: list[str] = []
    assert config_file.load(path, told.append).pool == PoolConfig(spare_nodes=2)
    [line] = told
    assert says(line, "bftd.config.key_gone", name=path, section="pool", key="plan_wait_s")
    assert "earmark" in line
    assert "\n" not in line
    assert config_file.load(path).pool.spare_nodes == 2, "commands of users say nothing of it"
    checked = CliRunner().invoke(_command, ["--config", str(path), "--check-config"])
    assert checked.exit_code == 0
    assert [record.getMessage() for record in caplog.records] == [line]
    assert "plan_wait_s" not in config_file.to_toml(config_file.load(path))


def test_a_key_that_is_gone_is_gone_from_its_section_only() -> None:
    with pytest.raises(ConfigError, match=pattern("bftd.config.unknown_key", key="plan_wait_s", section="slurm")):
        config_file.parse("[slurm]\nplan_wait_s = 3\n")


def test_no_key_is_there_and_gone_at_once() -> None:
    here = {(key.section, key.name) for key in keys.reference()}
    assert not here & (config_file.GONE.keys() | old_names.KEYS.keys())
    assert {(section, new) for (section, _), new in old_names.KEYS.items()} <= here


def test_the_old_name_of_a_key_is_understood_and_said_once() -> None:
    told: list[str] = []
    text = "[pool]\nmake_room = false\n"
    assert config_file.parse(text, "bftd.toml", told.append).pool == PoolConfig(earmark=False)
    renamed = {"name": "bftd.toml", "section": "pool", "key": "make_room", "new": "earmark", "new2": "earmark"}
    assert told == [wording("bftd.config.key_renamed", **renamed)]
    with pytest.raises(ConfigError, match=pattern("bftd.config.key_twice", **renamed)):
        config_file.parse(text + "earmark = true\n", "bftd.toml")
    with pytest.raises(ConfigError, match="make_room"):
        config_file.parse("[pool]\nmake_room = 3\n")


@pytest.mark.parametrize("told", ["login1", "login1:", ":6820", "login1:99999", "login1:http"])
def test_regression_an_address_without_a_port_passed_the_check(told: str) -> None:
    with pytest.raises(ConfigError, match=pattern("bftd.config.tcp_malformed")):
        config_file.parse(f'[api]\ntcp = "{told}"\n')
    assert config_file.parse('[api]\ntcp = "[::1]:6820"\n').api.tcp == "[::1]:6820"


@pytest.mark.parametrize("words", [("--dry-run", "--take-over"), ("--check-config", "--take-over")])
def test_regression_of_two_words_that_exclude_each_other_one_was_left_out_without_a_word(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    run = CliRunner().invoke(_command, ["--config", str(tmp_path / "none.toml"), *words])
    assert isinstance(run.exception, UsageError)
    assert says(str(run.exception), "bftd.daemon.options_exclude")


def test_several_partitions_are_harvested_by_one_daemon() -> None:
    read = config_file.parse('[slurm]\npartitions = ["gpu", "cpu"]\n')
    assert read.slurm.harvested == ("gpu", "cpu")
    assert read.slurm.partition == "gpu", "for what knows of one"
    assert config_file.parse(config_file.to_toml(read)) == read
    assert config_file.parse('[slurm]\npartition = "gpu"\n').slurm.harvested == ("gpu",)


def test_a_partition_beside_others_is_a_contradiction_of_one_line() -> None:
    with pytest.raises(ConfigError, match=pattern("bftd.config.partition_not_among", alone="elastic")):
        config_file.parse('[slurm]\npartition = "elastic"\npartitions = ["gpu"]\n')


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ('"gpu"', excerpt("bftd.key_fields.not_texts", where="[slurm] partitions", shown="'gpu'")),
        ("[1]", excerpt("bftd.key_fields.not_texts", where="[slurm] partitions", shown=[1])),
        ('[""]', excerpt("bftd.key_fields.not_texts", where="[slurm] partitions")),
        ('["gpu", "gpu"]', "[slurm] partitions names gpu twice"),
    ],
)
def test_a_list_that_is_none_of_texts_is_told_in_one_line(value: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        config_file.parse(f"[slurm]\npartitions = {value}\n")
    assert told in str(error.value)
