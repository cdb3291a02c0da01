"""An Airflow DAG: every hour, add what the capture logs gained to the tables, then compact them once a day.

Needs Airflow 2.4 or newer; no provider. Untested in Airflow itself: the commands are those of the documentation.
A run that fails or is killed is completed by the next one, so a retry adds nothing twice.
"""

from datetime import datetime, timedelta, timezone

from airflow import DAG
from airflow.operators.bash import BashOperator

TABLES = "/srv/tables"
LOGS = ("/srv/gateway-1", "s3://plant/gateway-2")
COMMON = {
    "start_date": datetime(2026, 1, 1, tzinfo=timezone.utc),
    "catchup": False,
    # One writer at a time: another run would end at once with "another pipeline is writing".
    "max_active_runs": 1,
    "default_args": {"retries": 3, "retry_delay": timedelta(minutes=5)},
}

with DAG("headwater_tables", schedule="@hourly", **COMMON):
    captures = " ".join(f"--capture {log}" for log in LOGS)
    BashOperator(task_id="grow", bash_command=f"headwater pipeline run {captures} --out {TABLES}")

with DAG("headwater_compaction", schedule="@daily", **COMMON):
    BashOperator(task_id="compact", bash_command=f"headwater pipeline compact --out {TABLES}")
