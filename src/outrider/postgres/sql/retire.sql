-- retire a subscription: its cursors and deliveries go with it, its receipts stay. The caller holds it (hold).
with owed as (
    delete from /*schema*/delivery where subscription = %(name)s
)
delete from /*schema*/subscription where name = %(name)s
