-- renew: the leases of all that a worker runs. See jobs/functions/renew.sql.
select delivery, token, lease, cancelled from /*schema*/renew(%(worker)s::uuid, %(names)s::text[])
