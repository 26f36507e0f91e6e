"""What the page in Airflow's UI shows, and the routes that it asks. The page is TypeScript, in ``ui/``.

====================== =====================================================================================
``page_routes.py``     the routes: permissions, pages of rows, unchanged answers
``etags.py``           ETags: an answer that the browser has already is not sent again
``bundle.py``          the built page, and how Airflow's UI finds it
``fleet_filter.py``    which workers and devices a reader asks for
``task_rows.py``       tasks and leases, without the names that the reader may not see
``fleet_reader.py``    reads the store; readings are kept for some seconds
``fleet_rows.py``      what the page shows of workers and devices
``fleet_view.py``      makes it from a snapshot
``queue_view.py``      the waiting requests as rows
``placement_rows.py``  what the tab of a task instance shows
``placement_view.py``  why one task waits, or why it got its devices
``forecasts.py``       when a waiting task starts; computed once for all readers
``timeline_view.py``   the leases of the past hours, and when the current ones will probably end
====================== =====================================================================================

Each answer is a pydantic model. The page's TypeScript types are made from them: ``make page``.
"""
