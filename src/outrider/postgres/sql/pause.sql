-- pause: no take reads the subscription from now on; a batch that was taken before is finished. Pausing twice keeps the
-- first time.
update /*schema*/subscription set paused_at = coalesce(paused_at, now()) where name = %(name)s returning name
