-- relay_hold: the cursor of a relay, until the transaction ends; nothing while another session holds it.
select c.seq from /*schema*/cursor as c where c.subscription = %(subscription)s and c.generation = 0 and c.partition = 0
for update skip locked
