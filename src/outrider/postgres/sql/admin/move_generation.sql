-- move_generation: other workers serve a generation of a subscription. See admin/functions/move_generation.sql.
select subscription from /*schema*/move_generation(
    %(from)s::bigint, %(to)s::bigint, p_by => %(by)s::text, p_subscription => %(subscription)s::text,
    p_reason => %(reason)s::text)
