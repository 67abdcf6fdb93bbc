"""What a job comes to once everything is decided: `resolve` turns a Job into a Setup."""

from vramcast.setup.defaults import complete
from vramcast.setup.origins import ValueOrigin, origins_of
from vramcast.setup.precision import RECIPES, Recipe
from vramcast.setup.records import Setup
from vramcast.setup.resolve import resolve
from vramcast.setup.tasks import model_of

__all__ = [
    "RECIPES",
    "Recipe",
    "Setup",
    "ValueOrigin",
    "complete",
    "model_of",
    "origins_of",
    "resolve",
]
