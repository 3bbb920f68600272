"""The shop's tables: at the source four `orders_<n>` tables that become one logical table, at the target shards.

Columns are chosen to be awkward: unsigned keys, decimals, ENUM and JSON, binary values, zero dates, microseconds.
"""

from __future__ import annotations

SOURCE_DATABASE = "shop"
ORDER_TABLES = 4
SHARD_DATABASES = 2
SHARD_TABLES = 2
SHARDS = "shards"
"""The target of the shards."""
LAKE = "lake"
"""The target of Iceberg tables."""
REBUILT_DATABASE = "rebuilt"
"""The target, and its database, that is filled from the staged files alone: one table of each."""

CUSTOMERS = """CREATE TABLE {name} (
  id BIGINT UNSIGNED NOT NULL,
  email VARCHAR(190) NOT NULL,
  name VARCHAR(80) NOT NULL,
  country CHAR(2) NOT NULL,
  status ENUM('new', 'active', 'blocked') NOT NULL DEFAULT 'new',
  balance DECIMAL(14,4) NOT NULL DEFAULT 0 COMMENT 'in EUR; negative: what the customer owes',
  birthday DATE NULL,
  profile JSON NULL,
  {extra}
  created_at DATETIME(3) NOT NULL,
  update_time TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (id),
  UNIQUE KEY email (email)
) DEFAULT CHARSET = utf8mb4"""

ORDERS = """CREATE TABLE {name} (
  order_id BIGINT UNSIGNED NOT NULL,
  customer_id BIGINT UNSIGNED NOT NULL,
  status ENUM('open', 'paid', 'sent', 'returned') NOT NULL DEFAULT 'open',
  total DECIMAL(12,2) NOT NULL,
  express BIT(1) NOT NULL DEFAULT b'0',
  note VARCHAR(200) NULL,
  placed_at DATETIME(6) NOT NULL,
  update_time TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6),
  PRIMARY KEY (order_id),
  KEY customer (customer_id)
) DEFAULT CHARSET = utf8mb4 COMMENT = 'one row for each order; order_items has its lines'"""

ORDER_ITEMS = """CREATE TABLE {name} (
  order_id BIGINT UNSIGNED NOT NULL,
  line_no SMALLINT UNSIGNED NOT NULL,
  sku VARCHAR(40) NOT NULL,
  quantity MEDIUMINT NOT NULL,
  price DECIMAL(10,2) NOT NULL,
  weight DOUBLE NULL,
  fingerprint VARBINARY(16) NULL,
  PRIMARY KEY (order_id, line_no)
) DEFAULT CHARSET = utf8mb4"""

LOYALTY = "loyalty INT NULL"
"""The column that the source's customers gain half-way; the target has it from the beginning."""

LOGICAL: dict[str, tuple[str, tuple[str, ...], str]] = {
    "customers": (CUSTOMERS, ("id",), "id"),
    "orders": (ORDERS, ("order_id",), "order_id"),
    "order_items": (ORDER_ITEMS, ("order_id", "line_no"), "order_id"),
}
"""Logical table -> definition, key, shard key."""


def source_tables(logical: str) -> tuple[str, ...]:
    """The source tables that feed a logical table."""
    if logical == "orders":
        return tuple(f"orders_{number}" for number in range(ORDER_TABLES))
    return (logical,)


def source_statements() -> list[str]:
    """Create the source database."""
    statements = [f"CREATE DATABASE {SOURCE_DATABASE}"]
    for logical, (definition, _, _) in LOGICAL.items():
        statements += [
            definition.format(name=f"{SOURCE_DATABASE}.{table}", extra="") for table in source_tables(logical)
        ]
    return statements


def target_statements() -> list[str]:
    """Create the target's shards, `shop_<d>.<table>_<t>`, and one table of each beside them."""
    statements = []
    for database in range(SHARD_DATABASES):
        statements.append(f"CREATE DATABASE shop_{database}")
        for logical, (definition, _, _) in LOGICAL.items():
            statements += [
                definition.format(name=f"shop_{database}.{logical}_{table}", extra=f"{LOYALTY},")
                for table in range(SHARD_TABLES)
            ]
    statements.append(f"CREATE DATABASE {REBUILT_DATABASE}")
    for logical, (definition, _, _) in LOGICAL.items():
        statements.append(definition.format(name=f"{REBUILT_DATABASE}.{logical}_0", extra=f"{LOYALTY},"))
    return statements


def shards(logical: str) -> tuple[str, ...]:
    """The target's tables of a logical table."""
    return tuple(
        f"shop_{database}.{logical}_{table}" for database in range(SHARD_DATABASES) for table in range(SHARD_TABLES)
    )


def rebuilt(logical: str) -> tuple[str, ...]:
    """The one table of it."""
    return (f"{REBUILT_DATABASE}.{logical}_0",)
