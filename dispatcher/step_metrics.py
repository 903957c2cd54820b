"""Counts what the steps of jobs come to."""

from datetime import datetime

from dispatcher.actions import Learnt
from dispatcher.metrics import NO_QUEUE, Metrics
from dispatcher.steps import Dispatch, MemberStep, Record, Step
from kube.api.clock import Clock
from kube.objects.binding import BindingSpec, ResourceBinding


class StepMetrics:
    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock

    def stepped(self, step: Step, learnt: Learnt, binding: ResourceBinding | None) -> None:
        """After a step was carried out; `binding` as it is then."""
        if learnt.refusal:
            self._metrics.dispatch_errors.labels("Refused").inc()
        elif learnt.stale and isinstance(step, MemberStep):
            self._metrics.dispatch_errors.labels("Conflict").inc()
        elif isinstance(step, Dispatch) and binding is not None:
            spec = binding.spec
            self._metrics.dispatched.labels(spec.quota or NO_QUEUE, step.cluster).inc()
            if spec.attempt is not None:
                self._metrics.dispatch_seconds.observe(self._since(spec.attempt.started_at))
        elif isinstance(step, Record) and not learnt.stale:
            self._recorded(step, step.spec)

    def failed(self, step: Step) -> None:
        if isinstance(step, MemberStep):
            self._metrics.dispatch_errors.labels("Unreachable").inc()

    def _recorded(self, step: Record, spec: BindingSpec) -> None:
        match step.change:
            case "Scheduled":
                self._metrics.admitted.inc()
                self._metrics.queue_wait_seconds.labels(spec.quota or NO_QUEUE).observe(self._since(spec.queued_at))
            case "Finished" if spec.result is not None:
                self._metrics.finished.labels(spec.result.state.lower()).inc()
            case "Evicting" if spec.attempt is not None:
                self._metrics.evicted_for(spec.attempt.reason)
            case _:
                pass

    def _since(self, moment: str) -> float:
        """Seconds of wall time; 0 where the clock was set back or the text cannot be read."""
        try:
            return max(0.0, (self._clock.now() - datetime.fromisoformat(moment)).total_seconds())
        except ValueError:
            return 0.0
