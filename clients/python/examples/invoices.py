#!/usr/bin/env python3
"""Write invoices to PostgreSQL while leading the group "invoices". Needs psycopg.

    invoices.py NODE COUNT

PostgreSQL compares the token in the transaction that writes. If this process was paused and
another leads, it refuses the write with TN001, or TN005 if another session has the same token.
"""

import os
import sys

import psycopg
import tenure


def work(term):
    with psycopg.connect(os.environ["DATABASE_URL"], autocommit=True) as db:
        for number in range(1, int(sys.argv[2]) + 1):
            term.check()
            with db.transaction():
                db.execute("SELECT tenure_guard('invoices', %s, %s, %s)", (term.deployment, term.group, term.token))
                db.execute("INSERT INTO invoice (number, token) VALUES (%s, %s)", (number, term.token))


try:
    tenure.Client.from_env(sys.argv[1]).lead("invoices", work)
except psycopg.Error as e:
    sys.exit(f"refused: {e}" if e.sqlstate in ("TN001", "TN005") else f"PostgreSQL: {e}")
