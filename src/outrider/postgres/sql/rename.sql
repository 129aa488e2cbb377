-- rename a subscription: cursors and deliveries follow by their foreign keys. The caller holds it (hold).
update /*schema*/subscription set name = %(new)s where name = %(old)s
