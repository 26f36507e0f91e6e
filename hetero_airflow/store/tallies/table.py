"""The table of the tallies."""

import sqlalchemy as sa


def make_tally_table(metadata: sa.MetaData) -> sa.Table:
    """Add the table to the metadata; it has a row for each name, label and bucket that was ever seen."""
    return sa.Table(
        "hetero_tally",
        metadata,
        sa.Column("name", sa.String(16)),
        sa.Column("label", sa.String(400)),
        sa.Column("bucket", sa.String(16), comment="Upper bound in seconds; empty if no time is measured"),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("total_ms", sa.BigInteger, nullable=False, comment="Sum of the measured times"),
        sa.PrimaryKeyConstraint("name", "label", "bucket"),
        comment="How often things happened; outlives their rows",
    )
