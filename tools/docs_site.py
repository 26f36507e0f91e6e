"""A hook of mkdocs: the start page is the README. As a program: writes the pages of docs/reference from the code."""

import ast
import inspect
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hetero_airflow import errors, policies
from hetero_airflow.cli.commands import COMMANDS, Arg
from hetero_airflow.cli.main import WITHOUT_AIRFLOW
from hetero_airflow.executor.housekeeping import emit_demand
from hetero_airflow.executor.recommended_settings import recommendations
from hetero_airflow.metrics.catalog import METRICS
from hetero_airflow.model.arguments import arguments_schema
from hetero_airflow.model.devices.features import ARCHITECTURES, CPU_FLAGS, accelerator_dtype
from hetero_airflow.model.devices.names import known_products, other_names
from hetero_airflow.settings import OPTIONS, SECTION, default

ROOT = Path(__file__).resolve().parents[1]
MARK = "<!-- written by `make docs` -->"
QUEUE = default("queue")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page that no file in docs/ holds; mkdocs calls this."""
    files.append(File.generated(config, "index.md", content=start_page()))
    return files


def start_page() -> str:
    """The README with links to the pages that it names."""
    return with_links((ROOT / "README.md").read_text())


def reference_pages() -> dict[str, str]:
    """Path in docs/ → text of each page that is written from the code."""
    pages = {
        "reference/requests.md": requests_page(),
        "reference/models.md": models_page(),
        "reference/device_features.md": device_features_page(),
        "reference/settings.md": settings_page(),
        "reference/commands.md": commands_page(),
        "reference/policies.md": policies_page(),
        "reference/metrics.md": metrics_page(),
        "reference/errors.md": errors_page(),
    }
    return {path: f"{text}\n\n{MARK}\n" for path, text in pages.items()}


def with_links(readme: str) -> str:
    """The README with a link for each page that it names. In a wheel it has none, since pages are not in there.

    >>> with_links("`docs/deploy.md` shows it")
    '[deploy](deploy.md) shows it'
    """
    named = re.sub(r"`docs/((?:\w+/)?(\w+)\.md)`", lambda m: f"[{m[2].replace('_', ' ')}]({m[1]})", readme)
    return named.replace("](docs/images/", "](images/")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table of Markdown; cells are in one line.

    >>> print(table(["a", "b"], [["1", "x|y"]]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    lines = [list(head)]
    lines += [["---"] * len(lines[0])]
    lines += [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return re.sub(r"^\|[ |-]+\|$", lambda m: m[0].replace(" ", ""), text, flags=re.M)


def requests_page() -> str:
    """The arguments of a device task, from the schema that `airflow hetero schema` prints."""
    schema = arguments_schema()
    parts = ["# Requests: the arguments of a device task", arguments_table(schema)]
    for name, definition in schema["$defs"].items():
        parts += [f"## {name}", definition["description"], arguments_table(definition)]
    parts += ["`airflow hetero schema` prints the same as a JSON schema."]
    return "\n\n".join(parts)


def models_page() -> str:
    """The models that a request can name without their vendor, as `airflow hetero models` lists them."""
    rows = [
        (
            f"`{product.model}`",
            f"`{product.vendor}`",
            product.kind,
            "-" if product.memory_gib is None else f"{product.memory_gib:g} GiB",
            ", ".join(f"`{name}`" for name in other_names(product)),
        )
        for product in known_products()
    ]
    return "\n\n".join([
        "# Models: the names of devices",
        "A request names a device by some words of its model: `a100` and `a100-80gb` match `a100-sxm4-80gb`. A size "
        "matches the device's memory. A variant (Ti, SUPER, D, laptop, vGPU) is matched only by its own name. "
        "Any model that is not here works with its vendor before it: `vendor/model`.",
        table(("model", "vendor", "kind", "memory", "other names"), rows),
        "Memory is that of the data sheet; `-` where the model shares its host's or has several sizes.",
    ])  # fmt: skip


def arguments_table(schema: Mapping[str, Any]) -> str:
    """One row for each property of an object."""
    rows = []
    for name, part in schema["properties"].items():
        examples = part.get("examples") or part.get("enum") or []
        shown = ", ".join(f"`{json.dumps(example)}`" for example in examples)
        rows.append((f"`{name}`", type_text(part), part.get("description", ""), shown))
    return table(("argument", "type", "meaning", "examples"), rows)


def type_text(part: Mapping[str, Any]) -> str:
    """The type of a property as a reader says it.

    >>> type_text({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#/$defs/Quota"}}]})
    'integer or list of [Quota](#quota)'
    """
    if "anyOf" in part:
        return " or ".join(type_text(option) for option in part["anyOf"])
    if "$ref" in part:
        name = part["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if part["type"] == "array":
        return f"list of {type_text(part['items'])}"
    return {"object": "mapping"}.get(part["type"], part["type"])


def device_features_page() -> str:
    """The rules by which the features of a device are known."""
    rows = [
        (
            rule.vendor,
            f"`{rule.key.pattern}`",
            rule.name,
            rule.dtypes.upper() or "FP32",
            accelerator_dtype(rule.dtypes.split()).upper(),
            rule.compiler,
            rule.collectives,
        )
        for rule in ARCHITECTURES
    ]
    flags = [(f"`{flag}`", dtype.upper()) for flag, dtype in CPU_FLAGS.items()]
    return "\n\n".join(
        (
            "# Device features",
            "What the matrix units of each architecture compute, and the type that `runtime.precision()` chooses "
            "([compute](../compute.md)). `airflow hetero devices --features` shows your devices.",
            table(("vendor", "rule", "architecture", "computes fast", "trains in", "compiler", "collectives"), rows),
            "The rule is a pattern for NVIDIA's compute capability, AMD's target, the series of an Ascend NPU, or the "
            "generation of a TPU. `gtx` stands for a word of the model. The first rule that fits counts. A device that "
            "fits none is unknown, and trains in FP32.",
            "A CPU computes fast what its flags in `/proc/cpuinfo` say. It trains in BF16 with `avx512_bf16` or "
            "`amx_bf16`, else in FP32.",
            table(("flag", "type"), flags),
        )
    )


def settings_page() -> str:
    """The options of the section [hetero], from `settings.py`."""
    rows = [(f"`{o.name}`", o.type, f"`{o.default}`" if o.default else "", o.description) for o in OPTIONS]
    engines = {s: f" (engine `{engine}`)" for engine in ("kubernetes",) for s in recommendations(QUEUE, engine)}
    common = recommendations(QUEUE)
    of_airflow = [
        (f"`[{s.section}] {s.option}`{'' if s in common else engines[s]}", f"`{s.value}`", s.cost, s.others)
        for s in (*common, *(s for s in engines if s not in common))
    ]
    return "\n\n".join(
        (
            f"# Settings: the section [{SECTION}]",
            f"Write them in `airflow.cfg`, or as environment variables: `AIRFLOW__{SECTION.upper()}__POLICY=fifo`.",
            table(("option", "type", "default", "meaning"), rows),
            "## Settings of Airflow",
            "`airflow hetero config --env` prints these. They are global: they count for all DAGs. "
            "`airflow hetero config --check` shows which are missing.",
            table(("option", "value", "without it", "what it does to tasks without a device request"), of_airflow),
        )
    )


def commands_page() -> str:
    """The commands, from their definitions."""
    quick = ", ".join(f"`{command.name}`" for command in COMMANDS if command.name in WITHOUT_AIRFLOW)
    parts = [
        "# Commands",
        f"`hetero` has the same commands as `airflow hetero`. It does not import Airflow for {quick}, which then take "
        "about a second. The others it passes on.",
    ]
    for command in COMMANDS:
        parts += [f"## {command.name}", f"`airflow hetero {command.name}`: {command.help}."]
        parts += [table(("argument", "meaning"), map(argument_row, command.args))] if command.args else []
    return "\n\n".join(parts)


def argument_row(arg: Arg) -> tuple[str, str]:
    """What `--help` prints of an argument, which depends on Python's version there."""
    choices = arg.kwargs.get("choices")
    text = arg.kwargs.get("help") or ""
    return ", ".join(f"`{flag}`" for flag in arg.flags), f"{text} ({', '.join(choices)})" if choices else text


def policies_page() -> str:
    """The table of the package of policies."""
    rows = re.findall(r"^([a-z_]+) {2,}(\S.*)$", policies.__doc__ or "", re.M)
    return "\n\n".join(
        (
            "# Policies",
            "Set `[hetero] policy` to one of them. [Scheduling](../scheduling.md) shows how good they are.",
            table(("policy", "choose it when"), [(f"`{name}`", text) for name, text in rows if name != "policy"]),
        )
    )


def metrics_page() -> str:
    """What Prometheus reads, and the table in the docstring of the function that emits Airflow's gauges."""
    rows = re.findall(r"^\s*``(\S+)``\s+(.*)$", inspect.getdoc(emit_demand) or "", re.M)
    return "\n\n".join(
        (
            "# Metrics",
            "[Prometheus](../observability.md) reads these from each API server, at `/hetero/metrics`:",
            table(
                ("metric", "type", "labels", "meaning"),
                [(f"`{m.name}`", m.kind, ", ".join(m.labels) or "-", m.text) for m in METRICS],
            ),
            "With `[metrics] statsd_on` or `otel_on`, the scheduler sends these gauges every 30 s:",
            table(("gauge", "meaning"), [(f"`{name}`", text) for name, text in rows]),
        )
    )


def errors_page() -> str:
    """The exceptions of the package, with the first sentences of their docstrings."""
    rows = [
        (f"`{node.name}`", ", ".join(f"`{ast.unparse(base)}`" for base in node.bases), ast.get_docstring(node) or "")
        for node in ast.parse(inspect.getsource(errors)).body
        if isinstance(node, ast.ClassDef)
    ]
    return "\n\n".join(
        (
            "# Errors",
            "Import them from `hetero_airflow.errors`. Each text says what was asked, what was found, and what to do.",
            table(("error", "is a", "meaning"), [(name, base, text.split("\n\n")[0]) for name, base, text in rows]),
        )
    )


if __name__ == "__main__":
    for path, text in reference_pages().items():
        (ROOT / "docs" / path).parent.mkdir(exist_ok=True)
        (ROOT / "docs" / path).write_text(text)
