"""The private key that signs the grants of leases. All schedulers of an Airflow share it, in its database."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import Engine, select, update

from hetero_airflow.errors import StoreError
from hetero_airflow.model.grant import GrantSigner
from hetero_airflow.store import tables
from hetero_airflow.store.sql.transaction import write_transaction


def grant_signer(engine: Engine, *, lock_timeout_s: float = 10.0) -> GrantSigner:
    """The signer with the key in the database. The first scheduler that starts makes the key.

    :raises StoreUnavailable: the database is down, locked, or not migrated
    :raises StoreError: what it has there is no key
    """
    column = tables.state.c.grant_key
    with write_transaction(engine, lock_timeout_s) as transaction:
        digits = transaction.connection.execute(select(column)).scalar()
        if digits is None:
            digits = Ed25519PrivateKey.generate().private_bytes_raw().hex()
            transaction.connection.execute(update(tables.state).values(grant_key=digits))
    try:
        return GrantSigner(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(digits)))
    except ValueError:
        raise StoreError(
            "the key that signs the grants of leases",
            found="a value in hetero_state.grant_key that is no Ed25519 key",
            remedy="Set it to NULL and restart all schedulers, then replace the key in the checkpoint stores "
            "(docs/security.md)",
        ) from None
