"""What Airflow's API server serves under ``/hetero``: routes for workers' agents, and routes for users.

==================== ==============================================================================
``app.py``           the FastAPI app that the plugin mounts; the heartbeats of the API server itself
``agent_routes.py``  for agents, by their tokens: enrolment, inventory, heartbeat
``user_routes.py``   for users, by Airflow's login and permissions: workers, devices, queue
``metrics_route.py`` for Prometheus, with a token of its own
``page/``            for the page in Airflow's UI; the built bundle is in ``static/``
``fleet_reader.py``  reads the store for the routes of users, Prometheus and the page
``permissions.py``   what a user may see and change
``key_ring.py``      the enrolled keys in memory; verifies the tokens of requests
``write_batcher.py`` writes the messages of many agents in few transactions
``bodies.py``        reads bodies within limits, once the caller is known
``http_refusals.py`` the answers to refused requests; limits how often they are logged
==================== ==============================================================================

Every route identifies the client first; ``tests/web/test_every_route.py`` checks all of them. The app has no schema and
no documentation pages, since these would be public. A new route goes to the file of its clients.
"""
