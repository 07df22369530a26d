-- Schema version 1. A later version is a further file with ALTER statements (results/migrate.c); the number is
-- stored in PRAGMA user_version, and PRAGMA application_id is 0x5054426e ("PTBn").
--
-- Blobs are two bytes, then one zstd frame of byte-shuffled records: byte 0 of all records, then byte 1 of all
-- records, and so on (results/blob.h).
--   'F' 1: float64, little-endian, 8 bytes a record
--   'S' 1: spans, 76 bytes a record, little-endian: i64 begin_ns minus the previous record's (the first: minus 0),
--          i64 duration_ns, i32 rank, i16 stream, u8 kind, u8 phase, i32 unit, i32 microbatch, i32 axis,
--          u64 bytes, u64 correlation, 24 bytes of name, zero-padded
CREATE TABLE run (
    id INTEGER PRIMARY KEY,
    uuid TEXT NOT NULL UNIQUE,
    started_utc_s REAL NOT NULL,
    finished_utc_s REAL,
    state TEXT NOT NULL CHECK (state IN ('running', 'complete', 'interrupted', 'failed')),
    reason TEXT,
    command TEXT NOT NULL,
    selection TEXT NOT NULL,
    label TEXT,
    version TEXT NOT NULL,
    git_revision TEXT,
    build TEXT NOT NULL,          -- JSON object
    options TEXT NOT NULL,        -- JSON object: owner -> option -> value
    environment TEXT NOT NULL,    -- JSON object, secrets masked
    hosts TEXT NOT NULL,          -- JSON array of topologies
    fingerprint TEXT NOT NULL,
    simulated INTEGER NOT NULL,
    clock_resolution_ns REAL,
    clock_overhead_ns REAL,
    loop_overhead_ns REAL
) STRICT;

CREATE INDEX run_by_start ON run (started_utc_s);

CREATE TABLE repetition (
    id INTEGER PRIMARY KEY,
    run_id INTEGER NOT NULL REFERENCES run (id) ON DELETE CASCADE,
    ordinal INTEGER NOT NULL,
    started_utc_s REAL NOT NULL,
    ranks INTEGER NOT NULL,
    hosts INTEGER NOT NULL,
    launcher TEXT NOT NULL,
    placement TEXT NOT NULL,      -- JSON array, one object a rank
    UNIQUE (run_id, ordinal)
) STRICT;

CREATE TABLE bench_case (
    id INTEGER PRIMARY KEY,
    repetition_id INTEGER NOT NULL REFERENCES repetition (id) ON DELETE CASCADE,
    key TEXT NOT NULL,            -- canonical: bench/name=value/...
    bench TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    ranks INTEGER NOT NULL,
    hosts INTEGER NOT NULL,
    params TEXT NOT NULL,         -- JSON object: what was asked for
    facts TEXT NOT NULL,          -- JSON object: what really ran
    state TEXT NOT NULL CHECK (state IN ('ok', 'wrong', 'skipped', 'failed')),
    reason TEXT,
    mode TEXT,
    combine TEXT,
    stopped TEXT,
    batch INTEGER NOT NULL,
    warmup INTEGER NOT NULL,
    started_utc_s REAL NOT NULL,
    elapsed_s REAL NOT NULL,
    samples INTEGER NOT NULL,     -- number of combined samples; the columns below are NULL when it is 0
    min_ns REAL, median_ns REAL, mean_ns REAL, p95_ns REAL, p99_ns REAL, max_ns REAL,
    cv REAL, ci_low_ns REAL, ci_high_ns REAL, ci_confidence REAL,
    combined BLOB,                -- blob 'F': ns per iteration
    UNIQUE (repetition_id, key)
) STRICT;
CREATE INDEX bench_case_by_bench ON bench_case (bench, bytes);

CREATE TABLE case_rank (
    case_id INTEGER NOT NULL REFERENCES bench_case (id) ON DELETE CASCADE,
    rank INTEGER NOT NULL,
    samples INTEGER NOT NULL,
    min_ns REAL, median_ns REAL, mean_ns REAL, p95_ns REAL, p99_ns REAL, max_ns REAL,
    checked INTEGER NOT NULL,
    wrong INTEGER NOT NULL,
    detail TEXT,
    data BLOB,                    -- blob 'F': ns per iteration, in order of measurement
    spans BLOB,                   -- blob 'S'
    spans_dropped INTEGER NOT NULL,
    PRIMARY KEY (case_id, rank)
) STRICT, WITHOUT ROWID;

CREATE TABLE metric (
    case_id INTEGER NOT NULL REFERENCES bench_case (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    value REAL,                   -- NULL: not applicable
    unit TEXT NOT NULL,
    convention TEXT NOT NULL,
    better TEXT NOT NULL CHECK (better IN ('neutral', 'higher', 'lower')),
    PRIMARY KEY (case_id, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE series (
    case_id INTEGER NOT NULL REFERENCES bench_case (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    unit TEXT NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,           -- blob 'F'
    PRIMARY KEY (case_id, name)
) STRICT, WITHOUT ROWID;
