"""A migration that adds columns gives them to the roles of running workers: `outrider roles` may come later."""

from __future__ import annotations

from tests.postgres.roles.house import House

from outrider.postgres.statement import statement

COLUMNS = """
select bool_and(has_column_privilege(%(role)s, 'outrider.schedule', c, 'update')),
       has_table_privilege(%(role)s, 'outrider.schedule', 'update')
from unnest(array['missed', 'job', 'enqueued_at']) as c
"""


def test_new_columns_of_schedules_reach_the_worker_and_the_table_does_not(house: House) -> None:
    worker = house.role("worker")
    house.owner.execute(f"revoke update (missed, job, enqueued_at) on outrider.schedule from {worker}".encode())
    assert house.owner.execute(COLUMNS, {"role": worker}).fetchall() == [(False, False)]
    house.owner.execute(statement("schema/inherit_grants", "outrider"))
    assert house.owner.execute(COLUMNS, {"role": worker}).fetchall() == [(True, False)]
