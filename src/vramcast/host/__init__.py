"""Host memory: what the machine allows, what libraries and parquet files hold, and the bill that follows.

Sits beside the ledger: imports errors, units and ledger only, never torch, and pyarrow only when a file is read, so
that both the formula side and the pieces inside a training job may use it.
"""
