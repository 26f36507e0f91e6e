"""What the page in Airflow's UI shows, and the routes that it asks. The page is TypeScript, in ``ui/``.

====================== =====================================================================================
``page_routes.py``     the routes: permissions, pages of rows; an answer that the browser has is not sent again
``bundle.py``          the built page, and how Airflow's UI finds it
``task_rows.py``       tasks and leases, without the names that the reader may not see
``fleet_view.py``      which workers and devices a reader asks for, and what the page shows of them
``queue_view.py``      the waiting requests as rows
``placement_view.py``  why one task waits, or why it got its devices
``forecasts.py``       when a waiting task starts; computed once for all readers
``timeline_view.py``   the leases of the past hours, and when the current ones will probably end
====================== =====================================================================================

Each answer is a pydantic model. The page's TypeScript types are made from them: ``make page``.
"""
