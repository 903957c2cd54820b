"""What each request of kube-scheduler is answered, whichever version of HTTP it came by.

A decided answer is always HTTP 200 with the reason in the body: kube-scheduler reads no other body. Other statuses are
for callers that have no business here or speak another protocol.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

import msgspec

from extender import wire
from extender.filter_answer import FilterAnswer
from extender.metrics import Metrics
from kube.api.clock import Clock
from kube.objects.pods import Pod

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"
CLIENT_GONE = 499
"""Counted, never sent."""


class Decisions(Protocol):
    """Who decides: `extender.effects_runner.EffectsRunner`."""

    def filter(self, pod: Pod, node_names: Sequence[str]) -> FilterAnswer: ...

    def preempt(
        self, pod: Pod, victims: Mapping[str, tuple[Sequence[str], int]]
    ) -> Mapping[str, tuple[Sequence[str], int]]: ...

    async def bind(self, args: wire.ExtenderBindingArgs, arrived: float) -> str:
        """Held until decided; "" is success, else the reason. Cancellation means that the caller has gone."""
        ...


class Reply(NamedTuple):
    status: int
    body: bytes
    content_type: str = JSON


class Verb:
    """One verb with its series at hand: looking a label up costs more than counting.

    decide: the body of the reply, at once or (bind) later; arrived is the monotonic second of the request's arrival.
    """

    __slots__ = ("_answered", "_codes", "_in_flight", "_name", "_seconds", "decide")

    def __init__(self, name: str, decide: Callable[[bytes, float], bytes | Awaitable[bytes]], metrics: Metrics) -> None:
        self.decide = decide
        self._name = name
        self._in_flight = metrics.in_flight.labels(name)
        self._seconds = metrics.request_seconds.labels(name)
        self._answered = metrics.requests.labels(name, "200")
        self._codes = metrics.requests

    def began(self) -> None:
        self._in_flight.inc()

    def ended(self, status: int, seconds: float) -> None:
        self._in_flight.dec()
        self._seconds.observe(seconds)
        (self._answered if status == 200 else self._codes.labels(self._name, str(status))).inc()


class Verbs:
    """filter_deadline: a filter or preempt call older than this (seconds) is answered with an error: nobody waits for
    the answer any more. max_body: bytes. client_names: CNs of client certificates that are served; None: everybody is
    (no TLS: tests)."""

    def __init__(
        self,
        decisions: Decisions,
        clock: Clock,
        metrics: Metrics,
        *,
        filter_deadline: float,
        max_body: int,
        client_names: frozenset[str] | None,
    ) -> None:
        self.client_names = client_names
        self.max_body = max_body
        self._decisions = decisions
        self._clock = clock
        self._filter_deadline = filter_deadline
        self._verbs = {
            "/filter": Verb("filter", self._filter, metrics),
            "/preempt": Verb("preempt", self._preempt, metrics),
            "/bind": Verb("bind", self._bind, metrics),
        }

    def get(self, path: str) -> Verb | None:
        return self._verbs.get(path)

    def refusal(self, client_name: str, method: str, encoding: str, length: int) -> Reply | None:
        """What can be said without the body. length: announced bytes, 0 if unknown."""
        if self.client_names is not None and client_name not in self.client_names:
            return text(403, f"client certificate {client_name!r} is not the scheduler's (--client-name)")
        if method != "POST":
            return text(405, "only POST")
        if encoding != "identity":
            return text(415, "bodies must not be compressed")
        if length > self.max_body:
            return too_large(self.max_body)
        return None

    def answer(self, verb: Verb, body: bytes, arrived: float) -> Reply | Awaitable[Reply]:
        """At once for what is decided at once."""
        try:
            decided = verb.decide(body, arrived)
        except msgspec.DecodeError as problem:
            return text(400, f"not an extender/v1 request: {problem}")
        except RecursionError:
            return text(400, "not an extender/v1 request: nested too deeply")
        return Reply(200, decided) if isinstance(decided, bytes) else _reply_later(decided)

    def _filter(self, body: bytes, arrived: float) -> bytes:
        args = wire.decode_filter(body)
        if late := self._late(arrived):
            return wire.encode(wire.ExtenderFilterResult(error=late))
        answer = self._decisions.filter(args.pod, args.offered())
        result = wire.ExtenderFilterResult(
            node_names=answer.node_names,
            failed_nodes=answer.failed,
            failed_and_unresolvable_nodes=answer.unresolvable,
            error=answer.error,
        )
        if args.node_names is None and args.nodes is not None:
            result.node_names = None
            result.nodes = wire.NodesReply(items=args.nodes.named(answer.node_names))
        return wire.encode(result)

    def _preempt(self, body: bytes, arrived: float) -> bytes:
        args = wire.decode_preemption(body)
        candidates = args.candidates()
        if self._late(arrived):
            return wire.encode(wire.ExtenderPreemptionResult())  # there is no error here: a veto
        kept = self._decisions.preempt(
            args.pod, {node: (victims.uids(), victims.num_pdb_violations) for node, victims in candidates.items()}
        )
        return wire.encode(
            wire.ExtenderPreemptionResult(
                node_name_to_meta_victims={
                    node: wire.MetaVictims(pods=[wire.MetaPod(uid=uid) for uid in uids], num_pdb_violations=violations)
                    for node, (uids, violations) in kept.items()
                }
            )
        )

    def _bind(self, body: bytes, arrived: float) -> Awaitable[bytes]:
        return self._held(wire.decode_binding(body), arrived)

    async def _held(self, args: wire.ExtenderBindingArgs, arrived: float) -> bytes:
        error = await self._decisions.bind(args, arrived)
        return wire.encode(wire.ExtenderBindingResult(error=error))

    def _late(self, arrived: float) -> str:
        if self._clock.monotonic() - arrived > self._filter_deadline:
            return "the extender was too slow, ask again"
        return ""


async def _reply_later(body: Awaitable[bytes]) -> Reply:
    return Reply(200, await body)


def text(status: int, message: str) -> Reply:
    return Reply(status, f"{message}\n".encode(), TEXT)


def too_large(limit: int) -> Reply:
    return text(413, f"the body is above {limit} bytes")


def too_slow(seconds: float) -> Reply:
    return text(408, f"the body did not arrive within {seconds} s")
