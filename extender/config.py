"""What an operator may tune in the extender's decisions. Times are seconds."""

import msgspec


class CoreConfig(msgspec.Struct, frozen=True, kw_only=True):
    scheduler_name: str = "muster"
    """Reported to the hub: the schedulerName pods of gangs should carry (the exact-plan profile)."""
    assembling_hold: float = 5.0
    """Longest time room is held for members of a user's gang that were not seen yet, from the first member."""
    bind_conflict_wait: float = 1.0
    """How long a bind that does not fit waits for the watch to free the room."""
    bind_answer_margin: float = 3.0
    """A held call is answered this long before its deadline; above the POST timeout, so that a commit started in time
    passes the time fence."""
    default_schedule_timeout: float = 60.0
    """A PodGroup without scheduleTimeoutSeconds waits at the barrier this long."""
    post_retry: float = 0.25
    """First pause before a failed POST of a Binding is tried again; doubles up to `post_retry_max`."""
    post_retry_max: float = 2.0
    unknown_binding_hold: float = 60.0
    """A Binding whose outcome is unknown keeps its room this long unless the watch settles it (the API server's
    request timeout)."""
    answered_hold: float = 10.0
    """Room a pod was given by breaking a promise is kept this long for its bind call."""
    takeover_grace: float = 1.0
    """After taking over, the first POSTs wait this long: Bindings of a predecessor may still be on their way."""
    heal_limit: float = 120.0
    """A gang whose commit stopped half-way is finished within this time or evicted whole."""
    below_minimum_limit: float = 600.0
    """A landed gang may stay below its minimum this long before it is evicted whole."""
    hub_silence_limit: float = 900.0
    """PROTOCOL rule 12: hub-owned gangs wait for the hub's Lease after a silence longer than this."""
    claim_limit: float = 600.0
    """One claim holds its nodes this long at most ..."""
    claim_pause: float = 300.0
    """... and then rests this long."""
    claim_after: float = 120.0
    """A user's gang that has waited so long may claim nodes ..."""
    claim_again: float = 10.0
    """... and looks this often whether it is its turn."""
    wake_spread: float = 0.05
    """Refused gangs are woken one after the other with this pause between them."""
    write_pod_group_status: bool = True
    """Keep phase and counts of users' PodGroups true; off where another controller does."""
    max_shapes: int = 256
    """Rows of a capacity report; the largest are kept."""
