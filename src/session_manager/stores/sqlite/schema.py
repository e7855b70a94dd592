"""The tables, and the steps from one version of them to the next.

The version is SQLite's `user_version`. A step is never changed once released; a test proves that the steps one by one
and a fresh database end in the same schema.
"""

from __future__ import annotations

APPLICATION_ID = 0x53455353
"""`SESS`, so that `file` and people can tell what the file is."""

STEPS: tuple[str, ...] = (
    """
    -- The number of the last commit, or of an earlier one where the row that was inserted last tells it (see
    -- LAST_COMMIT). Every row says which commit wrote it.
    CREATE TABLE sequence (last INTEGER NOT NULL);
    INSERT INTO sequence VALUES (0);

    -- One row per session id that has a record, a leaf or entries. `meta` is the record as JSON, NULL when there is
    -- none, and `sum` its checksum; the columns behind it repeat what lists sort and filter by.
    CREATE TABLE session (
        num        INTEGER PRIMARY KEY,
        id         TEXT NOT NULL UNIQUE,
        leaf       TEXT,
        meta       BLOB,
        sum        INTEGER,
        status     TEXT,
        created_at INTEGER,
        updated_at INTEGER,
        seq        INTEGER NOT NULL
    );
    -- A list of all statuses merges four ranges of these: two indexes less to write with every append.
    CREATE INDEX session_created ON session (status, created_at, id) WHERE meta IS NOT NULL;
    CREATE INDEX session_updated ON session (status, updated_at, id) WHERE meta IS NOT NULL;

    -- One row per top-level key of a session's metadata: a digest of the key and its value in canonical JSON.
    CREATE TABLE label (
        digest  BLOB NOT NULL,
        session INTEGER NOT NULL,
        PRIMARY KEY (digest, session)
    ) WITHOUT ROWID;
    CREATE INDEX label_session ON label (session);

    -- `parent_id` is the chain, and the truth. `branch` and `pos` are an index of it: `pos` is the distance to the
    -- root, and a branch holds consecutive positions. They are NULL where the chain did not lead to a root when the
    -- entry was written; such entries are found by walking. `revision` is an unsigned 64-bit number kept as a signed
    -- one. `sum` is a checksum of what the row holds: SQLite has none on its pages, so a torn one could go unnoticed.
    CREATE TABLE entry (
        num       INTEGER PRIMARY KEY,
        session   INTEGER NOT NULL,
        id        TEXT NOT NULL,
        parent_id TEXT,
        timestamp INTEGER NOT NULL,
        role      TEXT,
        body      BLOB NOT NULL,
        revision  INTEGER NOT NULL,
        origin    BLOB,
        sum       INTEGER NOT NULL,
        branch    INTEGER,
        pos       INTEGER,
        seq       INTEGER NOT NULL,
        UNIQUE (session, id)
    );
    CREATE UNIQUE INDEX entry_place ON entry (session, branch, pos, role) WHERE branch IS NOT NULL;

    -- Where a branch leaves another: its first position, and the branch that holds the position before it.
    CREATE TABLE branch (
        session INTEGER NOT NULL,
        branch  INTEGER NOT NULL,
        parent  INTEGER,
        start   INTEGER NOT NULL,
        PRIMARY KEY (session, branch)
    ) WITHOUT ROWID;

    -- For people with a SQLite shell.
    CREATE VIEW conversation AS
        SELECT session.id AS session_id, entry.id AS entry_id, entry.parent_id, entry.branch, entry.pos,
               coalesce(entry.role, 'bookkeeping') AS role, entry.revision,
               CAST(entry.body AS TEXT) AS body
        FROM entry JOIN session ON session.num = entry.session
        ORDER BY session.id, entry.num;
    """,
    """
    -- The status is there exactly where the record is. An index whose condition names `meta` is written anew whenever a
    -- record is; with this one an append leaves `session_created` alone.
    DROP INDEX session_created;
    DROP INDEX session_updated;
    CREATE INDEX session_created ON session (status, created_at, id) WHERE status IS NOT NULL;
    CREATE INDEX session_updated ON session (status, updated_at, id) WHERE status IS NOT NULL;
    """,
    """
    -- A session that began as a fork of a long path shares that path's rows: those of its positions 0 to `last` on
    -- branch 0 that have no row of their own are those of the path that ends at (source, branch, last), with ids made
    -- of `prefix` and the position. A source that is no session any more is kept as far as its forks need it.
    CREATE TABLE fork (
        session INTEGER PRIMARY KEY,
        source  INTEGER NOT NULL,
        branch  INTEGER NOT NULL,
        last    INTEGER NOT NULL,
        prefix  TEXT NOT NULL
    );
    CREATE INDEX fork_source ON fork (source);

    DROP VIEW conversation;
    -- For people with a SQLite shell. `stretch` are the rows that forks share; those of nearer sources count. Asked for
    -- one session, SQLite begins with that one, which is what the CROSS JOINs are for.
    CREATE VIEW conversation AS
        WITH RECURSIVE stretch (fork, prefix, nearness, session, branch, first, last) AS (
            SELECT fork.session, prefix, 1, source, fork.branch, start, last
            FROM fork JOIN branch ON branch.session = source AND branch.branch = fork.branch
            UNION ALL
            SELECT fork, prefix, nearness, below.session, below.branch, below.start, min(last, branch.start - 1)
            FROM stretch JOIN branch USING (session, branch)
            JOIN branch AS below ON below.session = branch.session AND below.branch = branch.parent
            UNION ALL
            SELECT fork, stretch.prefix, nearness + 1, source, fork.branch, start, min(stretch.last, fork.last)
            FROM stretch JOIN fork ON fork.session = stretch.session
            JOIN branch ON branch.session = source AND branch.branch = fork.branch
            WHERE stretch.branch = 0
        )
        SELECT session.id AS session_id, entry.id AS entry_id, parent_id, branch, pos,
               coalesce(role, 'bookkeeping') AS role, revision, CAST(body AS TEXT) AS body, entry.num AS num
        FROM entry JOIN session ON session.num = entry.session
        UNION ALL
        SELECT session.id, printf('%s%08x', prefix, pos), iif(pos, printf('%s%08x', prefix, pos - 1), NULL), 0, pos,
               coalesce(role, 'bookkeeping'), 0, CAST(body AS TEXT), pos - (1 << 62)
        FROM session CROSS JOIN stretch ON stretch.fork = session.num
        CROSS JOIN entry ON entry.session = stretch.session AND entry.branch = stretch.branch
            AND pos BETWEEN first AND last
        WHERE NOT EXISTS (SELECT 1 FROM entry AS own WHERE own.session = fork AND own.branch = 0
                AND own.pos = entry.pos)
            AND NOT EXISTS (SELECT 1 FROM stretch AS near JOIN entry AS other ON other.session = near.session
                AND other.branch = near.branch AND other.pos BETWEEN near.first AND near.last
                WHERE near.fork = stretch.fork AND near.nearness < stretch.nearness AND other.pos = entry.pos)
        ORDER BY session_id, num;
    """,
)

VERSION = len(STEPS)

SHARING = 3
"""The first version with a table `fork`."""

NOTE_COMMIT = (
    "UPDATE sequence SET last = {number}"
    " WHERE (SELECT seq FROM entry WHERE num = (SELECT max(num) FROM entry)) IS NOT {number}"
)
"""Ends a commit, unless the row that was inserted last tells its number."""

LAST_COMMIT = "SELECT max(last, coalesce((SELECT seq FROM entry ORDER BY num DESC LIMIT 1), 0)) FROM sequence"
"""The number of the last commit."""
