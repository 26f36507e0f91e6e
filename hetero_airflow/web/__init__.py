"""What Airflow's API server serves under ``/hetero``: routes for workers' agents, and routes for users.

Every route identifies the client first; ``tests/web/test_every_route.py`` checks all of them. The app has no schema and
no documentation pages, since these would be public. A new route goes to the file of its clients.
"""
