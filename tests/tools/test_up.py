"""What ``make up`` leaves for a second terminal."""

import subprocess
from types import SimpleNamespace

import up


def test_another_terminal_gets_the_environment_and_nobody_else_its_secrets(tmp_path, monkeypatch):
    monkeypatch.setattr(up, "HOME", tmp_path)
    environment = {"AIRFLOW_HOME": "/a folder/it's here", "AIRFLOW__API__SECRET_KEY": "$x `y`", "LANG": "C"}
    path = up.write_exports(SimpleNamespace(environment=environment))
    assert path.stat().st_mode & 0o777 == 0o600
    script = f'. {path}; printf "%s\\n" "$AIRFLOW_HOME" "$AIRFLOW__API__SECRET_KEY" "$LANG"; command -v python'
    done = subprocess.run(
        ["/bin/sh", "-c", script], env={"LANG": "de"}, capture_output=True, text=True, check=True, timeout=60
    )
    home, key, language, python = done.stdout.splitlines()
    assert (home, key, language) == ("/a folder/it's here", "$x `y`", "de")
    assert python.endswith("/bin/python")
