-- The fence for SQLite. It may be run again. A blank line ends a statement. SQLite has no
-- ADD COLUMN IF NOT EXISTS: a table of a version before 0.1 needs, once,
--
--   ALTER TABLE tenure_mark ADD COLUMN session TEXT NOT NULL DEFAULT '';
--
-- Dialect.Migrate does that.

-- One row per resource: the highest token that was admitted, and the session that got it.
-- seq, digest and answer are those of the last strict write.
CREATE TABLE IF NOT EXISTS tenure_mark (
  resource   TEXT    NOT NULL PRIMARY KEY,
  deployment TEXT    NOT NULL,
  grp        TEXT    NOT NULL,
  token      INTEGER NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991),
  seq        INTEGER NOT NULL DEFAULT 0,
  digest     TEXT    NOT NULL DEFAULT '',
  answer     BLOB,
  session    TEXT    NOT NULL DEFAULT '' -- the session that the token was granted to
) WITHOUT ROWID;

-- Results of the steps that were done. A step is done once per resource.
CREATE TABLE IF NOT EXISTS tenure_once (
  resource TEXT    NOT NULL,
  key      TEXT    NOT NULL,
  token    INTEGER NOT NULL,
  result   BLOB, -- NULL: not done
  made_at  TEXT    NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (resource, key)
) WITHOUT ROWID;

-- A direct change of the row cannot lower the mark.
CREATE TRIGGER IF NOT EXISTS tenure_mark_rises BEFORE UPDATE ON tenure_mark
WHEN NEW.token < OLD.token OR NEW.resource <> OLD.resource
BEGIN
  SELECT RAISE(ABORT, 'fence: a mark never goes down');
END;
