-- The objects of a Tenure store in PostgreSQL, schema version 1. Open creates them if its role
-- may; otherwise apply this file as the owner and grant to the role of the programs:
--
--   GRANT USAGE ON SCHEMA "tenure_store" TO app;
--   GRANT SELECT, INSERT, UPDATE, DELETE ON "tenure_store".items TO app;
--   GRANT USAGE ON SEQUENCE "tenure_store".version TO app;
BEGIN;
CREATE SCHEMA IF NOT EXISTS "tenure_store";

-- A version is larger than all that were assigned before. Its order is not the order of commits.
CREATE SEQUENCE "tenure_store".version;

CREATE TABLE "tenure_store".items (
	key     text COLLATE "C" PRIMARY KEY,
	value   bytea  NOT NULL,
	version bigint NOT NULL,
	created bigint NOT NULL -- version of the first write since the key was missing
) WITH (fillfactor = 70);   -- keep-alives update rows in place

-- The row '' counts commits in their order. value: the life of the server (a restart, a restored
-- backup and a promoted standby are another one). created: the count when that life began.
INSERT INTO "tenure_store".items VALUES ('', '', 1, 1);

COMMENT ON TABLE "tenure_store".items IS 'Tenure store, schema version 1';

-- commit compares and writes the keys as one transaction, and then reads. The caller sorts
-- keys, so that concurrent calls lock rows in the same order.
--   wants: -2 no condition, -1 the key exists, 0 it is missing, otherwise its version
--   acts:  0 no write, 1 set, 2 delete
CREATE PROCEDURE "tenure_store".commit(
	keys text[], wants bigint[], acts int[], vals bytea[], announce text[], counted boolean,
	reads text[], else_reads text[],
	INOUT ok boolean, INOUT versions bigint[], INOUT index bigint, INOUT life text, INOUT began bigint,
	INOUT read_values bytea[], INOUT read_versions bigint[], INOUT read_created bigint[])
LANGUAGE plpgsql AS $$
DECLARE
	k text;
	want bigint;
	n bigint;
BEGIN
	IF current_setting('transaction_isolation') <> 'read committed' THEN
		ROLLBACK;
		SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
	END IF;
	life := format('timeline %s, started %s', left(pg_walfile_name(pg_current_wal_lsn()), 8), extract(epoch FROM pg_postmaster_start_time()));
	PERFORM FROM "tenure_store".items s WHERE s.key = '' AND s.value = convert_to(life, 'UTF8');
	IF NOT FOUND THEN
		UPDATE "tenure_store".items s SET value = convert_to(life, 'UTF8'), created = s.version
			WHERE s.key = '' AND s.value <> convert_to(life, 'UTF8');
		COMMIT AND CHAIN;
	END IF;

	ok := true;
	versions := '{}';
	IF current_setting('synchronous_commit') = 'off' THEN
		PERFORM set_config('synchronous_commit', 'on', true);
	END IF;
	FOR i IN 1 .. coalesce(cardinality(keys), 0) LOOP
		k := keys[i];
		want := wants[i];
		n := 0;
		IF acts[i] = 1 THEN
			LOOP
				IF want IN (-2, 0) THEN
					-- No committed row has version 0.
					INSERT INTO "tenure_store".items VALUES (k, '', 0, 0) ON CONFLICT DO NOTHING;
				END IF;
				PERFORM FROM "tenure_store".items s WHERE s.key = k AND (want < 0 OR s.version = want) FOR NO KEY UPDATE;
				ok := FOUND;
				EXIT WHEN ok OR want <> -2; -- otherwise somebody deleted the row after the INSERT
			END LOOP;
			n := nextval('"tenure_store".version'); -- after the lock, so that versions of a key grow
			UPDATE "tenure_store".items s SET value = vals[i], version = n, created = CASE s.created WHEN 0 THEN n ELSE s.created END
				WHERE s.key = k AND ok;
		ELSIF want = 0 THEN
			-- The row makes others wait who want to insert the key.
			INSERT INTO "tenure_store".items VALUES (k, '', 0, 0) ON CONFLICT DO NOTHING;
			ok := FOUND;
			DELETE FROM "tenure_store".items s WHERE s.key = k AND ok;
		ELSIF acts[i] = 2 THEN
			DELETE FROM "tenure_store".items s WHERE s.key = k AND (want < 0 OR s.version = want);
			ok := FOUND OR want = -2;
		ELSIF want = -1 THEN
			-- This lock does not make keep-alives wait.
			PERFORM FROM "tenure_store".items s WHERE s.key = k FOR KEY SHARE;
			ok := FOUND;
		ELSE
			PERFORM FROM "tenure_store".items s WHERE s.key = k AND s.version = want FOR SHARE;
			ok := FOUND;
		END IF;
		EXIT WHEN NOT ok;
		versions := versions || n;
	END LOOP;

	IF NOT ok THEN
		ROLLBACK AND CHAIN;
		reads := reads || else_reads;
	ELSE
		IF counted THEN
			UPDATE "tenure_store".items s SET version = s.version + 1 WHERE s.key = '' RETURNING s.version INTO index;
			PERFORM pg_notify(btrim('"tenure_store"', '"'), index || ' ' || a)
				FROM unnest(coalesce(nullif(announce, '{}'), '{""}')) a;
		END IF;
		COMMIT AND CHAIN;
	END IF;

	SELECT s.version, s.created INTO index, began FROM "tenure_store".items s WHERE s.key = '';
	SELECT array_agg(s.value ORDER BY r.i), array_agg(coalesce(s.version, 0) ORDER BY r.i), array_agg(coalesce(s.created, 0) ORDER BY r.i)
		INTO read_values, read_versions, read_created
		FROM unnest(reads) WITH ORDINALITY r(key, i)
		LEFT JOIN LATERAL (SELECT * FROM "tenure_store".items s WHERE s.key = r.key OFFSET 0) s ON true;
END
$$;
COMMIT;
