"""hushbit compare: the same users for all mechanisms, early errors, table and plot."""

import json

import pytest

from hushbit.errors import InvalidInput
from hushbit.lab.cli.compare import epsilon_columns, settings_per_mechanism

SMALL = ("compare", "--users", 12, "--rounds", 2)


def test_table_and_plot(hushbit, tmp_path):
    answer = hushbit(*SMALL, "--epsilon-per-bit", 1, "--out", tmp_path / "out")
    assert answer.code == 0
    plot = tmp_path / "out" / "compare.png"
    assert answer.out.splitlines()[-1] == str(plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert max(len(line) for line in answer.out.splitlines()[:-1]) <= 80
    for word in ("fedavg", "cpa", "accuracy", "(dB)", " MB", "message", "inf", " s "):
        assert word in answer.out
    assert (tmp_path / "out" / "cpa" / "summary.json").exists()
    assert len(answer.lines) == 2  # one progress line per mechanism


def test_json(hushbit):
    answer = hushbit(*SMALL, "--mechanisms", "cpa, fedavg", "--epsilon-per-bit", 1, "--json")
    first, second = json.loads(answer.out)
    assert (first["mechanism"], second["mechanism"]) == ("cpa", "fedavg")
    assert first["bytes_up"] < second["bytes_up"]


BUDGET = ("--epsilon", 6, "--delta", 1e-5, "--per", "message", "--against", "server")


def test_a_budget_of_all_mechanisms(hushbit):
    answer = hushbit(*SMALL, *BUDGET)
    assert answer.code == 0
    assert max(map(len, answer.out.splitlines())) <= 80
    assert answer.out.count("must not release") == 1
    assert answer.out.count("within the budget") == 1
    assert answer.out.count("No privacy") == 1
    assert all(word in answer.out for word in ("per message,", "per run,"))


@pytest.mark.parametrize(
    ("parts", "keys"),
    [
        (("run", "model"), ["epsilon_spent", "epsilon_run_server"]),
        (("run", "server"), ["epsilon_spent", "epsilon_run_model"]),
        (("bit", "server"), ["epsilon_spent", "epsilon_run_server", "epsilon_run_model"]),
        (None, ["epsilon_bit", "epsilon_run_server", "epsilon_run_model"]),
    ],
)
def test_the_requested_unit_is_the_first_epsilon_of_the_table(parts, keys):
    columns = epsilon_columns(None if parts is None else {"per": parts[0], "against": parts[1]})
    assert [key for key, _, _ in columns] == keys
    unit, observer = parts or ("bit", "server")
    assert columns[0][1].split() == ["epsilon", "per", f"{unit},", observer]


def test_a_figure_that_only_the_server_has_is_marked(hushbit):
    answer = hushbit(*SMALL, "--mechanisms", "laplace", "--epsilon-per-bit", 1)
    assert "as server" in answer.out


def test_options_of_a_file_apply_to_mechanisms_that_accept_them(hushbit, tmp_path):
    config = tmp_path / "both.toml"
    config.write_text("epsilon_per_bit = 1.0\nradius = 0.1\nusers = 8\nrounds = 1\n")
    answer = hushbit("compare", "--config", config, "--json")
    assert answer.code == 0
    assert [r["epsilon_per_bit"] for r in json.loads(answer.out)] == ["inf", 1.0]


@pytest.mark.parametrize(
    ("words", "word"),
    [
        (("--mechanisms", "fedavg,cpa"), "cpa needs --epsilon-per-bit"),
        (("--mechanisms", "fedavg,magic"), "unknown mechanism 'magic'"),
        (("--mechanisms", "fedavg,fedavg"), "every mechanism once"),
        (("--mechanisms", "fedavg,"), "every mechanism once"),
        (("--mechanisms", "fedavg", "--points", 4), "takes --points"),
        (("--mechanisms", "fedavg,nested", "--epsilon-per-bit", 1, "--stages", "x"), "2,8"),
    ],
)
def test_errors_come_before_the_first_run(hushbit, tmp_path, words, word):
    answer = hushbit(*SMALL, "--out", tmp_path / "out", *words)
    assert answer.code == 2
    assert len(answer.lines) == 1
    assert word in answer.err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_run_stops_the_comparison(hushbit, tmp_path):
    words = (*SMALL, "--out", tmp_path, "--epsilon-per-bit", 1)
    assert hushbit(*words, "--mechanisms", "cpa").code == 0
    answer = hushbit(*words, "--mechanisms", "fedavg,cpa")
    assert answer.code == 2
    assert "already holds a run" in answer.err
    assert not (tmp_path / "fedavg").exists()


def test_each_mechanism_gets_the_options_it_accepts():
    fedavg, cpa = settings_per_mechanism(["fedavg", "cpa"], {"users": 3, "epsilon_per_bit": 1.0})
    assert (fedavg.users, fedavg.epsilon_per_bit) == (3, None)
    assert (cpa.users, cpa.epsilon_per_bit) == (3, 1.0)
    with pytest.raises(InvalidInput):
        settings_per_mechanism([""], {})
