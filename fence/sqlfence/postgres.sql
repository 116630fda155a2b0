-- The fence for PostgreSQL 11 and later. It may be run again, and over an older version.
-- A blank line ends a statement.
--
-- From any language, inside the transaction that writes, at any isolation level:
--
--   SELECT tenure_guard('invoices', 'prod', 'billing', 42);
--
-- It raises an error, and so ends the transaction, if token 42 may not write:
--   TN001 stale    the mark is higher: a newer leader has written or sealed
--   TN002 slip     the token is further above the mark than elections raise a token
--   TN003 foreign  the resource belongs to another deployment or group
--   TN004 invalid  a name is empty, or the token is not from 1 to 2^53-1
--   TN005 clone    the token was granted to another session
--   TN006 unsealed the mark is lower: call tenure_guard first, in a statement of its own
-- A fifth argument is the digest of the session that the token was granted to, as in the
-- header Fencing-Session. It distinguishes two sessions that got the same token from a
-- store which lost data.
-- Outside a transaction it is a seal. After the seal, the guard can be a part of the statement
-- that writes, which saves a round trip:
--
--   UPDATE accounts SET … WHERE id = 7 AND (SELECT tenure_inside('invoices', 'prod', 'billing', 42, ''));
-- A transaction that fails with 40001 (an old snapshot)
-- or 40P01 (a deadlock, or another transaction raises the mark for too long) may be retried.

-- With two tables of marks one resource has two marks, and neither protects it. If the
-- schemas share no resource, allow the second table first: SET LOCAL tenure.apart = 'on'.
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

-- One row per resource: the highest token that was admitted, and the session that got it.
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

-- A table of an older version has no session. ALTER TABLE waits for every writer, so run it
-- only if the column is missing.
DO $$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'tenure_mark'::regclass AND attname = 'session' AND NOT attisdropped) THEN
    ALTER TABLE tenure_mark ADD COLUMN session text NOT NULL DEFAULT '';
  END IF;
END
$$;

