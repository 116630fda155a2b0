#!/usr/bin/env python3
"""A job in another language, fenced by one SELECT in its own transaction.

    tenure exec invoices -- invoices.py 100

It writes invoices one by one, each in one transaction with the check of its token. If the
job was paused and another node leads, PostgreSQL refuses the write with the error TN001,
or TN005 if another session has the same token, and the job ends. It runs psql, so it
needs no Python packages.
"""
import os
import subprocess
import sys

FENCED = 4  # the exit code of Tenure's own programs for "fenced"


def write(number):
    sql = """
        BEGIN;
        SELECT tenure_guard('invoices', :'deployment', :'grp', :token, :'session');
        INSERT INTO invoice (number, token) VALUES (:number, :token);
        COMMIT;
    """
    values = {
        "deployment": os.environ["TENURE_DEPLOYMENT"],
        "grp": os.environ["TENURE_GROUP"],
        "token": int(os.environ["TENURE_FENCING_TOKEN"]),
        "session": os.environ["TENURE_FENCING_SESSION"],
        "number": number,
        "ON_ERROR_STOP": 1,
        "VERBOSITY": "verbose",  # with the SQLSTATE
    }
    args = ["psql", "-X", "-q", "--output=/dev/null"] + ["--set=%s=%s" % v for v in values.items()] + [os.environ["DATABASE_URL"]]
    done = subprocess.run(args, input=sql, text=True, capture_output=True, timeout=30)
    if done.returncode == 0:
        return
    if "TN001" in done.stderr or "TN005" in done.stderr:
        print("another node leads: invoice %d was refused" % number, file=sys.stderr)
        sys.exit(FENCED)
    sys.exit(done.stderr)


for n in range(1, int(sys.argv[1]) + 1):
    write(n)
    print("invoice", n, flush=True)
