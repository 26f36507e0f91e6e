"""A witness inside PostgreSQL: a trigger that notes each device that a lease takes or gives back, as it happens."""

from sqlalchemy import Engine, text

_AUDIT = """
CREATE TABLE IF NOT EXISTS audit (id bigserial PRIMARY KEY, worker_id text, device_id text, milli int);
CREATE OR REPLACE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO audit (worker_id, device_id, milli)
  VALUES (NEW.worker_id, NEW.device_id, CASE WHEN NEW.is_held THEN NEW.milli ELSE -NEW.milli END);
  RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER note AFTER INSERT OR UPDATE OF is_held ON hetero_lease_device FOR EACH ROW
EXECUTE FUNCTION note();
TRUNCATE audit;
"""

_OVERLAPS = """
SELECT worker_id, device_id, held FROM (
  SELECT worker_id, device_id, id, sum(milli) OVER (PARTITION BY worker_id, device_id ORDER BY id) AS held FROM audit
) AS history
JOIN hetero_device AS device USING (worker_id) WHERE device.id = history.device_id
AND (held > device.offered_milli OR held < 0)
"""


def audit(engine: Engine) -> None:
    """Note all that happens from now on."""
    with engine.begin() as connection:
        connection.execute(text(_AUDIT))


def overlaps(engine: Engine) -> list[tuple[str, str, int]]:
    """(worker id, device id, thousandths held) of each moment at which more of a device was held than there is."""
    with engine.connect() as connection:
        return [(row.worker_id, row.device_id, row.held) for row in connection.execute(text(_OVERLAPS))]
