"""Host memory: what the machine allows, what libraries and parquet files hold, and the entries that follow.

Start at `entries.py` (HostJob → entries) and `parquet.py` (files → facts). Imports errors, units, files and ledger
only, never torch, and pyarrow only when a file is read: the engine and pieces inside a training job may both use it.
"""
