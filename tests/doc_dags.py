"""The DAGs in the pages of the docs."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def write_dags_of(page: str, folder: Path) -> list[str]:
    """Write each DAG of a page into a file of its own; their ids."""
    folder.mkdir(parents=True, exist_ok=True)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.S)
    dags = {match[1]: block for block in blocks if (match := re.search(r"@dag\(.*\)\ndef (\w+)", block))}
    for name, code in dags.items():
        (folder / f"{name}.py").write_text(code)
    return list(dags)
