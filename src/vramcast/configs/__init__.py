"""Configuration files of other frameworks, read as they are: start at understand.py."""

from vramcast.configs.changes import Patch, write_change
from vramcast.configs.job_of_files import job_of_files
from vramcast.configs.records import Gap, Record, Said
from vramcast.configs.understand import Part, Understood, understand

__all__ = [
    "Gap",
    "Part",
    "Patch",
    "Record",
    "Said",
    "Understood",
    "job_of_files",
    "understand",
    "write_change",
]
