-- set_setting: another value for a setting. See admin/functions/set_setting.sql.
select /*schema*/set_setting(%(name)s::text, %(value)s::text, %(by)s::text, %(reason)s::text)
