"""session-manager: the conversation database of an agent system, a worker on the iii engine."""

from importlib.metadata import version

__version__ = version("session-manager")
