"""Code in Airflow's task supervisor on a worker host: it binds devices, and watches one task until its end.

Airflow loads `coordinator` there, if ``[sdk] coordinators`` names it.
"""
