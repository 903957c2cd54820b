"""Carries out the steps that `dispatcher.attempts` asks for: one call (or one ordered few) against hub or member.

A step that worked answers with what was learnt by it, so that the next one need not wait for a watch. A step that
failed raises `ApiError` (try again later), or answers `refusal`: the member said no for good.
"""

import logging
from datetime import datetime

import msgspec

from dispatcher.binding_store import BindingStore, Key
from dispatcher.dialects import CannotCarry, member_copy, member_reservation
from dispatcher.dispatch import CannotDispatch, dispatch
from dispatcher.fleet import Fleet
from dispatcher.hub_watches import HubWatches, Undecoded
from dispatcher.identity import HubIdentity, may_be_id_of, mint_job_id
from dispatcher.intents import Reading
from dispatcher.kinds import PYTORCHJOB
from dispatcher.live_reads import Subject, read_live
from dispatcher.member_objects import Identity
from dispatcher.members import Member
from dispatcher.observations import MemberView, ReservationView
from dispatcher.options import Options
from dispatcher.steps import (
    AwaitAdmission,
    CreateBinding,
    DeleteCopy,
    DeletePodGroup,
    DeleteReservation,
    Dispatch,
    ExpireJob,
    MemberStep,
    PostReservation,
    ReadBinding,
    ReadHubJob,
    ReadLive,
    Record,
    RemoveBinding,
    RemoveFinalizer,
    RenewReservation,
    SetDispatched,
    StampJob,
    Step,
    Wait,
)
from dispatcher.views import reservation_view
from kube.api.api import BINDINGS, POD_GROUPS, PYTORCH_JOBS, RESERVATIONS, Api, Resource
from kube.api.clock import Clock
from kube.api.errors import AlreadyExists, Conflict, Forbidden, Invalid, NotFound, StatusError, Unreachable
from kube.api.writes import create_or_read, delete_if_there, read, replace
from kube.objects.binding import BindingSpec, JobRef, ResourceBinding, binding_name
from kube.objects.meta import ObjectMeta
from kube.objects.names import FINALIZER, JOB_ID, MUSTER_NAMESPACE
from kube.objects.reservation import GangReservation, reservation_name

log = logging.getLogger(__name__)


class Learnt(msgspec.Struct, kw_only=True):
    """What a step has shown."""

    member: MemberView | None = None
    """As read or written just now; None: nothing new, look into the caches."""
    gone_uid: str = ""
    """An object that was deleted by it: caches may still show it."""
    job_gone: bool = False
    binding_gone: bool = False
    stale: bool = False
    """A precondition did not hold: what it was decided on is not true any more. Look again, live."""
    pause: bool = False
    """The watch will tell the rest."""
    refusal: str = ""
    """The member refused for good, and why."""
    warnings: tuple[str, ...] = ()


