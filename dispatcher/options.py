"""Every setting of the dispatcher, each timeout by name. Times in seconds."""

import argparse
from collections.abc import Sequence

import msgspec


class Options(msgspec.Struct, frozen=True, kw_only=True):
    kubeconfig: str = ""
    """Of the hub; "": in a cluster the pod's service account, else $KUBECONFIG."""
    context: str = ""
    metrics_listen: str = "127.0.0.1:8086"
    """/metrics, /healthz, /readyz. A plain port: keep it on loopback or behind a network policy."""
    allow_loopback_members: bool = False
    """Members on this machine (a local fleet). Otherwise a kubeconfig that names a loopback address is refused."""
    log_level: str = "info"

    lease_seconds: int = 15
    lease_margin_seconds: float = 5.0
    """A leader stops this long before anybody could take over."""
    lease_retry_seconds: float = 2.0

    hub_call_seconds: float = 10.0
    member_call_seconds: float = 10.0
    member_calls: int = 16
    """Most writes and live reads under way to one member."""
    hub_calls: int = 32
    """Most writes under way to the hub, besides status."""
    status_writers: int = 8

    probe_seconds: float = 5.0
    """How often a member's kube-system namespace is read: reachable, and still the same cluster."""
    silence_seconds: float = 15.0
    """A member that did not answer for so long is unreachable."""
    heartbeat_seconds: float = 30.0
    """An extender whose Lease was not renewed for so long is down: no new jobs for its member."""
    steady_seconds: float = 3.0
    """A member that was not ready must answer this long before it is ready again."""
    settle_seconds: float = 5.0
    """At a take-over, members get this long to be read before the first admission."""
    reconnect_seconds: float = 5.0
    facts_seconds: float = 300.0
    """How often a member's version and dialect are read again."""
    hub_lease_seconds: int = 60
    hub_lease_renew_seconds: float = 10.0

    answer_seconds: float = 30.0
    """A reservation that the extender has not judged by then is given up."""
    reservation_ttl_seconds: int = 60
    landing_deadline_seconds: int = 600

    retry_seconds: float = 0.5
    """First pause after a failed step of a job, doubled each time."""
    retry_max_seconds: float = 30.0
    exclude_seconds: float = 5.0
    """First pause before a member that refused a job is asked again, doubled each time."""
    exclude_max_seconds: float = 300.0
    claim_after_seconds: float = 300.0
    """A gang that has waited so long for room alone may claim nodes in one member: small jobs cannot starve it."""
    claim_seconds: float = 600.0
    """A claim lasts this long at most ..."""
    claim_pause_seconds: float = 300.0
    """... and the next one in that member is granted this long after it."""
    reclaim: bool = True
    """A queue below its min gets it back: whole jobs of queues above theirs are evicted and queued again."""
    reclaim_hold_seconds: float = 600.0
    """What was freed for a job is kept for it this long, if no member can hold it meanwhile ..."""
    reclaim_rest_seconds: float = 300.0
    """... and it may not ask again for so long, doubled each time."""
    evict_over_max: bool = False
    """When limits are lowered below use: evict and requeue jobs until it fits, instead of waiting for them to end."""
    orphan_seconds: float = 10.0
    """Between two sweeps for objects whose job is gone; what two sweeps in a row find is removed."""


class OptionsRefused(ValueError):
    """Settings that do not go together. The message says which."""


def parse(argv: Sequence[str] | None = None) -> Options:
    """From the command line; each field is a flag. Exits with 2 and the reason on bad input, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="muster-dispatcher",
        description="Queues, places and dispatches gang jobs from a hub cluster to its member clusters.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for field in msgspec.structs.fields(Options):
        flag = "--" + field.name.replace("_", "-")
        if field.type is bool:
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(flag, type=field.type, default=field.default)
    options = Options(**vars(parser.parse_args(argv)))
    try:
        check(options)
    except OptionsRefused as refused:
        parser.error(str(refused))
    return options


def check(options: Options) -> None:
    """Raises OptionsRefused."""
    if options.lease_margin_seconds + options.lease_retry_seconds >= options.lease_seconds:
        raise OptionsRefused("--lease-seconds must exceed --lease-margin-seconds plus --lease-retry-seconds")
    if options.answer_seconds >= options.reservation_ttl_seconds:
        raise OptionsRefused("--answer-seconds must stay below --reservation-ttl-seconds")
    for name in ("probe_seconds", "retry_seconds", "exclude_seconds", "hub_call_seconds", "member_call_seconds"):
        if getattr(options, name) <= 0:
            raise OptionsRefused(f"--{name.replace('_', '-')} must be positive")
    if options.probe_seconds >= options.silence_seconds:
        raise OptionsRefused("--probe-seconds must stay below --silence-seconds")
    host, _, port = options.metrics_listen.rpartition(":")
    if not host or not port.isdigit():
        raise OptionsRefused(f"--metrics-listen {options.metrics_listen!r} is not HOST:PORT")
