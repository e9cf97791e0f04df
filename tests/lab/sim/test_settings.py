"""Settings: wrong values, and conversion to and from TOML."""

import dataclasses
import math
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

import hushbit as hb
from hushbit.errors import InvalidInput
from hushbit.lab.sim.settings import DATA_OPTIONS, FIELDS, Settings, kind_of, read_settings

WRONG = [
    ("users", 0),
    ("users", True),
    ("users", 2.0),
    ("users", "5"),
    ("users", None),
    ("pixels", "grey"),
    ("rounds", -1),
    ("steps", 0),
    ("batch_size", 0),
    ("evaluate_every", 0),
    ("samples_per_user", 0),
    ("shards_per_user", 0),
    ("validation", -1),
    ("seed", -1),
    ("seed", 0.5),
    ("rate", 0.0),
    ("rate", math.nan),
    ("rate", math.inf),
    ("server_rate", 0.0),
    ("memory_mb", 0.0),
    ("memory_mb", math.nan),
    ("alpha", -1.0),
    ("participation", 0.0),
    ("participation", 1.01),
    ("participation", math.nan),
    ("partition", "alphabetical"),
    ("schedule", "cosine"),
    ("dataset", "imagenet"),
    ("model", "transformer"),
    ("mechanism", "magic"),
    ("optimizer", "lion"),
    ("server", "fast"),
    ("attack", "aware"),
    ("attackers", 1.0),
    ("attackers", -0.1),
    ("delta", 0.0),
    ("delta", 1.0),
    ("delta", math.nan),
    ("honest", 0.0),
    ("honest", -3.0),
    ("honest", 1.5),
    ("honest", math.nan),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_errors_of_wrong_values_name_the_option(name, value):
    with pytest.raises(InvalidInput, match=name):
        Settings(**{name: value})


@pytest.mark.parametrize("options", [{"attack": "ones"}, {"attackers": 0.2}])
def test_attack_and_attackers_need_each_other(options):
    with pytest.raises(InvalidInput, match="--attackers"):
        Settings(**options)
    Settings(attack="ones", attackers=0.2)


BUDGET = {"epsilon": 4.0, "delta": 1e-5, "per": "run", "against": "model"}


def test_the_four_parts_make_a_budget():
    assert Settings(**BUDGET).budget == hb.Budget(4, 1e-5, per="run", against="model")
    assert Settings().budget is None
    assert Settings(delta=1e-6).budget is None


@pytest.mark.parametrize("missing", BUDGET)
def test_a_part_of_the_budget_that_is_missing_is_named(missing):
    parts = {name: value for name, value in BUDGET.items() if name != missing}
    with pytest.raises(InvalidInput, match=f"missing: --{missing}. Example: --epsilon 4"):
        Settings(**parts)


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"per": "round"}, "per"),
        ({"against": "world"}, "against"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"per": "bit", "against": "server"}, "delta=0 and against='server'"),
        ({"epsilon_per_bit": 0.5}, "not both"),
    ],
)
def test_wrong_budgets_are_refused(options, word):
    with pytest.raises(InvalidInput, match=word):
        Settings(**BUDGET | options)


def test_figures_are_shown_at_the_delta_that_is_given():
    assert Settings().shown_delta == 1e-5
    assert Settings(delta=1e-7).shown_delta == 1e-7
    pure = Settings(epsilon=1.0, delta=0.0, per="bit", against="server")
    assert pure.shown_delta == 1e-5


def test_cpa_is_rotated_under_a_budget():
    assert Settings(**BUDGET).resolved().rotate
    assert Settings(**BUDGET, rotate=False).resolved().rotate is False
    assert Settings(mechanism="cpa-auto", **BUDGET).resolved().rotate is False
    assert not Settings(epsilon_per_bit=1.0).resolved().rotate