class Actions:
    def __init__(
        self,
        hub: Api,
        watches: HubWatches,
        store: BindingStore,
        fleet: Fleet,
        *,
        identity: HubIdentity,
        clock: Clock,
        options: Options,
    ) -> None:
        self._hub = hub
        self._watches = watches
        self._store = store
        self._fleet = fleet
        self._identity = identity
        self._clock = clock
        self._options = options

    async def perform(
        self, key: Key, step: Step, base: BindingSpec | None, reading: Reading | None, member: MemberView | None
    ) -> Learnt:
        """`base`: the binding's spec that the step was decided on. `member`: what is known of the attempt there.
        Raises ApiError."""
        if isinstance(step, MemberStep):
            return await self._in_member(key, step, reading, member)
        match step:
            case Wait() | AwaitAdmission():
                return Learnt(pause=True)
            case Record():
                return await self._record(key, step, base)
            case CreateBinding():
                return await self._create_binding(key, reading)
            case ReadBinding():
                return await self.refresh(key)
            case RemoveBinding():
                return await self._remove_binding(key)
            case StampJob():
                return await self._stamp(key)
            case ReadHubJob():
                return await self._read_job(key)
            case RemoveFinalizer():
                return await self._remove_finalizer(key)
            case ExpireJob():
                gone = not await delete_if_there(
                    self._hub, PYTORCH_JOBS, key[1], key[0], uid=step.uid, timeout=self._options.hub_call_seconds
                )
                return Learnt(pause=True, job_gone=gone)

    # --- hub

    async def _record(self, key: Key, step: Record, base: BindingSpec | None) -> Learnt:
        known = self._store.get(key)
        if known is None or known.spec != base:
            return Learnt(stale=True)
        wanted = msgspec.structs.replace(known, spec=step.spec)
        try:
            written = await replace(self._hub, BINDINGS, wanted, timeout=self._options.hub_call_seconds)
        except (Conflict, NotFound):
            await self.refresh(key)
            return Learnt(stale=True)
        self._store.put(written)
        return Learnt()

    async def refresh(self, key: Key) -> Learnt:
        """The binding of this key as it is now."""
        namespace, job = key
        found = await read(
            self._hub, BINDINGS, ResourceBinding, binding_name(job), namespace, timeout=self._options.hub_call_seconds
        )
        if found is not None:
            self._store.put(found)
            return Learnt()
        known = self._store.get(key)
        if known is not None:
            self._store.removed(known)
        return Learnt(binding_gone=True)

    async def _create_binding(self, key: Key, reading: Reading | None) -> Learnt:
        job = self._watches.jobs.get(*key)
        if job is None or reading is None:
            return Learnt(stale=True)
        intent = reading.intent
        spec = BindingSpec(
            hub_id=self._identity.hub_id,
            job_id=self._job_id(key[1], job),
            job=JobRef(api_version=PYTORCHJOB.api_version, kind=PYTORCHJOB.kind, name=key[1], uid=job.metadata.uid),
            policy=reading.view.policy,
            queued_at=_microseconds(job.metadata.creation_timestamp) or _now(self._clock),
        )
        if intent is not None:
            spec = msgspec.structs.replace(spec, **msgspec.structs.asdict(intent))
        # The finalizer: whoever deletes the namespace, or the binding by hand, does not delete what is known of a job
        # that still runs somewhere.
        meta = ObjectMeta(name=binding_name(key[1]), namespace=key[0], finalizers=[FINALIZER])
        binding = ResourceBinding(metadata=meta, spec=spec)
        made, _ = await create_or_read(self._hub, BINDINGS, binding, timeout=self._options.hub_call_seconds)
        self._store.put(made)
        return Learnt()

    def _job_id(self, name: str, job: Undecoded) -> str:
        """A new one; but a job that was stamped already and has lost its binding keeps its own, so that its copy and
        its pods are found and it does not run twice. A job made from another one's YAML carries that one's id, and
        keeps it only where nobody else has it."""
        stamped = job.metadata.annotation(JOB_ID)
        if FINALIZER in job.metadata.finalizers and may_be_id_of(stamped, name) and self._store.by_id(stamped) is None:
            return stamped
        return mint_job_id(name)

    async def _remove_binding(self, key: Key) -> Learnt:
        known = self._store.get(key)
        if known is None:
            return Learnt(stale=True)
        meta = known.metadata
        try:
            if FINALIZER in meta.finalizers:
                left = [f for f in meta.finalizers if f != FINALIZER]
                freed = msgspec.structs.replace(known, metadata=msgspec.structs.replace(meta, finalizers=left))
                meta = (await replace(self._hub, BINDINGS, freed, timeout=self._options.hub_call_seconds)).metadata
            await delete_if_there(
                self._hub, BINDINGS, meta.name, meta.namespace, uid=meta.uid, resource_version=meta.resource_version,
                timeout=self._options.hub_call_seconds,
            )  # fmt: skip
        except (Conflict, NotFound):
            return await self.refresh(key)
        self._store.removed(known)
        return Learnt(binding_gone=True)

    async def _stamp(self, key: Key) -> Learnt:
        job, binding = self._watches.jobs.get(*key), self._store.get(key)
        if job is None or binding is None:
            return Learnt(stale=True)
        finalizers = [f for f in job.metadata.finalizers if f != FINALIZER] + [FINALIZER]
        return await self._patch_job(job, {"annotations": {JOB_ID: binding.spec.job_id}, "finalizers": finalizers})

    async def _remove_finalizer(self, key: Key) -> Learnt:
        job = self._watches.jobs.get(*key)
        if job is None:
            return Learnt(pause=True)
        return await self._patch_job(job, {"finalizers": [f for f in job.metadata.finalizers if f != FINALIZER]})

    async def _patch_job(self, job: Undecoded, metadata: dict[str, object]) -> Learnt:
        """Uid and resourceVersion in the patch are preconditions: a finalizer list must not overwrite another's."""
        meta = job.metadata
        body = {"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, **metadata}}
        try:
            await self._hub.patch(
                PYTORCH_JOBS, meta.name, msgspec.json.encode(body), meta.namespace,
                timeout=self._options.hub_call_seconds,
            )  # fmt: skip
        except Conflict:
            log.debug("%s/%s changed meanwhile; deciding again", meta.namespace, meta.name)
        except NotFound:
            return Learnt(pause=True)
        return Learnt(pause=True)

    async def _read_job(self, key: Key) -> Learnt:
        try:
            await self._hub.get(PYTORCH_JOBS, key[1], key[0], timeout=self._options.hub_call_seconds)
        except NotFound as error:
            if error.reason != "NotFound":  # the kind is not served: that proves nothing about the job
                raise
            return Learnt(job_gone=True)
        return Learnt(pause=True)

    # --- members

    async def _in_member(self, key: Key, step: MemberStep, reading: Reading | None, known: MemberView | None) -> Learnt:
        member = self._fleet.get(step.cluster)
        if member is None or member.api is None:
            raise Unreachable(f"cluster {step.cluster} is not connected")
        api = member.api
        async with member.calls:
            try:
                return await self._member_step(key, step, reading, member, api, known)
            except Conflict:
                return Learnt(stale=True)
            except (CannotCarry, CannotDispatch) as refused:
                return Learnt(refusal=str(refused))
            except (Invalid, Forbidden, NotFound, AlreadyExists) as refused:
                if not isinstance(step, PostReservation | SetDispatched | Dispatch) or refused.code == 401:
                    raise
                if isinstance(step, SetDispatched) and isinstance(refused, NotFound):
                    return Learnt(stale=True)
                return Learnt(refusal=_admission(refused))

    async def _member_step(
        self, key: Key, step: MemberStep, reading: Reading | None, member: Member, api: Api, known: MemberView | None
    ) -> Learnt:
        timeout = self._options.member_call_seconds
        base = known or self._cached(key, member)
        match step:
            case ReadLive():
                return Learnt(member=await self.look(key, member, api))
            case PostReservation():
                return Learnt(member=_with(base, await self._post_reservation(key, step, reading, member, api)))
            case RenewReservation() | SetDispatched():
                return Learnt(member=_with(base, await self._change_reservation(key, step, api)))
            case Dispatch():
                if reading is None or reading.job is None:
                    return Learnt(stale=True)
                done = await dispatch(
                    self._hub, member, api, reading.job, self._ours(key, step.epoch), reading.dependencies(),
                    timeout=timeout,
                )  # fmt: skip
                return Learnt(member=msgspec.structs.replace(base, copy=done.copy), warnings=done.warnings)
            case DeleteReservation():
                binding = self._store.get(key)
                if binding is None:
                    return Learnt(stale=True)
                name = reservation_name(binding.spec.job_id, step.epoch)
                return await _delete(api, RESERVATIONS, name, MUSTER_NAMESPACE, step, timeout=timeout)
            case DeleteCopy():
                return await _delete(api, PYTORCH_JOBS, key[1], key[0], step, timeout=timeout)
            case DeletePodGroup():
                return await _delete(api, POD_GROUPS, key[1], key[0], step, timeout=timeout)

    def _cached(self, key: Key, member: Member) -> MemberView:
        binding = self._store.get(key)
        attempt = binding.spec.attempt if binding else None
        if binding is None or attempt is None or attempt.cluster != member.name:
            return member.view()
        return member.caches.view(member.view(), binding.spec.job_id, attempt.epoch)

    async def look(self, key: Key, member: Member, api: Api) -> MemberView | None:
        """The attempt of this key's binding in its member, read live. Raises ApiError."""
        binding = self._store.get(key)
        if binding is None or binding.spec.attempt is None:
            return None
        spec, attempt = binding.spec, binding.spec.attempt
        subject = Subject(self._identity.hub_id, spec.job_id, attempt.epoch, key[0], key[1])
        return await read_live(api, member.view(), subject, timeout=self._options.member_call_seconds)

    async def _post_reservation(
        self, key: Key, step: PostReservation, reading: Reading | None, member: Member, api: Api
    ) -> ReservationView:
        if reading is None or reading.job is None:
            raise CannotDispatch("the job cannot be read any more")
        ours = self._ours(key, step.epoch)
        copy = member_copy(reading.job, member.dialect, member.capacity.scheduler_name, ours)
        binding = self._store.get(key)
        attempt = binding.spec.attempt if binding else None
        wanted = member_reservation(
            reading.job,
            copy,
            ours,
            claim=attempt is not None and attempt.claim,
            ttl_seconds=self._options.reservation_ttl_seconds,
            landing_deadline_seconds=self._options.landing_deadline_seconds,
        )
        made, _ = await create_or_read(api, RESERVATIONS, wanted, timeout=self._options.member_call_seconds)
        return reservation_view(made)

    async def _change_reservation(self, key: Key, step: RenewReservation | SetDispatched, api: Api) -> ReservationView:
        """PUT of what was read under the resourceVersion that the step was decided on. Raises Conflict, NotFound."""
        binding = self._store.get(key)
        if binding is None:
            raise Conflict(409, "Conflict", "the binding is gone")
        name = reservation_name(binding.spec.job_id, step.epoch)
        timeout = self._options.member_call_seconds
        body = await api.get(RESERVATIONS, name, MUSTER_NAMESPACE, timeout=timeout)
        there = msgspec.json.decode(body, type=GangReservation)
        if there.metadata.resource_version != step.resource_version:
            raise Conflict(409, "Conflict", f"{name} changed")
        if isinstance(step, SetDispatched):
            there.spec.state = "Dispatched"
        else:
            there.spec.renewals = step.renewals
        return reservation_view(await replace(api, RESERVATIONS, there, timeout=timeout))

    def _ours(self, key: Key, epoch: int) -> Identity:
        binding = self._store.get(key)
        if binding is None:
            raise Conflict(409, "Conflict", "the binding is gone")
        return Identity(self._identity.hub_id, binding.spec.job_id, epoch)


async def _delete(
    api: Api,
    resource: Resource,
    name: str,
    namespace: str,
    step: DeleteReservation | DeleteCopy | DeletePodGroup,
    *,
    timeout: float,
) -> Learnt:
    await delete_if_there(
        api, resource, name, namespace, uid=step.uid, resource_version=step.resource_version, timeout=timeout
    )
    return Learnt(gone_uid=step.uid)


def _with(base: MemberView, reservation: ReservationView) -> MemberView:
    return msgspec.structs.replace(base, live=False, reservation=reservation)


def _admission(refused: StatusError) -> str:
    return f"its API server refused: {refused.message}"


def _now(clock: Clock) -> str:
    return clock.now().isoformat(timespec="microseconds").replace("+00:00", "Z")


def _microseconds(timestamp: str | None) -> str:
    """A creationTimestamp ("...:05Z") in the form that ages are compared in ("...:05.000000Z")."""
    if not timestamp:
        return ""
    try:
        moment = datetime.fromisoformat(timestamp)
    except ValueError:
        return ""
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
