-- The fence for PostgreSQL 11 and later. It may be run again, and over an older
-- version of itself. One statement per paragraph: a blank line ends it.
--
-- From any language, inside the transaction that writes, at any isolation level:
--
--   SELECT tenure_guard('invoices', 'prod', 'billing', 42);
--
-- It raises an error, and so ends the transaction, if 42 may not write:
--   TN001 stale    a newer leader was here
--   TN002 slip     further above the mark than elections take a token
--   TN003 foreign  the resource belongs to another deployment or group
--   TN004 invalid  no token, or nobody's
--   TN005 clone    the token was granted to another session
-- A fifth argument is the digest of the session that the token was granted to, as in
-- the header Fencing-Session. It tells apart two sessions that a store which lost data
-- gave one token.
-- Outside a transaction it is a seal. A transaction that fails with 40001 (an old
-- snapshot) or 40P01 (a deadlock, or a mark that is being raised for too long) may
-- be repeated.

-- Two tables of marks are two marks for one resource, and fence nothing. Who keeps
-- schemas apart on purpose, with other resources in each, says so before this:
-- SET LOCAL tenure.apart = 'on'.
DO $$
DECLARE
  other text;
BEGIN
  SELECT n.nspname INTO other FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relname = 'tenure_mark' AND c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND n.nspname IS DISTINCT FROM current_schema() LIMIT 1;
  IF other IS NOT NULL AND current_setting('tenure.apart', true) IS DISTINCT FROM 'on' THEN
    RAISE EXCEPTION 'fence: schema % has a table tenure_mark already, and schema % would get another: two marks for one resource fence nothing', other, current_schema()
      USING HINT = format('Put %I first on the search_path of all who write, or set tenure.apart to ''on'' if the schemas share no resource.', other);
  END IF;
END
$$;

-- One row per resource: the highest token that was admitted, and whose it is.
-- seq, digest and answer are those of the last strict write.
CREATE TABLE IF NOT EXISTS tenure_mark (
  resource   text   PRIMARY KEY,
  deployment text   NOT NULL,
  grp        text   NOT NULL,
  token      bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  seq        bigint NOT NULL DEFAULT 0,
  digest     text   NOT NULL DEFAULT '',
  answer     bytea,
  session    text   NOT NULL DEFAULT '' -- the session that the token was granted to
);

-- A table of an older version has no session. Altered only if need be: to alter waits
-- for every writer.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'tenure_mark'::regclass AND attname = 'session' AND NOT attisdropped) THEN
    ALTER TABLE tenure_mark ADD COLUMN session text NOT NULL DEFAULT '';
  END IF;
END
$$;

-- Steps that were made, with their results. A step is made once per resource.
CREATE TABLE IF NOT EXISTS tenure_once (
  resource text        NOT NULL,
  key      text        NOT NULL,
  token    bigint      NOT NULL,
  result   bytea, -- NULL: not made
  made_at  timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (resource, key)
);

DO $$
BEGIN
  IF EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'tenure_once'::regclass AND attname = 'result' AND attnotnull) THEN
    ALTER TABLE tenure_once ALTER COLUMN result DROP NOT NULL;
  END IF;
END
$$;

-- The locks. Whoever was admitted holds the lock of its token, shared, until its
-- transaction ends; whoever raises the mark holds the one of the old mark's token
-- alone, and before that the gate (0), so that marks are raised one at a time. Not
-- locks on the row: those that share one may pass by somebody who waits for it
-- alone, so a stale leader that does not stop would keep the new one out forever.
-- These have a queue, and write nothing.
CREATE OR REPLACE FUNCTION tenure_lock_key(a_resource text, a_token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT hashtextextended(a_resource, a_token)
$$;

-- A change of the mark by any other way waits for those it admitted, too, and
-- cannot take it down. To delete it is to begin anew: for an operator who has
-- stopped all leaders.
CREATE OR REPLACE FUNCTION tenure_mark_rises() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.token = OLD.token AND NEW.seq = OLD.seq AND NEW.digest = OLD.digest THEN
    RETURN NEW; -- only the session becomes known, or nothing changes
  END IF;
  PERFORM pg_advisory_xact_lock(tenure_lock_key(OLD.resource, OLD.token));
  IF TG_OP = 'DELETE' THEN
    RETURN OLD;
  END IF;
  IF NEW.token < OLD.token OR NEW.resource <> OLD.resource THEN
    RAISE EXCEPTION 'fence: the mark of % is at %: it never goes down', OLD.resource, OLD.token;
  END IF;
  RETURN NEW;
END
$$;

-- Not dropped and made again: that would wait for every writer at every start.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'tenure_mark_rises' AND tgrelid = 'tenure_mark'::regclass) THEN
    CREATE TRIGGER tenure_mark_rises BEFORE UPDATE ON tenure_mark
      FOR EACH ROW EXECUTE FUNCTION tenure_mark_rises();
  END IF;
  IF NOT EXISTS (SELECT FROM pg_trigger WHERE tgname = 'tenure_mark_leaves' AND tgrelid = 'tenure_mark'::regclass) THEN
    CREATE TRIGGER tenure_mark_leaves BEFORE DELETE ON tenure_mark
      FOR EACH ROW EXECUTE FUNCTION tenure_mark_rises();
  END IF;
