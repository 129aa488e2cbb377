-- pause_all: no take reads any subscription from now on, those to come included; what was taken before is finished.
update /*schema*/setting set value = 1, updated_at = now() where name = 'paused' and value = 0 returning name
