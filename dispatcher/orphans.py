"""What to do with objects of ours in a member whose job the hub does not know. Pure.

A binding outlives everything of its job, so objects without one are either what an attempt given up before Scheduled
left behind, a request of a former leader that arrived late, or the trace of a hub that lost its data. The first two
were never admitted: no reservation of theirs was ever set to dispatched. The third must not cost a running job
(invariant 7), so it is reported and left alone.
"""

from typing import Literal

from dispatcher.observations import Stray


def verdict(stray: Stray) -> Literal["Remove", "Report"]:
    """`stray`: everything of one id without a binding in one member."""
    if any(r.dispatched or r.state == "Landed" for r in stray.reservations):
        return "Report"
    if stray.copy is not None and stray.pods_bound and not stray.copy.deleting:
        return "Report"  # it runs, so it was admitted once
    return "Remove"
