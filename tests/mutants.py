"""The exact cursor with one thing broken at a time. Each must be caught, or the tests prove nothing.

A mutant is SQL run on a migrated database: a function whose text was changed in one place, or a changed table.
"""

from __future__ import annotations

from outrider.postgres import statement

FUNCTIONS = dict(statement.functions())

Q = "    q := coalesce(pg_sequence_last_value('/*schema*/outbox_seq'::regclass), 0);\n"
R = "    r := pg_current_xact_id();\n"


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
        "late_transactions", ("begin\n    return query", "begin\n    return;\n    return query")
    ),
    "without the range [xmax, R)": changed(
        "late_transactions", ("if pg_snapshot_xmax(p_inflight) < p_horizon then", "if false then")
    ),
    # The gate widens the window between the two steps, which is microseconds wide.
    "Q read after the lock": changed(
        "take",
        (Q, Q + "    perform pg_sequence_last_value('/*schema*/outbox_seq'::regclass);\n"),
        (R, R + "    perform pg_advisory_xact_lock_shared(4712); perform pg_sleep(0.01);\n" + Q),
    ),
    "late cut by a plain LIMIT": changed(
        "take",
        (
            """select case when count(*) = p_limit or count(*) < (select count(*) from late_read) then max(late.seq)
                    else (select seq from late_stop) end as seq,""",
            "select null::bigint as seq,",
        ),
        ("then cur.seq\n", "or late_end.events = p_limit then cur.seq\n"),
    ),
    "late cut by its bytes alone": changed("take", ("or count(*) < (select count(*) from late_read) then", "then")),
    "fresh cut by its bytes alone": changed(
        "take",
        (
            "            when (select seq from fresh_cut) is not null then (select seq from fresh_cut)\n",
            "",
        ),
    ),
    "without the rebase": changed(
        "take",
        (
            "if (cur.cluster <> this or cur.horizon >= pg_snapshot_xmax(pg_current_snapshot())) and cur.owing is null",
            "if false",
        ),
        ("if cur.cluster = this and cur.horizon < pg_snapshot_xmax(pg_current_snapshot())\n           and", "if"),
    ),
    "a sequence with CACHE 20": "alter sequence outrider.outbox_seq cache 20",
    "seq drawn before tx": SEQ_BEFORE_TX,
}
