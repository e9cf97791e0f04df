"""Options follow the fields of Settings."""

import subprocess
import sys

from hushbit.cli.options import options_from, settings_from
from hushbit.fl.settings import FIELDS, Settings


def test_every_field_is_an_option_with_help(hushbit, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shown = hushbit("run", "--help").out
    for name, field in FIELDS.items():
        assert "--" + name.replace("_", "-") in shown
        assert field.metadata["help"][:12] in shown
    assert "[default: digits]" in shown
    assert "--mechanism " not in hushbit("compare", "--help").out


def test_defaults_then_file_then_command_line(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("users = 5\nrounds = 6\n")
    assert settings_from({}, None) == Settings()
    assert settings_from({"users": 7}, path) == Settings(users=7, rounds=6)
    assert options_from({"users": 7}, path) == {"users": 7, "rounds": 6}


def test_help_needs_no_torch():
    code = (
        "import sys\nfrom hushbit.cli import main\n"
        "try:\n    main(['run', '--help'])\nexcept SystemExit as end:\n"
        "    assert not end.code\n"
        "assert 'torch' not in sys.modules and 'sklearn' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
