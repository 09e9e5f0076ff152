"""The fleet that serves by day and trains by night, from demand to a record of every minute.

``cs.run_fleet`` and ``cs.lend`` are its doors; a policy of your own needs the names below.
"""

from workloads.fleet.policies.view import Decision, Policy, View

__all__ = ["Decision", "Policy", "View"]
