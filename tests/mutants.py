"""The exact cursor with one thing broken at a time. Each must be caught, or the tests prove nothing.

A mutant is SQL run on a migrated database: a function whose text was changed in one place, or a changed table.
"""

from __future__ import annotations

from outrider.postgres import statement

FUNCTIONS = dict(statement.functions())

Q = "    drawn := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);\n"
LOCKED = "            outcome := 'taken';\n"
LATE = "/*schema*/late_transactions(\n                     cur.inflight, cur.horizon, snapshot.now, cur.floor, cur.seq)"
NOW = "/*schema*/late_transactions(cur.inflight, cur.horizon, pg_current_snapshot(), cur.floor, cur.seq)"
GATE = "perform pg_advisory_xact_lock_shared(4712); perform pg_sleep(0.01);"
"""Holds a take for as long as a test holds the lock, and widens a window that is microseconds wide."""


def changed(function: str, *replacements: tuple[str, str]) -> str:
    text = FUNCTIONS[function]
    for old, new in replacements:
        assert text.count(old) == 1, f"{function} has changed: {old!r} is there {text.count(old)} times"
        text = text.replace(old, new)
    return statement.render(text, "outrider")


# The log without the rule that tx stands before seq. A gate between the two stands for a slow default: it holds the
# publisher after its number is drawn and before it has its transaction id, for as long as a test holds the lock.
SEQ_BEFORE_TX = """
create function outrider.gate() returns boolean language plpgsql as
    'begin perform pg_advisory_lock_shared(4711); perform pg_advisory_unlock_shared(4711);
     perform pg_sleep(0.01); return true; end';
alter table outrider.outbox rename column tx to tx_first;
alter table outrider.outbox alter tx_first drop default, alter tx_first drop not null;
alter table outrider.outbox add gate boolean default outrider.gate();
alter table outrider.outbox add tx xid8 default pg_current_xact_id();
create index on outrider.outbox (tx, seq);
"""

SMALL_BATCHES = "create or replace function outrider.batch_bytes() returns bigint language sql immutable return 40"
"""Two events of a test, not four million bytes, fill a batch."""

MUTANTS = {
    "without inflight": changed(
        "late_transactions", ("begin\n    if pg_snapshot_xmin", "begin\n    return;\n    if pg_snapshot_xmin")
    ),
    "without the range [xmax, R)": changed(
        "late_transactions", ("if pg_snapshot_xmax(p_inflight) < p_horizon then", "if false then")
    ),
    "Q read after the lock": changed("lock_cursor", (LOCKED, f"{LOCKED}            {GATE}\n{Q}")),
    "late transactions looked for one statement before": changed(
        "read",
        ("    withdrawn boolean;\nbegin\n", "    withdrawn boolean;\n    looked xid8[];\nbegin\n"),
        (
            "        with snapshot as materialized (\n",
            f"        looked := array(select {NOW});\n        {GATE}\n        with snapshot as materialized (\n",
        ),
        (LATE, "unnest(looked)"),
    ),
    "owing and inflight of two snapshots": changed(
        "read",
        (
            """
               cur.floor, pg_current_snapshot()
        into cur.owing, cur.owed_after, cur.inflight;
""",
            f"""
               cur.floor
        into cur.owing, cur.owed_after;
        {GATE}
        cur.inflight := pg_current_snapshot();
""",
        ),
    ),
    "late cut by a plain LIMIT": changed(
        "read",
        ("count(*) = p_limit or coalesce(", "coalesce("),
        ("from late_end) then max(fresh.seq)", "from late_end) then coalesce(max(fresh.seq), cur.seq)"),
    ),
    "late cut by its bytes alone": changed("read", (" or count(*) < (select count(*) from late) then", " then")),
    "fresh cut by its bytes alone": changed(
        "read",
        ("set seq        = fresh_end.seq,", "set seq        = upto,"),
        ("            returning c.seq\n", "            returning fresh_end.seq\n"),
    ),
    "without the rebase": changed(
        "read",
        (
            "if (cur.cluster <> p_home or cur.horizon >= pg_snapshot_xmax(pg_current_snapshot())) and cur.owing is null",
            "if false",
        ),
    )
    + changed(
        "lock_cursor",
        ("if cur.cluster = home and cur.horizon < pg_snapshot_xmax(pg_current_snapshot())\n           and", "if"),
    ),
    "a sequence with CACHE 20": "alter sequence outrider.outbox_seq cache 20",
    "seq drawn before tx": SEQ_BEFORE_TX,
}
