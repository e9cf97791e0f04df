"""The defence in the strategy: what the simulator decides, resumption, newcomers, refusals."""

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from flwr.app import Context, Message, RecordDict

import hushbit as hb
from flower.parts import DIM, LocalGrid, add, federation, run, run_unchanged, strategy, values
from flower.test_strategy import BAD
from hushbit.errors import DamagedFile, InvalidInput
from hushbit.flower import Defence, HushbitStrategy, ModelUnchanged
from hushbit.flower.records import ballot_record
from hushbit.flower.server_round import OpenRound
from hushbit.flower.strategy import CONFIG_FILE
from hushbit.store.run_folder import RunFolder
from hushbit.tally.tally import Tally
from hushbit.wire.ballot import Ballot, Ballots
from hushbit.wire.coins import SimulationCoins
from hushbit.wire.keys import UserKey

RUN = b"r" * 16
USERS, ROUNDS = 200, 12
CPA = {"mechanism": "cpa", "epsilon_per_bit": 1.0, "rotate": True, "clip": 0.5, "radius": 0.04}
AUTO = {"mechanism": "cpa-auto", "epsilon": 1.0, "delta": 0.0, "per": "bit", "against": "server"}
CASES = {
    "cpa": CPA | {"attack": "directed-stealth"},
    "some users": CPA | {"attack": "directed", "participation": 0.75},
    "auto": AUTO | {"attack": "directed-stealth"},
}


class Simulated(NamedTuple):
    """A simulated run: in each round the ballots, tally, tests and model; and its last state."""

    setup: Any
    ballots: list[Ballots]
    tallies: list[Tally]
    removed_by: list[dict[str, int]]
    models: list[np.ndarray]
    state: Any


@pytest.fixture(scope="module", params=CASES)
def simulated(request: pytest.FixtureRequest) -> Simulated:
    pytest.importorskip("torch")
    from hushbit.lab.sim import rounds as simulator
    from hushbit.lab.sim.settings import Settings
    from hushbit.lab.sim.setup import build_setup

    common = {"seed": 3, "attackers": 0.3, "defence": "scores", "server": "plain"}
    options = {**common, **CASES[request.param], "users": USERS, "rounds": ROUNDS}
    settings = Settings(server_rate=1.0, **options)
    setup = dataclasses.replace(build_setup(settings), run=RUN)
    state = simulator.initial_state(setup)
    made = Simulated(setup, [], [], [], [state.params], state)
    original = simulator.count_defended

    def count(settings: Any, tally: Tally, ballots: Ballots, *more: Any) -> Any:
        removals = original(settings, tally, ballots, *more)
        made.ballots.append(ballots)
        made.tallies.append(tally)
        made.removed_by.append(removals.result.removed_by)
        return removals

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulator, "count_defended", count)
        for _ in range(ROUNDS):
            simulator.one_round(setup, state)
            made.models.append(state.params)
    return made


