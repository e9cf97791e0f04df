"""hushbit compare: the same users for all mechanisms, early errors, table and plot."""

import json

import pytest

from hushbit.budget import Budget
from hushbit.errors import InvalidInput
from hushbit.lab.cli.compare import settings_per_mechanism

SMALL = ("compare", "--users", 12, "--rounds", 2)


def test_table_and_plot(hushbit, tmp_path):
    answer = hushbit(*SMALL, "--epsilon-per-bit", 1, "--out", tmp_path / "out")
    assert answer.code == 0
    plot = tmp_path / "out" / "compare.png"
    assert answer.out.splitlines()[-1] == str(plot)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert max(len(line) for line in answer.out.splitlines()[:-1]) <= 80
    lines = answer.out.splitlines()
    assert lines[:3] == ["digits, linear (650 weights), 12 users, 2 rounds", "", lines[2]]
    assert lines[2] == "Best private run: cpa"
    for text in ("epsilon against the model", "epsilon against the server", "users for epsilon"):
        assert text in answer.out
    assert answer.out.count("plain 1 ") == 2  # the server step of both runs
    assert "(dB)" not in answer.out
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
    assert answer.out.count("within the budget") == 1
    assert "Server rates differ: under a budget" in " ".join(answer.out.split())


def test_fedavg_has_no_budget_beside_others_and_is_refused_alone(hushbit):
    parts = {"epsilon": 6.0, "delta": 1e-5, "per": "message", "against": "server"}
    fedavg, cpa = settings_per_mechanism(["fedavg", "cpa"], parts)
    assert (fedavg.budget, cpa.budget) == (None, Budget(6.0, 1e-5, per="message", against="server"))
    answer = hushbit(*SMALL, *BUDGET, "--mechanisms", "fedavg")
    assert answer.code == 2
    assert "fedavg has no privacy and cannot spend a budget" in answer.err


def test_details_have_every_figure_and_a_note_on_simulations(hushbit):
    answer = hushbit(*SMALL, "--epsilon-per-bit", 1, "--details")
    assert answer.out.count("All figures of") == 2
    assert "history" not in answer.out
    assert answer.out.count("must not release") == 1


def test_a_figure_that_only_the_server_has_is_marked(hushbit):
    answer = hushbit(*SMALL, "--mechanisms", "laplace", "--epsilon-per-bit", 1)
    assert "no smaller one than against the server is proved" in answer.out


def test_options_of_a_file_apply_to_mechanisms_that_accept_them(hushbit, tmp_path):
    config = tmp_path / "both.toml"
    config.write_text("epsilon_per_bit = 1.0\nradius = 0.1\nusers = 8\nrounds = 1\n")
    answer = hushbit("compare", "--config", config, "--json")
    assert answer.code == 0
    assert [r["epsilon_bit"] for r in json.loads(answer.out)] == ["inf", 1.0]


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


def test_only_the_best_run_has_a_statement_unless_details_are_wanted(hushbit):
    words = (*SMALL, "--epsilon-per-bit", 1, "--mechanisms", "fedavg,cpa,laplace")
    assert hushbit(*words).out.count("Against the server, which sees ballots:") == 1
    details = hushbit(*words, "--details").out
    assert details.count("Against the server, which sees ballots:") == 2
    assert details.count("No privacy: users send") == 1
