-- relay_reject: see streams/functions/relay_reject.sql.
select attempts, buried from /*schema*/relay_reject(
    %(subscription)s::text, %(seq)s::bigint, %(code)s::text, %(message)s::text, %(worker)s::text, %(delay)s::interval,
    %(most)s::int, %(bury)s::bool)
