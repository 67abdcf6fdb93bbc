"""A process that runs transformers for us fetches nothing and prints nothing."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in OFFLINE}
    os.environ.update(OFFLINE)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)  # what libraries say about their own future
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
