-- The knowledge hub: pieces of information with their versions, drafts and comments, and a board of what happened.
-- Plain SQL, for a database that has Outrider's schema (outrider migrate): psql --file hub.sql
-- Everybody goes through the functions below, from whatever language. A birth is told by a rollup (hub.py); all else is told
-- at once, by a trigger.

create table information_unit (
    id                  uuid        primary key default gen_random_uuid(),
    canonical_address   text        not null unique,
    source_document_ref text,
    import_batch_ref    text,
    created_by          text        not null,
    created_at          timestamptz not null default now()
);

create table unit_version (
    id          uuid        primary key default gen_random_uuid(),
    unit_id     uuid        not null references information_unit,
    version_seq integer     not null check (version_seq > 0),
    body        text        not null,
    created_by  text        not null,
    created_at  timestamptz not null default now(),
    unique (unit_id, version_seq)
);

create table unit_draft (
    id         uuid        primary key default gen_random_uuid(),
    unit_id    uuid        not null references information_unit,
    body       text        not null,
    created_by text        not null,
    created_at timestamptz not null default now(),
    applied_as uuid        references unit_version
);

create table unit_comment (
    id         uuid        primary key default gen_random_uuid(),
    unit_id    uuid        not null references information_unit,
    body       text        not null,
    created_by text        not null,
    created_at timestamptz not null default now()
);

-- What the board shows. No body content: an address, who did it, a count.
create table iu_notification_event (
    id                bigint      generated always as identity primary key,
    event_type        text        not null,
    event_stream      text        not null,
    unit_id           uuid        not null,
    canonical_address text        not null,
    ref_id            uuid        not null,
    actor_ref         text        not null,
    source            text        not null,
    payload           jsonb,
    created_at        timestamptz not null default now(),
    constraint chk_notif_event_type check (event_type in ('comment_added', 'draft_created', 'version_applied')),
    constraint chk_notif_event_type_stream check (
        event_type = 'comment_added' and event_stream = 'comment'
        or event_type = 'draft_created' and event_stream = 'review'
        or event_type = 'version_applied' and event_stream = 'update'),
    constraint uq_notif_event_ref unique (event_type, ref_id)
);

comment on column iu_notification_event.ref_id is 'the comment, draft or version; of a document, the version of its first piece';

create table iu_notification_read (
    notification_id bigint      not null references iu_notification_event on delete cascade,
    actor_ref       text        not null,
    read_at         timestamptz not null default now(),
    primary key (notification_id, actor_ref)
);

-- Whole documents, as far as they have come: kept by a handler of hub.document_imported.
create table imported_document (
    document_ref text        primary key,
    pieces       integer     not null,
    first_actor  text        not null,
    last_at      timestamptz not null
);

create or replace function fn_iu_find(p_canonical_address text) returns uuid
    language plpgsql stable
    set search_path = public, pg_temp
as $$
declare
    found_id uuid := (select id from information_unit where canonical_address = p_canonical_address);
begin
    if found_id is null then
        raise no_data_found using message = format('there is no unit at %L', p_canonical_address);
    end if;
    return found_id;
end
$$;

-- To the log and to the board, in the transaction of whoever comments, drafts or applies.
create or replace function fn_iu_tell(
    p_type text, p_stream text, p_unit uuid, p_ref uuid, p_actor text, p_more jsonb default '{}', p_version integer default null
) returns void
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    address text := (select canonical_address from information_unit where id = p_unit);
begin
    perform outrider.publish(
        'hub.' || p_type,
        jsonb_build_object('unit_id', p_unit, 'canonical_address', address, 'ref_id', p_ref, 'actor_ref', p_actor) || p_more,
        key => address, source => 'hub', aggregate_kind => 'information_unit', entity_version => p_version);
    insert into iu_notification_event (event_type, event_stream, unit_id, canonical_address, ref_id, actor_ref, source)
    values (p_type, p_stream, p_unit, address, p_ref, p_actor, 'trigger')
    on conflict do nothing;
end
$$;

create or replace function fn_iu_notif_comment() returns trigger
    language plpgsql
    set search_path = public, pg_temp
as $$
begin
    perform fn_iu_tell('comment_added', 'comment', new.unit_id, new.id, new.created_by);
    return null;
end
$$;

create or replace function fn_iu_notif_draft() returns trigger
    language plpgsql
    set search_path = public, pg_temp
as $$
begin
    perform fn_iu_tell('draft_created', 'review', new.unit_id, new.id, new.created_by);
    return null;
