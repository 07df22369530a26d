-- Schema version 2: a line for each process that keeps the run going (core/process.h); '' where none is known.
ALTER TABLE run ADD COLUMN processes TEXT NOT NULL DEFAULT '';
