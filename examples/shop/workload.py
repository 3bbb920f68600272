"""A seeded day at the shop: the same seed gives the same transactions.

Inserts, updates, deletes, key changes, transactions over several tables, rolled-back ones, multi-row statements,
a zero date here and there, and one ADD COLUMN between the halves.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable

import pymysql

from examples.shop.tables import LOYALTY, ORDER_TABLES, SOURCE_DATABASE

NAMES = ("Ada", "Böð", "Chloé", "Dmitrij", "Eun-ji", "Fatima", "Gödel", "木村", "O'Neill", "Zoë 🦊")
COUNTRIES = ("DE", "FR", "IN", "JP", "BR", "US")
STATUSES = ("open", "paid", "sent", "returned")


class Shop:
    """Runs transactions on a connection without autocommit and remembers which keys are alive."""

    def __init__(self, connection: pymysql.Connection, seed: int) -> None:
        self._connection = connection
        self._cursor = connection.cursor()
        # Strict, yet zero dates are allowed.
        self._cursor.execute("SET sql_mode = 'STRICT_TRANS_TABLES'")
        connection.select_db(SOURCE_DATABASE)
        self._random = random.Random(seed)
        self._customers: list[int] = []
        self._orders: dict[int, int] = {}  # order -> number of lines
        self._next_customer = 1
        self._next_order = 1
        self._has_loyalty = False
        self.done: Counter[str] = Counter()

    def run(self, transactions: int, progress: Callable[[int], None] = lambda done: None) -> None:
        """So many transactions, rolled-back ones included."""
        kinds: list[Callable[[], None]] = [
            self._register, self._order, self._update_customer, self._update_order, self._cancel,
            self._renumber, self._bulk_price, self._leave,
        ]  # fmt: skip
        weights = [14, 40, 14, 16, 7, 4, 3, 2]
        for number in range(transactions):
            kind = self._register if not self._customers else self._random.choices(kinds, weights)[0]
            undo = (list(self._customers), dict(self._orders)) if self._random.random() < 0.02 else None
            self._connection.begin()
            kind()
            if undo is not None:
                self._connection.rollback()
                self._customers, self._orders = undo
                self.done["rolled back"] += 1
            else:
                self._connection.commit()
                self.done[kind.__name__.strip("_").replace("_", " ")] += 1
            if number % 100 == 99:
                progress(number + 1)

    def add_column(self) -> None:
        """The source's customers gain a column while the pipeline runs."""
        self._cursor.execute(f"ALTER TABLE customers ADD COLUMN {LOYALTY} AFTER profile")
        self._has_loyalty = True

    def _register(self) -> None:
        rng, key = self._random, self._next_customer
        self._next_customer += 1
        self._cursor.execute(
            "INSERT INTO customers (id, email, name, country, balance, birthday, profile, created_at)"
            " VALUES (%s, %s, %s, %s, %s, %s, %s, NOW(3))",
            (
                key,
                f"user{key}@example.com",
                rng.choice(NAMES),
                rng.choice(COUNTRIES),
                f"{rng.uniform(-100, 5000):.4f}",
                rng.choice(("0000-00-00", None, "1970-01-01", "1999-12-31", "2004-02-29")),
                json.dumps({"newsletter": rng.random() < 0.5, "visits": rng.randrange(99)}),
            ),
        )
        self._customers.append(key)

    def _order(self) -> None:
        rng, key, lines = self._random, self._next_order, self._random.randint(1, 4)
        self._next_order += 1
        self._cursor.execute(
            f"INSERT INTO orders_{key % ORDER_TABLES} (order_id, customer_id, total, express, note, placed_at)"
            " VALUES (%s, %s, %s, %s, %s, NOW(6))",
            (
                key,
                rng.choice(self._customers),
                f"{rng.uniform(1, 900):.2f}",
                rng.randrange(2),
                rng.choice((None, "", "leave at door", "tab\there, newline\nthere, back\\slash")),
            ),
        )
        self._cursor.executemany(
            "INSERT INTO order_items VALUES (%s, %s, %s, %s, %s, %s, %s)",
            [
                (
                    key,
                    line,
                    f"SKU-{rng.randrange(5000):04d}",
                    rng.randint(-2, 9),
                    f"{rng.uniform(0, 300):.2f}",
                    rng.choice((None, 0.1, 2.5, 1e-7)),
                    rng.randbytes(rng.randrange(1, 17)),
                )
                for line in range(lines)
            ],
        )
        self._orders[key] = lines

    def _update_customer(self) -> None:
        key = self._random.choice(self._customers)
        loyalty = ", loyalty = COALESCE(loyalty, 0) + 10" if self._has_loyalty else ""
        self._cursor.execute(
            f"UPDATE customers SET balance = balance - %s, status = 'active'{loyalty} WHERE id = %s",
            (f"{self._random.uniform(0, 50):.4f}", key),
        )

    def _update_order(self) -> None:
        if self._orders:
            key = self._random.choice(list(self._orders)[-500:])
            self._cursor.execute(
                f"UPDATE orders_{key % ORDER_TABLES} SET status = %s WHERE order_id = %s",
                (self._random.choice(STATUSES), key),
            )

    def _cancel(self) -> None:
        if self._orders:
            key = self._random.choice(list(self._orders)[-500:])
            self._cursor.execute("DELETE FROM order_items WHERE order_id = %s", (key,))
            self._cursor.execute(f"DELETE FROM orders_{key % ORDER_TABLES} WHERE order_id = %s", (key,))
            del self._orders[key]

    def _renumber(self) -> None:
        """Key changes: a customer gets another id, an order's lines another number."""
        if self._random.random() < 0.5:
            place = self._random.randrange(len(self._customers))
            new = self._next_customer
            self._next_customer += 1
            self._cursor.execute("UPDATE customers SET id = %s WHERE id = %s", (new, self._customers[place]))
            self._customers[place] = new
        elif self._orders:
            key = self._random.choice(list(self._orders)[-500:])
            self._cursor.execute(
                "UPDATE order_items SET line_no = line_no + 100 WHERE order_id = %s ORDER BY line_no DESC", (key,)
            )

    def _bulk_price(self) -> None:
        low = self._random.randrange(max(1, self._next_order))
        self._cursor.execute(
            "UPDATE order_items SET price = price * 1.05 WHERE order_id BETWEEN %s AND %s", (low, low + 20)
        )

    def _leave(self) -> None:
        place = self._random.randrange(len(self._customers))
        key = self._customers.pop(place)
        self._cursor.execute("DELETE FROM customers WHERE id = %s", (key,))
        if not self._customers:
            self._register()
