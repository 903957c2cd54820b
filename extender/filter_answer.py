"""The answer of `filter`, as the wire wants it."""

import msgspec


class FilterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """ExtenderFilterResult with names. `node_names` is a subset of what was offered."""

    node_names: list[str]
    failed: dict[str, str] = {}
    """FailedNodes: preemption may be tried there."""
    unresolvable: dict[str, str] = {}
    """FailedAndUnresolvableNodes: preemption skips these."""
    error: str = ""
    """Not empty only while the core is not deciding (not synced): retried by back-off alone."""