@pytest.fixture(autouse=True)
def same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start has the same keys, so that ballots can be repeated."""
    monkeypatch.setattr("hushbit.flower.strategy.secrets.token_bytes", lambda _: RUN)


@pytest.fixture
def tallies(monkeypatch: pytest.MonkeyPatch) -> dict[int, Tally]:
    """The tally of each round of a strategy."""
    found, original = {}, OpenRound.count

    def count(self: OpenRound, *given: Any) -> Any:
        made = original(self, *given)
        found[self.number] = made.tally
        return made

    monkeypatch.setattr(OpenRound, "count", count)
    return found


class VotingGrid(LocalGrid):
    """Nodes that reply with given ballots; records the nodes and the contents of requests."""

    def __init__(self, nodes: Iterable[int], ballot: Callable[[UserKey], Ballot]) -> None:
        super().__init__(dict.fromkeys(nodes, self.vote))
        self.ballot = ballot
        self.asked: list[tuple[int, RecordDict]] = []

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        kept = list(messages)
        self.asked += [(one.metadata.dst_node_id, one.content) for one in kept]
        return super().push_messages(kept)

    def vote(self, asked: Message, _: Context) -> Message:
        key = UserKey.from_bytes(asked.content["config"]["hushbit-key"])
        content = RecordDict({"ballot": ballot_record(self.ballot(key), key)})
        return Message(content, reply_to=asked)


class RepeatingGrid(VotingGrid):
    """Users cast the ballots of a simulation; they arrive in descending order of users."""

    def __init__(self, simulated: Simulated) -> None:
        super().__init__(range(100, 100 + USERS), self.simulated_ballot)
        self.simulated, self.round = simulated, 0

    def get_node_ids(self) -> list[int]:
        return [node_of(int(user)) for user in self.simulated.ballots[self.round].users]

    def simulated_ballot(self, key: UserKey) -> Ballot:
        ballots = self.simulated.ballots[key.round]
        return ballots[int(np.searchsorted(ballots.users, key.user))]

    def evaluate(self, number: int, arrays: Any) -> None:
        """Called before the first round and after each round."""
        assert arrays["w"].numpy().tobytes() == self.simulated.models[number].tobytes()
        self.round = min(number, ROUNDS - 1)


def node_of(user: int) -> int:
    return 99 + USERS - user


def defended(simulated: Simulated, **changes: Any) -> HushbitStrategy:
    options = {
        "delta": 1e-5,
        "quorum": 1,
        "users": {node_of(user): user for user in range(USERS)},
        "secret": simulated.setup.secret,
        "defence": Defence(),
    }
    return HushbitStrategy(simulated.setup.mechanism, **(options | changes))


def repeat(simulated: Simulated, made: HushbitStrategy, rounds: int = ROUNDS, **more: Any) -> Any:
    grid = RepeatingGrid(simulated)
    model = {"w": simulated.models[0]}
    return grid, run(grid, made, rounds, model, **{"evaluate_fn": grid.evaluate, **more})


def assert_same_state(simulated: Simulated, folder: Path) -> None:
    """The checkpoint equals the last state of the simulation, bit by bit."""
    saved = RunFolder(folder, CONFIG_FILE).read_checkpoint()
    assert saved is not None
    assert saved.round == ROUNDS
    found = dict(saved.groups["defence"])
    assert np.array_equal(found.pop("users"), np.arange(USERS))
    assert len(found) == len(simulated.state.defence)
    for name, array in simulated.state.defence.items():
        assert found[name if "model" in name else f"row {name}"].tobytes() == array.tobytes(), name
    for name, array in simulated.state.tuning.items():
        assert saved.groups["tuning"][name].tobytes() == array.tobytes(), name


def assert_same_tally(tally: Tally, expected: Tally) -> None:
    assert np.array_equal(tally.voters.users(), expected.voters.users())
    assert list(tally.counters) == list(expected.counters)
    for name, counter in expected.counters.items():
        assert np.array_equal(tally.counters[name], counter), name


def test_the_strategy_decides_what_the_simulator_decides(
    tmp_path: Path, simulated: Simulated, tallies: dict[int, Tally]
) -> None:
    """Also the models are equal, which `RepeatingGrid.evaluate` compares."""
    made = defended(simulated, folder=tmp_path / "run")
    _, result = repeat(simulated, made)
    for number, expected in enumerate(simulated.tallies, 1):
        assert_same_tally(tallies[number], expected)
        metrics, counts = result.train_metrics_clientapp[number], simulated.removed_by[number - 1]
        assert {test: metrics[f"removed_{test}"] for test in counts} == counts
        assert metrics["removed"] == sum(counts.values())
        assert metrics["accepted"] + metrics["removed"] == metrics["asked"]
    assert_same_state(simulated, tmp_path / "run")
    # The attackers are found, and not only by tests of one round.
    assert sum(simulated.removed_by[-1].values()) > 20


def test_requests_do_not_depend_on_removals(simulated: Simulated) -> None:
    grid, _ = repeat(simulated, defended(simulated))
    assert sum(simulated.removed_by[0].values()) + sum(simulated.removed_by[1].values()) > 20
    asked = iter(grid.asked)
    for number, ballots in enumerate(simulated.ballots):
        requests = [next(asked) for _ in ballots]
        assert {node for node, _ in requests} == {node_of(int(user)) for user in ballots.users}
        for node, content in requests:
            assert set(content) == {"arrays", "config"}
            assert content["arrays"] == requests[0][1]["arrays"]
            config = dict(content["config"])
            key = UserKey.from_bytes(config.pop("hushbit-key"))
            assert (key.round, node_of(key.user)) == (number, node)
            shared = {k: v for k, v in requests[0][1]["config"].items() if k != "hushbit-key"}
            assert config == shared
    assert next(asked, None) is None


class Killed(Exception):
    pass


@pytest.mark.parametrize("stop", [2, ROUNDS])
def test_a_resumed_run_decides_the_same(
    tmp_path: Path, simulated: Simulated, tallies: dict[int, Tally], stop: int
) -> None:
    def kill(number: int, arrays: Any) -> None:
        grid.round = min(number, ROUNDS - 1)
        if number == stop:
            raise Killed

    grid, place = RepeatingGrid(simulated), tmp_path / "run"
    with pytest.raises(Killed):
        run(
            grid,
            defended(simulated, folder=place),
            ROUNDS,
            {"w": simulated.models[0]},
            evaluate_fn=kill,
        )
    tallies.clear()
    grid.round = stop - 1
    other = {"w": np.zeros_like(simulated.models[0])}  # the models are those of the checkpoint
    run(grid, defended(simulated, folder=place), ROUNDS, other, evaluate_fn=grid.evaluate)
    assert list(tallies) == list(range(stop, ROUNDS + 1))
    for number, tally in tallies.items():
        assert_same_tally(tally, simulated.tallies[number - 1])
    assert_same_state(simulated, place)


# Without a simulation: 30 users who send noise

MECHANISM = hb.CPA(DIM, 1.0, 0.05, clip=0.1)
NODES = range(100, 130)


def noise(key: UserKey) -> Ballot:
    return MECHANISM.encode(np.zeros(DIM, np.float32), key, SimulationCoins(0))


def with_defence(mechanism: Any = MECHANISM, **changes: Any) -> HushbitStrategy:
    return strategy(mechanism, **({"defence": Defence()} | changes))


def joining(grid: VotingGrid, nodes: Iterable[int], after: int) -> Callable[[int, Any], None]:
    """Nodes connect after a round."""

    def evaluate(number: int, arrays: Any) -> None:
        if number == after:
            grid.apps |= dict.fromkeys(nodes, grid.vote)

    return evaluate


def removed(result: Any) -> list[tuple[int, int]]:
    """All removed ballots and those of newcomers, by round."""
    rounds = result.train_metrics_clientapp.values()
    return [(metrics["removed"], metrics["removed_newcomers"]) for metrics in rounds]


@pytest.mark.parametrize("late", [NODES[:4], NODES[26:]])
def test_nodes_that_connect_later_are_newcomers(tallies: dict[int, Tally], late: range) -> None:
    first = [node for node in NODES if node not in late]
    grid = VotingGrid(first, noise)
    result = run(grid, with_defence(), 3, evaluate_fn=joining(grid, late, after=1))
    assert removed(result)[:2] == [(0, 0), (4, 4)]
    assert tallies[2].voters.users().tolist() == first
    assert set(first) <= set(tallies[3].voters.users().tolist())
    assert [result.train_metrics_clientapp[n]["asked"] for n in (1, 2, 3)] == [26, 30, 30]


def test_nodes_that_connect_before_the_first_requests_are_enrolled() -> None:
    """Also nodes that are not sampled in the first round."""
    grid = VotingGrid(NODES[:10], noise)
    made = with_defence(quorum=20, users_per_round=20, deadline_seconds=0.5)
    result = run(grid, made, 5, evaluate_fn=joining(grid, NODES, after=1))
    assert result.train_metrics_clientapp[1]["asked"] == 0
    assert len({node for node, _ in grid.asked}) > 20
    rounds = [result.train_metrics_clientapp[number] for number in range(2, 6)]
    assert [(one["removed"], one["accepted"]) for one in rounds] == [(0, 20)] * 4


def test_users_of_the_table_are_enrolled_wherever_they_are() -> None:
    grid = VotingGrid(NODES[:26], noise)
    made = with_defence(users={node: node - 100 for node in NODES})
    result = run(grid, made, 2, evaluate_fn=joining(grid, NODES[26:], after=1))
    assert removed(result) == [(0, 0)] * 2
    assert result.train_metrics_clientapp[2]["accepted"] == 30


def test_a_resumed_run_remembers_who_was_enrolled(tmp_path: Path, tallies: Any) -> None:
    options = {"folder": tmp_path / "run"}
    run(VotingGrid(NODES[:26], noise), with_defence(**options))
    result = run(VotingGrid(NODES, noise), with_defence(**options), 2)
    assert removed(result) == [(4, 4)]
    assert tallies[2].voters.users().tolist() == list(NODES[:26])


def test_a_start_without_a_folder_begins_anew() -> None:
    made = with_defence()
    run(VotingGrid(NODES[:26], noise), made)
    assert removed(run(VotingGrid(NODES, noise), made)) == [(0, 0)]


def test_the_direction_is_that_of_the_last_change_of_the_model() -> None:
    """In the second round most replies are lost, and the model does not change."""
    grid, made, models = VotingGrid(NODES, noise), with_defence(quorum=15), []
    grid.tamper = lambda asked, reply: (
        [reply] if len(models) != 2 or asked.metadata.dst_node_id < 105 else []
    )

    def evaluate(number: int, arrays: Any) -> None:
        models.append(np.concatenate([array.numpy().ravel() for array in arrays.values()]))

    made.deadline_seconds = 1.0
    result = run(grid, made, 2, evaluate_fn=evaluate)
    assert result.train_metrics_clientapp[2]["accepted"] == 5
    assert made._defended is not None
    assert np.array_equal(models[1], models[2])
    assert not np.array_equal(models[0], models[1])
    assert np.array_equal(made._defended.previous, models[0])
    assert np.array_equal(made._defended.first, models[0])


def test_the_direction_covers_the_encoded_arrays_alone() -> None:
    model = {
        "w": np.full((4, 10), 0.5, np.float32),
        "count": np.array(4),
        "fixed": np.ones(3, np.float32),
    }
    made = with_defence(frozen=["fixed"])
    run(VotingGrid(NODES, noise), made, 2, model)
    assert made._defended.first.tolist() == [0.5] * 40
    assert made._defended.first.dtype == np.float64


@pytest.mark.parametrize(("change", "reason"), BAD, ids=[f"{i}-{b[1]}" for i, b in enumerate(BAD)])
def test_bad_ballots_are_refused_before_the_defence(
    tmp_path: Path, change: Any, reason: str
) -> None:
    def tamper(asked: Message, reply: Message) -> list[Message]:
        if asked.metadata.dst_node_id != 101:
            return [reply]
        return [Message(change(asked, reply), reply_to=asked)]

    grid = VotingGrid(NODES[:5], noise)
    grid.tamper = tamper
    metrics = run(grid, with_defence()).train_metrics_clientapp[1]
    assert (metrics["accepted"], metrics["removed"], metrics[f"refused_{reason}"]) == (4, 0, 1)


def test_the_quorum_is_that_of_accepted_ballots() -> None:
    """Five users send ones only."""

    def ballot(key: UserKey) -> Ballot:
        made = noise(key)
        return dataclasses.replace(made, payload=b"\xff" * 5) if key.user < 105 else made

    metrics = run(VotingGrid(NODES, ballot), with_defence(quorum=25)).train_metrics_clientapp[1]
    assert (metrics["asked"], metrics["accepted"], metrics["removed_bits"]) == (30, 25, 5)
    with pytest.raises(ModelUnchanged, match="5 x removed by the defence"):
        run(VotingGrid(NODES, ballot), with_defence(quorum=26))


def test_a_round_without_ballots_changes_nothing() -> None:
    grid = VotingGrid(NODES[:5], noise)
    grid.tamper = lambda asked, reply: []
    result = run_unchanged(grid, with_defence(deadline_seconds=0.3))
    assert "removed" not in result.train_metrics_clientapp[1]


def test_real_clients_are_counted(tmp_path: Path) -> None:
    grid = LocalGrid(federation(tmp_path, [add(0.01)] * 3))
    result = run(grid, with_defence("cpa", epsilon_per_bit=1.0, radius=0.05), 2)
    assert result.train_metrics_clientapp[2]["accepted"] == 3
    assert not np.array_equal(values(result)["w"], np.full((4, 9), 0.5))


@pytest.mark.parametrize("defence", [True, 0.01, Defence])
def test_only_a_defence_is_taken(defence: Any) -> None:
    with pytest.raises(InvalidInput, match="must be a Defence"):
        with_defence(defence=defence)


def test_a_budget_against_the_model_is_refused() -> None:
    budget = hb.Budget(8, 1e-5, per="run", against="model")
    with pytest.raises(InvalidInput, match="take a budget against the server"):
        HushbitStrategy(budget=budget, rounds=4, honest=5, defence=Defence())
    budget = hb.Budget(100, 1e-5, per="message", against="server")
    made = HushbitStrategy(budget=budget, quorum=5, secret=bytes(32), defence=Defence())
    assert made.defence == Defence()


@pytest.mark.parametrize(
    ("mechanism", "options"),
    [("fedavg", {}), ("laplace", {"epsilon_per_entry": 1.0, "scale": 0.05})],
)
def test_ballots_that_cannot_be_decoded_one_by_one_are_refused(
    tmp_path: Path, mechanism: str, options: Any
) -> None:
    grid = VotingGrid(NODES, noise)
    with pytest.raises(InvalidInput, match="decodes ballots one by one"):
        run(grid, with_defence(mechanism, folder=tmp_path / "run", **options))
    assert not grid.asked
    assert not (tmp_path / "run").exists()


def test_a_folder_of_another_defence_is_refused(tmp_path: Path) -> None:
    options = {"folder": tmp_path / "run"}
    run(VotingGrid(NODES, noise), with_defence(**options))
    for other in (None, Defence(false_positive_rate=0.02)):
        with pytest.raises(InvalidInput, match="another defence"):
            run(VotingGrid(NODES, noise), with_defence(defence=other, **options), 2)
    run(VotingGrid(NODES, noise), with_defence(**options), 2)


def test_a_folder_without_a_defence_has_no_state_of_it(tmp_path: Path) -> None:
    run(VotingGrid(NODES, noise), with_defence(defence=None, folder=tmp_path / "run"))
    saved = RunFolder(tmp_path / "run", CONFIG_FILE).read_checkpoint()
    assert saved is not None
    assert "defence" not in saved.groups
    result = run(VotingGrid(NODES, noise), with_defence(defence=None, folder=tmp_path / "run"), 2)
    assert "removed" not in result.train_metrics_clientapp[2]


def a_row(saved: dict[str, np.ndarray]) -> str:
    return next(name for name in saved if name.startswith("defence row "))


DAMAGE: dict[str, Callable[[dict[str, np.ndarray]], Any]] = {
    "no state": lambda s: [s.pop(name) for name in list(s) if name.startswith("defence ")],
    "no users": lambda s: s.pop("defence users"),
    "no row": lambda s: s.pop(a_row(s)),
    "no model": lambda s: s.pop("defence previous model"),
    "unknown array": lambda s: s.update({"defence row x": np.zeros(30)}),
    "short row": lambda s: s.update({a_row(s): np.zeros(29)}),
    "row of integers": lambda s: s.update({a_row(s): np.zeros(30, np.int64)}),
    "row of text": lambda s: s.update({a_row(s): np.full(30, "x")}),
    "row with NaN": lambda s: s.update({a_row(s): np.full(30, np.nan)}),
    "other model": lambda s: s.update({"defence first model": np.zeros(DIM + 1)}),
    "model of float32": lambda s: s.update({"defence first model": np.zeros(DIM, np.float32)}),
    "infinite model": lambda s: s.update({"defence previous model": np.full(DIM, np.inf)}),
    "repeated users": lambda s: s.update({"defence users": np.full(30, 7, np.uint64)}),
    "signed users": lambda s: s.update({"defence users": np.arange(30)}),
    "one number": lambda s: s.update({"defence users": np.array(7, np.uint64)}),
    "fewer users": lambda s: s.update({"defence users": np.arange(29, dtype=np.uint64)}),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_state_is_refused(tmp_path: Path, damage: str) -> None:
    place = tmp_path / "run" / "checkpoint.npz"
    run(VotingGrid(NODES, noise), with_defence(folder=tmp_path / "run"))
    with np.load(place) as file:
        saved = dict(file)
    DAMAGE[damage](saved)
    np.savez(place, **saved)
    grid = VotingGrid(NODES, noise)
    with pytest.raises(DamagedFile, match="state of the defence"):
        run(grid, with_defence(folder=tmp_path / "run"), 2)
    assert not grid.asked
