-- relay_hold: the cursor of a relay, until the transaction ends; nothing while another session holds it. See
-- streams/functions/relay_hold.sql.
select seq from /*schema*/relay_hold(%(subscription)s::text) as held (seq)
