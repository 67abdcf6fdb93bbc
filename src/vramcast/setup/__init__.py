"""What a job comes to once everything is decided: `resolve` turns a Job into a Setup."""

from vramcast.setup.precision import RECIPES, Recipe
from vramcast.setup.profiles import complete
from vramcast.setup.records import Setup
from vramcast.setup.resolve import resolve

__all__ = ["RECIPES", "Recipe", "Setup", "complete", "resolve"]
