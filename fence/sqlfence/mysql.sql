-- The fence for MySQL 8.0.29 and later and MariaDB 10.6 and later. It may be run again. A blank
-- line ends a statement. Names are compared byte by byte, so they are VARBINARY.

-- One row per resource: the highest token that was admitted, and the session that got it.
-- seq, digest and answer are those of the last strict write. Token 0: no mark yet.
CREATE TABLE IF NOT EXISTS tenure_mark (
  resource   VARBINARY(255)  NOT NULL PRIMARY KEY,
  deployment VARBINARY(255)  NOT NULL DEFAULT '',
  grp        VARBINARY(255)  NOT NULL DEFAULT '',
  token      BIGINT UNSIGNED NOT NULL DEFAULT 0 CHECK (token <= 9007199254740991),
  seq        BIGINT UNSIGNED NOT NULL DEFAULT 0,
  digest     VARBINARY(1024) NOT NULL DEFAULT '',
  answer     LONGBLOB,
  session    VARBINARY(64)   NOT NULL DEFAULT ''
) ENGINE = InnoDB;

-- Results of the steps that were done. A step is done once per resource.
CREATE TABLE IF NOT EXISTS tenure_once (
  resource VARBINARY(255)  NOT NULL,
  `key`    VARBINARY(255)  NOT NULL,
  token    BIGINT UNSIGNED NOT NULL,
  result   LONGBLOB, -- NULL: not done
  made_at  TIMESTAMP       NOT NULL DEFAULT CURRENT_TIMESTAMP,
  PRIMARY KEY (resource, `key`)
) ENGINE = InnoDB;

-- A direct change of the row cannot lower the mark.
CREATE TRIGGER IF NOT EXISTS tenure_mark_rises BEFORE UPDATE ON tenure_mark FOR EACH ROW
BEGIN
  IF NEW.token < OLD.token OR NEW.resource <> OLD.resource THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'fence: a mark never goes down';
  END IF;
END;
