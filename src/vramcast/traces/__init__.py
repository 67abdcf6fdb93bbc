"""Traces as data: saved to a file, compared, replayed at other sizes. Needs neither torch nor the script."""
