-- What older code might break.
-- breaking: yes
-- functions: visited

alter table /*schema*/cursor add constraint cursor_visits_check check (visits >= 0);
