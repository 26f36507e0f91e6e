"""What Airflow's API server serves under ``/hetero``: routes for workers' agents, and for people.

===================== =============================================================================
``app.py``            the FastAPI app that the plugin mounts
``agent_routes.py``   for agents, by their tokens: enrol, inventory, heartbeat
``people_routes.py``  for people, by Airflow's own login and permissions: workers, devices, queue
``key_ring.py``       the enrolled keys in memory, and which of them signed a request
``server_beat.py``    says in the database that this API server is there
``desk.py``           what agents tell, written together in few transactions
``refusals.py``       what a refused request is answered, and how often that is logged
===================== =============================================================================

No route answers anyone who has not shown who he is; ``tests/web/test_every_route.py`` walks all of them. The app has no
schema and no documentation pages of its own, since these would.
"""
