"""Who decides in a member: its extenders are asked all the time, as their kube-schedulers would ask."""

import http.client
import itertools
import json
import ssl
import threading
import time
from dataclasses import dataclass

from hack.fleet.fleet import Cluster

PAUSE = 0.05
PATIENCE = 1.0
NEIGHBOURS = 1.0
"""Two positive answers of one extender that are no further apart, in seconds, have no loss and regain between them."""

QUESTION = json.dumps(
    {
        # A pod of a native group is let through by whoever decides, and leaves no trace.
        "Pod": {
            "metadata": {"name": "question", "namespace": "default", "uid": "question"},
            "spec": {"schedulingGroup": {"podGroupName": "native"}, "containers": [{"name": "c", "image": "x"}]},
        },
        "NodeNames": ["somewhere"],
    }
)


@dataclass(frozen=True, slots=True)
class Answer:
    sent: float
    """Monotonic seconds."""
    received: float
    positive: bool


class Answers:
    """Asks both extenders, each from a thread of its own, for as long as the block lasts."""

    def __init__(self, member: Cluster, extenders: tuple[str, ...] = ("extender", "extender-2")) -> None:
        self._member = member
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._seen: dict[str, list[Answer]] = {extender: [] for extender in extenders}
        self._threads = [threading.Thread(target=self._ask, args=(each,), daemon=True) for each in extenders]

    def __enter__(self) -> "Answers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def of(self, extender: str) -> list[Answer]:
        with self._lock:
            return list(self._seen[extender])

    def first_positive(self, extender: str, since: float) -> float:
        """When the first positive answer to a question sent after `since` was received. Raises ValueError."""
        return min(answer.received for answer in self.of(extender) if answer.positive and answer.sent > since)

    def together(self) -> list[tuple[str, str, float]]:
        """(one, other, when): moments at which both extenders decided."""
        found = []
        for one in self._seen:
            positive = [answer for answer in self.of(one) if answer.positive]
            spans = [
                (before.received, after.sent)
                for before, after in itertools.pairwise(positive)
                if after.sent - before.received < NEIGHBOURS
            ]
            for other in self._seen:
                if other == one:
                    continue
                found += [
                    (one, other, answer.sent)
                    for answer in self.of(other)
                    if answer.positive and any(begin < answer.sent and answer.received < end for begin, end in spans)
                ]
        return found

    def _ask(self, extender: str) -> None:
        context = ssl.create_default_context(cafile=str(self._member.extender_pki / "ca.crt"))
        context.load_cert_chain(self._member.extender_pki / "client.crt", self._member.extender_pki / "client.key")
        port = self._member.port(extender)
        connection: http.client.HTTPSConnection | None = None
        while not self._over.wait(PAUSE):
            sent = time.monotonic()
            try:
                if connection is None:
                    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE, context=context)
                connection.request("POST", "/filter", QUESTION)
                positive = bool(json.loads(connection.getresponse().read()).get("NodeNames"))
            except (OSError, http.client.HTTPException, ValueError):
                positive = False
                if connection is not None:
                    connection.close()
                connection = None
            with self._lock:
                self._seen[extender].append(Answer(sent, time.monotonic(), positive))
