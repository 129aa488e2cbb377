-- withdraw: keep an event from those that have not handled it yet. See admin/functions/withdraw.sql.
select subscription, outcome from /*schema*/withdraw(%(event_id)s::uuid, %(by)s::text, %(reason)s::text)
