"""What the page in Airflow's UI shows, and the routes that it asks. The page is TypeScript, in ``ui/``.

Each answer is a pydantic model. The page's TypeScript types are made from them: ``make page``.
"""
