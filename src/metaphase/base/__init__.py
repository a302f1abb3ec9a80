"""What everything rests on: errors, files, provenance, tables, settings, boxes, threads."""
