"""Personal data in text columns: what is there, where, how sure, and which rule says so."""

from compliance.detect.engine import Detector
from compliance.detect.patterns import ENTITIES

__all__ = ["ENTITIES", "Detector"]
