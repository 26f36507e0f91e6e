"""What Airflow's provider discovery reads. Every Airflow process calls it, so it imports nothing large."""

from __future__ import annotations

from typing import Any

from hetero_airflow import __version__
from hetero_airflow.settings import OPTIONS, SECTION


def get_provider_info() -> dict[str, Any]:
    """The executor, tables, commands, decorator and configuration of the provider."""
    return {
        "package-name": "hetero-airflow",
        "name": "Heterogeneous compute",
        "description": "Device-aware scheduling: tasks state what hardware they need.",
        "versions": [__version__],
        "executors": ["hetero_airflow.executor.HeteroExecutor"],
        "db-managers": ["hetero_airflow.executor.db_manager.HeteroDBManager"],
        "cli": ["hetero_airflow.cli.commands.get_commands"],
        "task-decorators": [
            {"name": "device", "class-name": "hetero_airflow.operators.decorator.device_task"},
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
