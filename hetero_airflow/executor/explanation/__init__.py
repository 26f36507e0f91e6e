"""What people read about requests and devices, for the command line and the page in Airflow's UI.

===================== ========================================================================
``live_snapshot.py``  what the scheduler sees now, and what its next cycle would decide
``forecast.py``       when a waiting task starts, and a change that would start it now
``request_text.py``   a request as arguments to write in a DAG file
``device_text.py``    requests, claims and devices as short texts
``device_state.py``   the state of a device as one word
``drains.py``         the holds that a person places and lifts
===================== ========================================================================
"""
