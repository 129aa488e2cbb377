-- retire a subscription: its cursors and deliveries go with it, its receipts stay. The caller holds it (hold).
delete from /*schema*/subscription where name = %(name)s