END
$$;

-- What the rule says about a token and a mark: fence.Mark.Admit, in SQL.
CREATE OR REPLACE FUNCTION tenure_rule(m tenure_mark, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT CASE
    WHEN a_deployment IS NULL OR a_deployment = '' OR a_group IS NULL OR a_group = ''
      OR a_token IS NULL OR a_token < 1 OR a_token > 9007199254740991 THEN 'invalid'
    WHEN m.token IS NULL THEN 'ok'
    WHEN m.deployment <> a_deployment OR m.grp <> a_group THEN 'foreign'
    WHEN a_token < m.token THEN 'stale'
    WHEN a_token = m.token AND a_session <> '' AND m.session <> '' AND a_session <> m.session THEN 'clone'
    WHEN a_token >> 40 > (m.token >> 40) + 1
      OR (a_token & 1099511627775) - (m.token & 1099511627775) > 1000000 THEN 'slip'
    ELSE 'ok'
  END
$$;

-- A verdict and the mark it was given on, for callers.
CREATE OR REPLACE FUNCTION tenure_says(verdict text, m tenure_mark) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT json_build_object('verdict', verdict, 'deployment', m.deployment, 'group', m.grp, 'token', m.token, 'seq', m.seq, 'digest', m.digest, 'session', m.session)::text
$$;

-- The check, for callers that want a verdict and not an error: 'ok', or JSON. A
-- refusal leaves the transaction as it was.
CREATE OR REPLACE FUNCTION tenure_admit(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  admitted boolean;
BEGIN
  -- Before any lock: 0 is the gate's, and a stamp that is none must not hold it.
  IF (a_resource <> '' AND a_deployment <> '' AND a_group <> '' AND a_token BETWEEN 1 AND 9007199254740991 AND length(a_session) <= 64) IS NOT TRUE THEN
    RETURN tenure_says('invalid', NULL);
  END IF;
  -- The lock first, then the look: it must not be older than the lock. That is so
  -- in a function, where every statement has a snapshot of its own.
  admitted := pg_advisory_xact_lock_shared(hashtextextended(a_resource, a_token)) IS NULL;
  SELECT token = a_token AND deployment = a_deployment AND grp = a_group AND (a_session = '' OR session = a_session) INTO admitted
    FROM tenure_mark WHERE resource = a_resource;
  IF admitted THEN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
      -- Here it is not so. But to ask for the row fails if it has changed (40001).
      PERFORM FROM tenure_mark WHERE resource = a_resource FOR SHARE;
    END IF;
    RETURN 'ok';
  END IF;
  RETURN tenure_rise(a_resource, a_deployment, a_group, a_token, a_session);
END
$$;

-- For callers that do not know the session.
CREATE OR REPLACE FUNCTION tenure_admit(a_resource text, a_deployment text, a_group text, a_token bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT tenure_admit(a_resource, a_deployment, a_group, a_token, '')
$$;

-- The check of a token that is not the mark, or whose session is not known yet. The
-- stamp is valid, and the caller holds the lock of the token.
CREATE OR REPLACE FUNCTION tenure_rise(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
  verdict text;
  until timestamptz := clock_timestamp() + current_setting('deadlock_timeout')::interval;
BEGIN
  LOOP
    -- Marks only rise, so who is refused by an old look at one stays refused.
    SELECT * INTO m FROM tenure_mark WHERE resource = a_resource;
    verdict := tenure_rule(m, a_deployment, a_group, a_token, a_session);
    IF verdict <> 'ok' THEN
      RETURN tenure_says(verdict, m);
    END IF;
    IF m.token = a_token THEN
      IF a_session = '' OR m.session = a_session THEN
        RETURN 'ok';
      END IF;
      -- The mark does not know whose the token is. One of those who say so is first.
      UPDATE tenure_mark SET session = a_session WHERE resource = a_resource AND token = a_token AND session = '';
      CONTINUE;
    END IF;
    EXIT WHEN pg_try_advisory_xact_lock(tenure_lock_key(a_resource, 0));
    -- Somebody else raises the mark, perhaps to this very token. To wait in the
    -- queue for the gate, with the lock of a token in hand, could be to wait for
    -- one who waits for that. Nor without an end: that one may wait for a row of
    -- this transaction, and nobody sees a deadlock in a wait by sleeping.
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
      RAISE EXCEPTION 'fence: the mark of % is being raised: try again', a_resource USING ERRCODE = '40001';
    END IF;
    IF clock_timestamp() > until THEN
      RAISE EXCEPTION 'fence: the mark of % is being raised by a transaction that does not end, perhaps because it waits for this one: try again', a_resource USING ERRCODE = '40P01';
    END IF;
    PERFORM pg_sleep(0.002);
  END LOOP;
  m := tenure_alone(a_resource);
  verdict := tenure_rule(m, a_deployment, a_group, a_token, a_session);
  IF verdict <> 'ok' THEN
    RETURN tenure_says(verdict, m);
  END IF;
  IF m.token IS NULL OR m.token < a_token THEN
    PERFORM tenure_store(m, a_resource, a_deployment, a_group, a_token, 0, '', a_session);
  END IF;
  RETURN 'ok';
END
$$;

-- The mark as it is when everybody whom it admitted is gone: nulls if there is
-- none. Only for who holds the gate.
CREATE OR REPLACE FUNCTION tenure_alone(a_resource text) RETURNS tenure_mark
LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
BEGIN
  SELECT * INTO m FROM tenure_mark WHERE resource = a_resource;
  IF FOUND THEN
    PERFORM pg_advisory_xact_lock(tenure_lock_key(a_resource, m.token));
    -- In a transaction with one snapshot this fails if the row has changed (40001).
    SELECT * INTO m FROM tenure_mark WHERE resource = a_resource FOR UPDATE;
  END IF;
  RETURN m;
END
$$;

-- Stores what was admitted. Only for who is alone with the mark.
CREATE OR REPLACE FUNCTION tenure_store(m tenure_mark, a_resource text, a_deployment text, a_group text, a_token bigint, a_seq bigint, a_digest text, a_session text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF m.token IS NULL THEN
    -- A transaction whose one snapshot is older than the row fails here (40001).
    INSERT INTO tenure_mark (resource, deployment, grp, token, seq, digest, session)
      VALUES (a_resource, a_deployment, a_group, a_token, a_seq, a_digest, a_session) ON CONFLICT DO NOTHING;
  ELSE
    UPDATE tenure_mark SET token = a_token, seq = a_seq, digest = a_digest, answer = NULL,
      session = CASE WHEN a_session = '' AND token = a_token THEN session ELSE a_session END WHERE resource = a_resource;
  END IF;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'fence: the mark of % was made or removed by hand: try again', a_resource USING ERRCODE = '40001';
  END IF;
END
$$;

-- The marks of the resources in a JSON array, as JSON, held alone until the transaction
-- ends: for a writer that puts the writes of many callers into one transaction and applies
-- the rule itself. All take the locks in one order, and the gates before the tokens.
CREATE OR REPLACE FUNCTION tenure_hold(a_resources text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  names text[] := ARRAY(SELECT DISTINCT r COLLATE "C" FROM jsonb_array_elements_text(a_resources::jsonb) AS r ORDER BY 1);
  held text;
BEGIN
  PERFORM pg_advisory_xact_lock(tenure_lock_key(name, 0)) FROM unnest(names) AS name;
  PERFORM pg_advisory_xact_lock(tenure_lock_key(m.resource, m.token))
    FROM (SELECT resource, token FROM tenure_mark WHERE resource = ANY (names) ORDER BY resource COLLATE "C") AS m;
  IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
    -- Here the look below may be older than the locks. But to ask for the rows fails if they
    -- have changed (40001), and so does the insertion of a row that this snapshot lacks.
    PERFORM FROM tenure_mark WHERE resource = ANY (names) FOR UPDATE;
  END IF;
  SELECT json_agg(json_build_object('resource', resource, 'deployment', deployment, 'group', grp, 'token', token,
    'seq', seq, 'digest', digest, 'session', session, 'answer', coalesce(encode(answer, 'hex'), ''))) INTO held
    FROM tenure_mark WHERE resource = ANY (names);
  RETURN coalesce(held, '[]');
END
$$;

-- fence.Mark.AdmitStrict, in SQL. The answer is that of the write that is retried.
CREATE OR REPLACE FUNCTION tenure_admit_strict(
  a_resource text, a_deployment text, a_group text, a_token bigint, a_seq bigint, a_digest text, a_session text, OUT said text, OUT stored bytea
) LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
BEGIN
  IF (a_resource <> '' AND a_deployment <> '' AND a_group <> '' AND a_token BETWEEN 1 AND 9007199254740991
      AND a_seq BETWEEN 1 AND 9007199254740991 AND a_digest IS NOT NULL AND length(a_session) <= 64) IS NOT TRUE THEN
    said := tenure_says('invalid', m);
    RETURN;
  END IF;
  -- One at a time under a token, too.
  PERFORM pg_advisory_xact_lock(tenure_lock_key(a_resource, a_token));
  said := tenure_rise(a_resource, a_deployment, a_group, a_token, a_session);
  IF said <> 'ok' THEN
    RETURN;
  END IF;
  SELECT * INTO m FROM tenure_mark WHERE resource = a_resource FOR UPDATE;
  IF a_seq > m.seq THEN
    PERFORM tenure_store(m, a_resource, a_deployment, a_group, a_token, a_seq, a_digest, a_session);
    said := 'apply';
  ELSIF a_seq < m.seq THEN
    said := tenure_says('stale', m);
  ELSIF a_digest = m.digest THEN
    said := 'retry';
    stored := m.answer;
  ELSE
    said := tenure_says('clone', m);
  END IF;
END
$$;

-- For callers that do not know the session.
CREATE OR REPLACE FUNCTION tenure_admit_strict(
  a_resource text, a_deployment text, a_group text, a_token bigint, a_seq bigint, a_digest text, OUT said text, OUT stored bytea
) LANGUAGE sql AS $$
  SELECT said, stored FROM tenure_admit_strict(a_resource, a_deployment, a_group, a_token, a_seq, a_digest, '')
$$;

-- fence.Mark.Advance, in SQL: the operator's way past the slip rule.
CREATE OR REPLACE FUNCTION tenure_advance(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
  verdict text;
BEGIN
  IF (a_resource <> '' AND a_deployment <> '' AND a_group <> '' AND a_token BETWEEN 1 AND 9007199254740991) IS NOT TRUE THEN
    RETURN tenure_says('invalid', m);
  END IF;
  PERFORM pg_advisory_xact_lock(tenure_lock_key(a_resource, 0));
  m := tenure_alone(a_resource);
  verdict := tenure_rule(m, a_deployment, a_group, a_token, '');
  IF verdict NOT IN ('ok', 'slip') THEN
    RETURN tenure_says(verdict, m);
  END IF;
  IF m.token IS NULL OR m.token < a_token THEN
    PERFORM tenure_store(m, a_resource, a_deployment, a_group, a_token, 0, '', a_session);
  END IF;
  RETURN 'ok';
END
$$;

-- For callers that do not know the session.
CREATE OR REPLACE FUNCTION tenure_advance(a_resource text, a_deployment text, a_group text, a_token bigint) RETURNS text
LANGUAGE sql AS $$
  SELECT tenure_advance(a_resource, a_deployment, a_group, a_token, '')
$$;

-- The check, for every language: it raises an error, or returns the token. The
-- detail of the error is the mark, as JSON.
CREATE OR REPLACE FUNCTION tenure_guard(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
  said text;
  mark json;
BEGIN
  said := tenure_admit(a_resource, a_deployment, a_group, a_token, a_session);
  IF said = 'ok' THEN
    RETURN a_token;
  END IF;
  mark := said::json;
  CASE mark->>'verdict'
    WHEN 'stale' THEN
      RAISE EXCEPTION 'fence: stale write to % refused: %/% token %, but the sink has seen token %: stop, another leads',
        a_resource, a_deployment, a_group, a_token, mark->>'token' USING ERRCODE = 'TN001', DETAIL = said;
    WHEN 'slip' THEN
      RAISE EXCEPTION 'fence: implausible token for % refused: %/% token %, but the sink is at %: if it is right, advance the mark by hand',
        a_resource, a_deployment, a_group, a_token, mark->>'token' USING ERRCODE = 'TN002', DETAIL = said;
    WHEN 'foreign' THEN
      RAISE EXCEPTION 'fence: foreign write to % refused: %/% token %, but the sink belongs to %/% token %: two fleets must not share a sink',
        a_resource, a_deployment, a_group, a_token, mark->>'deployment', mark->>'group', mark->>'token' USING ERRCODE = 'TN003', DETAIL = said;
    WHEN 'clone' THEN
      RAISE EXCEPTION 'fence: clone refused for %: %/% token % of session %, but the sink has seen this token with session %: the store granted it twice; raise the epoch',
        a_resource, a_deployment, a_group, a_token, a_session, mark->>'session' USING ERRCODE = 'TN005', DETAIL = said;
    ELSE
      RAISE EXCEPTION 'fence: invalid stamp for resource %: deployment %, group %, token %: the names must not be empty, the token is from 1 to 2^53-1',
        a_resource, a_deployment, a_group, a_token USING ERRCODE = 'TN004', DETAIL = said;
  END CASE;
END
$$;

-- For callers that do not know the session.
CREATE OR REPLACE FUNCTION tenure_guard(a_resource text, a_deployment text, a_group text, a_token bigint) RETURNS bigint
LANGUAGE sql AS $$
  SELECT tenure_guard(a_resource, a_deployment, a_group, a_token, '')
$$;
