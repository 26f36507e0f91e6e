"""What Airflow's provider discovery reads. Every Airflow process calls it, so it imports nothing large."""

from typing import Any

from hetero_airflow import __version__
from hetero_airflow.settings import OPTIONS, SECTION

INTEGRATION = "Heterogeneous compute"


def get_provider_info() -> dict[str, Any]:
    """All that the provider has but its plugin, which Airflow finds by an entry point of its own."""
    return {
        "package-name": "hetero-airflow",
        "name": INTEGRATION,
        "description": "Device-aware scheduling: tasks state what hardware they need.",
        "versions": [__version__],
        "integrations": [{"integration-name": INTEGRATION, "tags": ["software"]}],
        "operators": [_modules("operators", "bash", "pod", "python", "torchrun")],
        "sensors": [_modules("sensors", "checkpoint", "device_available")],
        "triggers": [_modules("sensors", "checkpoint_trigger")],
        "executors": ["hetero_airflow.executor.HeteroExecutor"],
        "db-managers": ["hetero_airflow.executor.db_manager.HeteroDBManager"],
        "cli": ["hetero_airflow.cli.commands.get_commands"],
        "task-decorators": [
            {"name": name, "class-name": f"hetero_airflow.operators.decorator.{name}_task"}
            for name in ("device", "device_bash", "torchrun")
        ],
        "config": {
            SECTION: {
                "description": "Device-aware scheduling.",
                "options": {
                    option.name: {
                        "description": option.description,
                        "version_added": "0.1.0",
                        "type": option.type,
                        "sensitive": option.is_secret,
                        "example": None,
                        # Airflow formats defaults with str.format
                        "default": option.default.replace("{", "{{").replace("}", "}}"),
                    }
                    for option in OPTIONS
                },
            }
        },
    }


def _modules(folder: str, *names: str) -> dict[str, Any]:
    """Modules of the integration, as Airflow's registry of providers lists them."""
    return {"integration-name": INTEGRATION, "python-modules": [f"hetero_airflow.{folder}.{name}" for name in names]}
