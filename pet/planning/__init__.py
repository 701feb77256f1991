"""Planning a training run on a cluster: which layouts fit, what they hold, send and cost. From shapes alone."""

from pet.planning.cluster import Cluster, parse_bytes
from pet.planning.search import Candidate, Plan, Work, plan

__all__ = ["Candidate", "Cluster", "Plan", "Work", "parse_bytes", "plan"]