end
$$;

create or replace function fn_iu_notif_version() returns trigger
    language plpgsql
    set search_path = public, pg_temp
as $$
begin
    perform fn_iu_tell('version_applied', 'update', new.unit_id, new.id, new.created_by,
                       jsonb_build_object('version_seq', new.version_seq), new.version_seq);
    return null;
end
$$;

create trigger trg_iu_notif_comment after insert on unit_comment for each row execute function fn_iu_notif_comment();
create trigger trg_iu_notif_draft after insert on unit_draft for each row execute function fn_iu_notif_draft();
-- Version 1 is the birth of a unit: the rollup's.
create trigger trg_iu_notif_version after insert on unit_version for each row when (new.version_seq > 1)
    execute function fn_iu_notif_version();

-- A version after the first. The lock of the unit puts its versions, and their events, in order.
create or replace function fn_iu_add_version(p_unit uuid, p_body text, p_actor text, out ref_id uuid, out version integer)
    language plpgsql
    set search_path = public, pg_temp
as $$
begin
    perform from information_unit where id = p_unit for update;
    insert into unit_version (unit_id, version_seq, body, created_by)
    select p_unit, max(version_seq) + 1, p_body, p_actor from unit_version where unit_id = p_unit
    returning id, version_seq into ref_id, version;
end
$$;

-- The gateway. At a new address it makes the unit and its first version; at one that is there, a new version. The two
-- references say where a unit came from: they are there before the version is, so the trigger of the rollup finds them.
create or replace function fn_iu_save(
    p_canonical_address text, p_body text, p_actor text, p_source_document_ref text default null,
    p_import_batch_ref text default null, out unit uuid, out version integer
)
    language plpgsql
    set search_path = public, pg_temp
as $$
begin
    insert into information_unit (canonical_address, source_document_ref, import_batch_ref, created_by)
    values (p_canonical_address, nullif(p_source_document_ref, ''), nullif(p_import_batch_ref, ''), p_actor)
    on conflict (canonical_address) do nothing
    returning id into unit;
    if unit is null then
        unit := fn_iu_find(p_canonical_address);
        version := (fn_iu_add_version(unit, p_body, p_actor)).version;
    else
        version := 1;
        insert into unit_version (unit_id, version_seq, body, created_by) values (unit, 1, p_body, p_actor);
    end if;
end
$$;

create or replace function fn_iu_draft(p_canonical_address text, p_body text, p_actor text) returns uuid
    language sql
    set search_path = public, pg_temp
as $$
    insert into unit_draft (unit_id, body, created_by) values (fn_iu_find(p_canonical_address), p_body, p_actor) returning id;
$$;

-- The draft becomes the newest version, once.
create or replace function fn_iu_apply_draft(p_draft uuid, p_actor text) returns integer
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    draft unit_draft;
    made  record;
begin
    select * into draft from unit_draft where id = p_draft and applied_as is null for update;
    if not found then
        raise no_data_found using message = format('there is no draft %s that waits', p_draft);
    end if;
    made := fn_iu_add_version(draft.unit_id, draft.body, p_actor);
    update unit_draft set applied_as = made.ref_id where id = p_draft;
    return made.version;
end
$$;

create or replace function fn_iu_comment(p_canonical_address text, p_body text, p_actor text) returns uuid
    language sql
    set search_path = public, pg_temp
as $$
    insert into unit_comment (unit_id, body, created_by) values (fn_iu_find(p_canonical_address), p_body, p_actor) returning id;
$$;

create or replace function fn_iu_mark_read(p_notification bigint, p_actor text) returns void
    language sql
    set search_path = public, pg_temp
as $$
    insert into iu_notification_read (notification_id, actor_ref) values (p_notification, p_actor) on conflict do nothing;
$$;

-- read_as: implicit_self (it is the actor's own doing), explicit (marked by the actor), null (unread).
create or replace function fn_iu_notification_board(p_actor text)
    returns table (
        id bigint, event_type text, event_stream text, canonical_address text, actor_ref text, payload jsonb,
        created_at timestamptz, read_as text)
    language sql stable
    set search_path = public, pg_temp
as $$
    select n.id, n.event_type, n.event_stream, n.canonical_address, n.actor_ref, n.payload, n.created_at,
           case when n.actor_ref = p_actor then 'implicit_self' when r.actor_ref is not null then 'explicit' end
    from iu_notification_event as n
    left join iu_notification_read as r on r.notification_id = n.id and r.actor_ref = p_actor
    order by n.id;
$$;
