-- rename a subscription: cursors follow by their foreign key. The caller holds it (hold).
with owed as (
    update /*schema*/delivery set subscription = %(new)s where subscription = %(old)s
)
update /*schema*/subscription set name = %(new)s where name = %(old)s
