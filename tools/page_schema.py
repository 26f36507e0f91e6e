"""Writes the OpenAPI schema of the routes that the page in Airflow's UI asks, for `make page`."""

import json
import sys
from pathlib import Path

from hetero_airflow.web.fleet_reader import FleetReader
from hetero_airflow.web.page.page_routes import PageRoutes


def main() -> None:
    """Write the schema to the file that the first argument names."""
    routes = PageRoutes(FleetReader(lambda: sys.exit("the schema needs no database")))
    routes.router()
    Path(sys.argv[1]).write_text(json.dumps(routes.schema(), indent=1))


if __name__ == "__main__":
    main()
