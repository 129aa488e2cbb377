-- The knowledge hub: pieces of information with their versions, drafts and comments, and a board of what happened.
-- Plain SQL, for a database that has Outrider's schema (outrider migrate): psql --file hub.sql
-- Everybody goes through the functions below, from whatever language. A birth is told by a rollup (hub.py); all else is told
-- at once, by the function that does it.

create table information_unit (
    id                  uuid        primary key default gen_random_uuid(),
    canonical_address   text        not null unique,
    source_document_ref text,
    import_batch_ref    text,
    created_by          text        not null,
    created_at          timestamptz not null default now()
);

create table unit_version (
    unit_id     uuid        not null references information_unit,
    version_seq integer     not null check (version_seq > 0),
    body        text        not null,
    created_by  text        not null,
    created_at  timestamptz not null default now(),
    primary key (unit_id, version_seq)
);

create table unit_draft (
    id         uuid        primary key default gen_random_uuid(),
    unit_id    uuid        not null references information_unit,
    body       text        not null,
    created_by text        not null,
    created_at timestamptz not null default now(),
    applied_as integer,
    foreign key (unit_id, applied_as) references unit_version
);

create table unit_comment (
    id         uuid        primary key default gen_random_uuid(),
    unit_id    uuid        not null references information_unit,
    body       text        not null,
    created_by text        not null,
    created_at timestamptz not null default now()
);

-- What the board shows. No body content: an address, a document, a count.
create table iu_notification_event (
    id               bigint      generated always as identity primary key,
    event_type       text        not null,
    event_stream     text        not null,
    subject          text        not null,
    piece_count      integer     not null default 1 check (piece_count > 0),
    actor            text,
    occurred_at      timestamptz not null default now(),
    notification_key text        not null,
    constraint iu_notification_event_type_check check (
        event_type in ('new_piece_created', 'comment_added', 'draft_saved', 'version_added')),
    constraint iu_notification_event_pairing_check check (
        (event_stream, event_type) in (
            ('births', 'new_piece_created'), ('talk', 'comment_added'), ('changes', 'draft_saved'),
            ('changes', 'version_added'))),
    constraint iu_notification_event_once unique (notification_key)
);

comment on column iu_notification_event.actor is 'null = more than one had a part in it';

create table iu_notification_read (
    notification_id bigint      not null references iu_notification_event on delete cascade,
    actor           text        not null,
    read_at         timestamptz not null default now(),
    primary key (notification_id, actor)
);

-- Whole documents, as far as they have come: kept by a handler of hub.document_imported.
create table imported_document (
    document_ref text        primary key,
    pieces       integer     not null,
    imported_by  text,
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

-- To the log and to the board, in the caller's transaction. p_key: the board has it once.
create or replace function fn_iu_tell(
    p_type text, p_stream text, p_unit uuid, p_actor text, p_key text, p_more jsonb, p_version integer default null
) returns void
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    address text := (select canonical_address from information_unit where id = p_unit);
begin
    perform outrider.publish(
        'hub.' || p_type,
        jsonb_build_object('unit_id', p_unit, 'canonical_address', address, 'created_by', p_actor) || p_more,
        key => address, source => 'hub', aggregate_kind => 'information_unit', entity_version => p_version);
    insert into iu_notification_event (event_type, event_stream, subject, actor, notification_key)
    values (p_type, p_stream, address, p_actor, p_key)
    on conflict do nothing;
end
$$;

-- A version after the first. The lock of the unit puts its versions, and their events, in order.
create or replace function fn_iu_add_version(p_unit uuid, p_body text, p_actor text) returns integer
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    version integer;
begin
    perform from information_unit where id = p_unit for update;
    insert into unit_version (unit_id, version_seq, body, created_by)
    select p_unit, max(version_seq) + 1, p_body, p_actor from unit_version where unit_id = p_unit
    returning version_seq into version;
    perform fn_iu_tell('version_added', 'changes', p_unit, p_actor, format('version:%s:%s', p_unit, version),
                       jsonb_build_object('version_seq', version), version);
    return version;
end
$$;

-- The gateway. At a new address it makes the unit and its first version; at one that is there, a new version. The two
-- references say where a unit came from: they are part of its INSERT, so the trigger of the rollup sees them.
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
        version := fn_iu_add_version(unit, p_body, p_actor);
    else
        version := 1;
        insert into unit_version (unit_id, version_seq, body, created_by) values (unit, 1, p_body, p_actor);
    end if;
end
$$;

create or replace function fn_iu_draft(p_canonical_address text, p_body text, p_actor text) returns uuid
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    draft unit_draft;
begin
    insert into unit_draft (unit_id, body, created_by) values (fn_iu_find(p_canonical_address), p_body, p_actor)
    returning * into draft;
    perform fn_iu_tell('draft_saved', 'changes', draft.unit_id, p_actor, 'draft:' || draft.id,
                       jsonb_build_object('draft_id', draft.id));
    return draft.id;
end
$$;

-- The draft becomes the newest version, once.
create or replace function fn_iu_apply_draft(p_draft uuid, p_actor text) returns integer
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    draft   unit_draft;
    version integer;
begin
    select * into draft from unit_draft where id = p_draft and applied_as is null for update;
    if not found then
        raise no_data_found using message = format('there is no draft %s that waits', p_draft);
    end if;
    version := fn_iu_add_version(draft.unit_id, draft.body, p_actor);
    update unit_draft set applied_as = version where id = p_draft;
    return version;
end
$$;

create or replace function fn_iu_comment(p_canonical_address text, p_body text, p_actor text) returns uuid
    language plpgsql
    set search_path = public, pg_temp
as $$
declare
    comment unit_comment;
begin
    insert into unit_comment (unit_id, body, created_by) values (fn_iu_find(p_canonical_address), p_body, p_actor)
    returning * into comment;
    perform fn_iu_tell('comment_added', 'talk', comment.unit_id, p_actor, 'comment:' || comment.id,
                       jsonb_build_object('comment_id', comment.id));
    return comment.id;
end
$$;

create or replace function fn_iu_mark_read(p_notification bigint, p_actor text) returns void
    language sql
    set search_path = public, pg_temp
as $$
    insert into iu_notification_read (notification_id, actor) values (p_notification, p_actor) on conflict do nothing;
$$;

-- read_as: implicit_self (it is the actor's own doing), explicit (marked by the actor), null (unread).
create or replace function fn_iu_notification_board(p_actor text)
    returns table (
        id bigint, event_type text, event_stream text, subject text, piece_count integer, actor text,
        occurred_at timestamptz, read_as text)
    language sql stable
    set search_path = public, pg_temp
as $$
    select n.id, n.event_type, n.event_stream, n.subject, n.piece_count, n.actor, n.occurred_at,
           case when n.actor = p_actor then 'implicit_self' when r.actor is not null then 'explicit' end
    from iu_notification_event as n
    left join iu_notification_read as r on r.notification_id = n.id and r.actor = p_actor
    order by n.id;
$$;