-- Results of the steps that were done. A step is done once per resource.
CREATE TABLE IF NOT EXISTS tenure_once (
  resource text        NOT NULL,
  key      text        NOT NULL,
  token    bigint      NOT NULL,
  result   bytea, -- NULL: not done
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

-- The key of an advisory lock. An admitted transaction holds the lock of its token, shared,
-- until it ends. A transaction that raises the mark first takes the lock with token 0, the
-- gate, so that marks are raised one at a time, and then the lock of the old mark's token,
-- exclusive. Row locks would not do: new shared locks overtake a waiting exclusive one, so a
-- stale leader that does not stop would block the new one forever. Advisory locks are
-- granted in order, and write nothing.
CREATE OR REPLACE FUNCTION tenure_lock_key(a_resource text, a_token bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT hashtextextended(a_resource, a_token)
$$;

-- A direct change of the row also waits for the transactions that the mark admitted, and
-- cannot lower it. Only an operator who has stopped all leaders may delete a row: the next
-- token, whatever it is, then sets a new mark.
CREATE OR REPLACE FUNCTION tenure_mark_rises() RETURNS trigger
LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP = 'UPDATE' AND NEW.token = OLD.token AND NEW.seq = OLD.seq AND NEW.digest = OLD.digest THEN
    RETURN NEW; -- only the session is filled in, or nothing changes
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

-- Create triggers only if they are missing: to replace them would wait for every writer.
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

-- Compares a token with a mark: fence.Mark.Admit in SQL.
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

-- Returns a verdict and the mark as JSON.
CREATE OR REPLACE FUNCTION tenure_says(verdict text, m tenure_mark) RETURNS text
LANGUAGE sql STABLE PARALLEL SAFE AS $$
  SELECT json_build_object('verdict', verdict, 'deployment', m.deployment, 'group', m.grp, 'token', m.token, 'seq', m.seq, 'digest', m.digest, 'session', m.session)::text
$$;

-- Checks a stamp and returns 'ok', or the refusal as JSON instead of an error. A refusal does
-- not end the transaction.
CREATE OR REPLACE FUNCTION tenure_admit(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  admitted boolean;
BEGIN
  -- Before any lock: an invalid stamp with token 0 must not take the gate.
  IF (a_resource <> '' AND a_deployment <> '' AND a_group <> '' AND a_token BETWEEN 1 AND 9007199254740991 AND length(a_session) <= 64) IS NOT TRUE THEN
    RETURN tenure_says('invalid', NULL);
  END IF;
  -- Lock first, then read: the snapshot must not be older than the lock. At READ COMMITTED
  -- every statement of a function has its own snapshot.
  admitted := pg_advisory_xact_lock_shared(hashtextextended(a_resource, a_token)) IS NULL;
  SELECT token = a_token AND deployment = a_deployment AND grp = a_group AND (a_session = '' OR session = a_session) INTO admitted
    FROM tenure_mark WHERE resource = a_resource;
  IF admitted THEN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
      -- The transaction has one snapshot. FOR SHARE fails if the row has changed since (40001).
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

-- Checks a token that is not the mark, or whose session the mark does not have yet. The stamp
-- is valid, and the caller holds the lock of the token.
CREATE OR REPLACE FUNCTION tenure_rise(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
  verdict text;
  until timestamptz := clock_timestamp() + current_setting('deadlock_timeout')::interval;
BEGIN
  LOOP
    -- This may read an old mark. Marks only rise, so a refusal stays right.
    SELECT * INTO m FROM tenure_mark WHERE resource = a_resource;
    verdict := tenure_rule(m, a_deployment, a_group, a_token, a_session);
    IF verdict <> 'ok' THEN
      RETURN tenure_says(verdict, m);
    END IF;
    IF m.token = a_token THEN
      IF a_session = '' OR m.session = a_session THEN
        RETURN 'ok';
      END IF;
      -- The mark has no session yet. The first transaction to set one wins.
      UPDATE tenure_mark SET session = a_session WHERE resource = a_resource AND token = a_token AND session = '';
      CONTINUE;
    END IF;
    EXIT WHEN pg_try_advisory_xact_lock(tenure_lock_key(a_resource, 0));
    -- Another transaction raises the mark, perhaps to this token. Do not block on the gate
    -- while holding the lock of a token: the other may wait for that lock. Poll with a limit:
    -- the other may wait for a row of this transaction, and PostgreSQL does not detect a
    -- deadlock with one that sleeps.
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

-- Waits until all transactions that the mark admitted have ended, and returns the mark; nulls
-- if there is none. The caller holds the gate.
CREATE OR REPLACE FUNCTION tenure_alone(a_resource text) RETURNS tenure_mark
LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
BEGIN
  SELECT * INTO m FROM tenure_mark WHERE resource = a_resource;
  IF FOUND THEN
    PERFORM pg_advisory_xact_lock(tenure_lock_key(a_resource, m.token));
    -- Above READ COMMITTED this fails if the row has changed (40001).
    SELECT * INTO m FROM tenure_mark WHERE resource = a_resource FOR UPDATE;
  END IF;
  RETURN m;
END
$$;

-- Stores an admitted stamp as the mark. The caller has called tenure_alone.
CREATE OR REPLACE FUNCTION tenure_store(m tenure_mark, a_resource text, a_deployment text, a_group text, a_token bigint, a_seq bigint, a_digest text, a_session text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  IF m.token IS NULL THEN
    -- Above READ COMMITTED this fails if the row is newer than the snapshot (40001).
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

-- Returns the marks of the resources in a JSON array, as JSON, and locks them exclusively
-- until the transaction ends: for a writer that puts the writes of many callers into one
-- transaction and applies the rule itself. All callers take the locks in the same order,
-- the gates before the tokens.
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
    -- The snapshot may be older than the locks. FOR UPDATE fails if the rows have changed
    -- since (40001), and so does the INSERT of a row that exists but is not in the snapshot.
    PERFORM FROM tenure_mark WHERE resource = ANY (names) FOR UPDATE;
  END IF;
  SELECT json_agg(json_build_object('resource', resource, 'deployment', deployment, 'group', grp, 'token', token,
    'seq', seq, 'digest', digest, 'session', session, 'answer', coalesce(encode(answer, 'hex'), ''))) INTO held
    FROM tenure_mark WHERE resource = ANY (names);
  RETURN coalesce(held, '[]');
END
$$;

-- fence.Mark.AdmitStrict in SQL. For a retried write, stored is the answer of the first try.
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
  -- Exclusive: strict writes with the same token run one at a time.
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

-- fence.Mark.Advance in SQL: lets an operator raise a mark past the slip rule.
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

-- Checks a stamp, from any language: returns the token, or raises an error whose detail is
-- the mark as JSON.
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

-- The guard inside of a statement that writes: returns true or raises an error. It is a
-- function of its own because it must not raise the mark: the statement has an older snapshot
-- than the guard, and would not see what the previous leader wrote last. Use it in a scalar
-- subquery, which is evaluated once.
CREATE OR REPLACE FUNCTION tenure_inside(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  admitted boolean;
BEGIN
  -- Token 0 is the gate, which is not for writers.
  IF a_token >= 1 THEN
    -- As in tenure_admit: lock first, then read, in two statements.
    admitted := pg_advisory_xact_lock_shared(hashtextextended(a_resource, a_token)) IS NULL;
    SELECT token = a_token AND deployment = a_deployment AND grp = a_group AND (a_session = '' OR session = a_session)
      AND current_setting('transaction_isolation') = 'read committed' INTO admitted FROM tenure_mark WHERE resource = a_resource;
    IF admitted THEN
      RETURN true;
    END IF;
  END IF;
  RETURN tenure_inside_else(a_resource, a_deployment, a_group, a_token, a_session);
END
$$;

-- The rarer cases of tenure_inside: other isolation levels, refusals, a mark without a session.
CREATE OR REPLACE FUNCTION tenure_inside_else(a_resource text, a_deployment text, a_group text, a_token bigint, a_session text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
  m tenure_mark;
BEGIN
  SELECT * INTO m FROM tenure_mark WHERE resource = a_resource;
  IF tenure_rule(m, a_deployment, a_group, a_token, a_session) = 'ok' AND (m.token = a_token) IS NOT TRUE THEN
    RAISE EXCEPTION 'fence: unsealed write to % refused: token % is not its mark yet: call tenure_guard first, in a statement of its own', a_resource, a_token
      USING ERRCODE = 'TN006';
  END IF;
  RETURN tenure_guard(a_resource, a_deployment, a_group, a_token, a_session) IS NOT NULL;
END
$$;