def test_the_decimal_point_tells_a_share_of_honest_voters_from_a_number(tmp_path):
    for honest in (1, 1.0, 0.5, 40):
        path = tmp_path / "config.toml"
        path.write_text(Settings(honest=honest).to_toml())
        found = read_settings(path)["honest"]
        assert (found, type(found)) == (honest, type(honest))
    for wrong in (40.0, 0, -1.0, 1.5):
        with pytest.raises(InvalidInput, match="honest"):
            Settings(honest=wrong)


def test_no_privacy_parameter_has_a_default():
    assert Settings().epsilon is None
    assert Settings().delta is None
    assert Settings().epsilon_per_bit is None
    assert Settings().clip is None
    assert Settings().points is None


def test_the_default_rate_depends_on_pixels_and_data_set():
    assert Settings(dataset="digits").local_rate == Settings(dataset="mnist").local_rate == 0.5
    assert Settings(dataset="digits", pixels="symmetric").local_rate == 0.3
    assert Settings(dataset="mnist", pixels="symmetric").local_rate == 0.03
    assert Settings(dataset="mnist", rate=0.2).local_rate == 0.2


def test_toml_round_trip(tmp_path):
    settings = Settings(
        mechanism="cpa",
        epsilon_per_bit=math.inf,
        radius=1e-300,
        weights_file='a "b"\\c\n\tä',
        rotate=True,
        attack="flip",
        attackers=0.25,
        points=4,
        rate=0.1 + 0.2,
    )
    path = tmp_path / "config.toml"
    path.write_text(settings.to_toml(), encoding="utf-8")
    assert Settings(**read_settings(path)) == settings


@given(
    text=st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x7f")),
    number=st.floats(min_value=1e-300, allow_infinity=False),
)
def test_any_text_and_number_survives_the_round_trip(text, number):
    settings = Settings(weights_file=text, rate=number)
    read = tomllib.loads(settings.to_toml())
    assert (read["weights_file"], read["rate"]) == (text, number)


def test_options_that_are_none_are_not_written():
    written = tomllib.loads(Settings().to_toml())
    unset = {name for name, field in FIELDS.items() if field.default is None}
    assert set(written) == set(FIELDS) - unset


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("users = ", "TOML"),
        ("user = 3", "unknown options: user"),
        ("[section]\nusers = 3", "unknown options: section"),
        ("users = 3.5", "users must be int"),
        ("users = true", "users must be int"),
        ("rotate = 1", "rotate must be bool"),
        ('rate = "fast"', "rate must be float"),
        ("dataset = 3", "dataset must be str"),
    ],
)
def test_wrong_files_raise(tmp_path, text, word):
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(InvalidInput, match=word):
        read_settings(path)


def test_missing_and_binary_files_raise(tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_settings(tmp_path / "absent.toml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_settings(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidInput, match="cannot be read"):
        read_settings(tmp_path / "binary")


def test_integers_are_read_as_floats(tmp_path):
    path = tmp_path / "config.toml"
    path.write_text("rate = 1\nepsilon_per_bit = inf\n")
    read = read_settings(path)
    assert read == {"rate": 1.0, "epsilon_per_bit": math.inf}
    assert type(read["rate"]) is float


def test_every_field_has_help_and_a_plain_type():
    for name, field in FIELDS.items():
        assert field.metadata["help"].endswith("."), name
        assert kind_of(name) in (int, float, str, bool), name
        default = field.default
        assert default is None or type(default) is kind_of(name), name


def test_settings_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().users = 3


def test_options_of_a_file_are_named_with_hyphens_or_underscores(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("epsilon-per-bit = 1.0\nserver_rate = 0.5\n")
    assert read_settings(path) == {"epsilon_per_bit": 1.0, "server_rate": 0.5}


def test_an_option_that_a_file_names_twice_is_refused(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("server-rate = 1.0\nserver_rate = 0.5\n")
    with pytest.raises(InvalidInput, match=r"twice.*: server-rate$"):
        read_settings(path)


def test_a_task_has_no_options_of_built_in_data():
    written = tomllib.loads(Settings(task="own data", dataset="own data", users=7).to_toml())
    assert not set(written) & set(DATA_OPTIONS)
    assert (written["task"], written["users"]) == ("own data", 7)
