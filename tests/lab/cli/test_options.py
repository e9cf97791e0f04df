"""Options of the command line, and what its help imports."""

import subprocess
import sys

import pytest

import hushbit as hb
from hushbit.lab.cli import COMMANDS, load_command
from hushbit.lab.cli.options import PANEL_OF, options_from
from hushbit.lab.sim.settings import FIELDS


def test_every_field_is_an_option_with_help(hushbit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = hushbit("run", "--help").out
    for name, field in FIELDS.items():
        assert "--" + name.replace("_", "-") in shown
        assert field.metadata["help"][:12] in shown
    assert "[default: digits]" in shown
    assert "--mechanism " not in hushbit("compare", "--help").out


def commands():
    """Every command by its words; `data` has commands of its own."""
    for name in COMMANDS:
        command = load_command(name)
        below = getattr(command, "commands", {})
        yield from ((f"{name} {key}", part) for key, part in below.items())
        if not below:
            yield name, command


@pytest.mark.parametrize(("name", "command"), commands(), ids=lambda one: str(one))
def test_every_command_prints_its_result_as_json_on_request(name, command):
    assert any("--json" in parameter.opts for parameter in command.params)


def test_every_option_of_a_run_is_in_one_group_of_the_help(hushbit, monkeypatch):
    assert PANEL_OF.keys() == FIELDS.keys()
    monkeypatch.setenv("COLUMNS", "100")
    shown = hushbit("run", "--help").out
    titles = [line.strip("╭╮─ ") for line in shown.splitlines() if line.startswith("╭")]
    assert titles == [
        "Options",
        "Data",
        "Model and training",
        "Privacy",
        "Server",
        "Attack and defence",
        "Computation",
        "Output",
    ]
    first = shown[: shown.index("─ Data ─")]
    assert [word for word in first.split() if word.startswith("--")] == ["--config", "--help"]


SAME = {
    "data list": ("--data",),
    "data fetch": ("--data",),
    "data verify": ("--data",),
    "reproduce": ("--data", "--out", "--workers"),
    "demo": ("--out",),
    "compare": ("--data", "--out"),
    "tally": ("--defence", "--engine", "--workers", "--seed"),
    "plan": ("--bits-per-weight", "--note"),
}


def test_options_of_other_commands_have_the_names_that_run_uses():
    known = dict(commands())
    names = {name: {flag for one in c.params for flag in one.opts} for name, c in known.items()}
    for name, flags in SAME.items():
        assert set(flags) <= names[name] & names["run"], name


def test_the_command_line_overrides_the_file_and_the_file_the_defaults(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("users = 5\nrounds = 6\n")
    assert options_from({}, None) == {}
    assert options_from({}, path) == {"users": 5, "rounds": 6}
    assert options_from({"users": 7}, path) == {"users": 7, "rounds": 6}


HEAVY = {"numba", "torch", "sklearn", "scipy", "pyarrow", "plotly", "matplotlib", "pooch"}
SCRIPT = """
import sys
import hushbit
before = set(sys.modules)
from hushbit.lab.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    print("exit code", end.code)
print(*(set(sys.modules) - before), file=sys.stderr)
"""


def imported_by(*words, code=None):
    """The modules that a command line imports beyond those of `import hushbit`."""
    command = [sys.executable, "-c", SCRIPT, *map(str, words)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] in ({f"exit code {code}"} if code else SUCCESS)
    return set(answer.stderr.splitlines()[-1].split())


SUCCESS = ("exit code None", "exit code 0")
BUDGET = ("--epsilon", 4, "--delta", 1e-5, "--per", "run", "--against", "model")
WRONG = [
    ("run", "--typo"),
    ("run", "--users", "many"),
    ("run", "--users", 0),
    ("run", "--mechanism", "magic"),
    ("run", "--dataset", "imagenet"),
    ("run", *BUDGET[:4]),
    ("run", *BUDGET[:6], "--against", "everybody"),
    ("run", *BUDGET, "--epsilon-per-bit", 1),
    ("compare", "--typo"),
    ("compare", "--mechanisms", "fedavg,magic"),
    ("compare", *BUDGET[:6]),
]


@pytest.mark.parametrize("words", WRONG, ids=lambda words: " ".join(map(str, words)))
def test_wrong_options_are_refused_before_a_heavy_package_is_imported(words):
    assert not HEAVY & imported_by(*words, code=2)


def test_help_imports_no_command_and_no_heavy_package():
    imported = imported_by("--help")
    assert not HEAVY & imported
    commands = {f"hushbit.lab.cli.{module}" for module, _ in COMMANDS.values()}
    assert not commands & imported
    assert "hushbit.lab.sim.settings" not in imported


@pytest.mark.parametrize("name", ["run", "compare", "demo", "tally", "data"])
def test_help_of_a_command_imports_no_heavy_package(name):
    imported = imported_by(name, "--help")
    assert not HEAVY & imported
    assert f"hushbit.lab.cli.{COMMANDS[name][0]}" in imported


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(hushbit, name):
    assert f"Usage: hushbit {name} " in hushbit(name, "--help").out
    assert COMMANDS[name][1] in hushbit("--help").out


def test_version_is_printed(hushbit):
    answer = hushbit("--version")
    assert (answer.code, answer.out, answer.err) == (0, f"hushbit {hb.__version__}\n", "")


def test_jopeq_is_not_offered_a_lattice(hushbit):
    assert "jopeq" not in FIELDS["lattice"].metadata["help"]
    answer = hushbit(
        "run", "--mechanism", "jopeq", "--epsilon-per-bit", 1, "--users", 4, "--lattice", "A2"
    )
    assert (answer.code, "jopeq does not take --lattice" in answer.err) == (2, True)
