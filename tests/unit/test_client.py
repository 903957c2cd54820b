"""`HttpApi` against a scripted server on loopback: what goes out, what each answer means, and every limit."""

import asyncio
import base64
import gc
import json
import ssl
import sys
import tempfile
from contextlib import asynccontextmanager

import pytest
import trustme
import yaml
from aiohttp import web

from kube.api.api import CAPACITIES, LEASES, PODS, RESERVATIONS
from kube.api.client import ClientOptions, HttpApi
from kube.api.config import in_cluster_connection
from kube.api.connection import Authorization, Connection, member_connection
from kube.api.errors import (
    AlreadyExists,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    StatusError,
    TooManyRequests,
    Unreachable,
)
from kube.api.kubeconfig import ConfigRefused, KubeconfigRefused, MemberCredentials, validate_member_kubeconfig
from tests.unit.http_server import CA, ca_data, client_pair, never, serving, status

AGENT = "muster-extender/0.1.0"


@asynccontextmanager
async def client(answer, *, token="t0", demand_client=False, **options):
    async with serving(answer, demand_client=demand_client) as server:
        kubeconfig = server.kubeconfig(token=token)
        limits = ClientOptions(**options)
        async with await HttpApi.from_kubeconfig(kubeconfig, user_agent=AGENT, options=limits) as api:
            yield api, server


def answers(*responses):
    """One after the other; the last for ever."""
    left = list(responses)

    async def answer(_):
        response = left.pop(0) if len(left) > 1 else left[0]
        return response() if callable(response) else response

    return answer


def ok():
    return web.json_response({"kind": "Fine"})


# What goes out ----------------------------------------------------------------------------------------------------


async def test_each_verb_and_where_it_goes():
    async with client(answers(ok)) as (api, server):
        await api.get(PODS, "a", "ns")
        await api.list(
            PODS, "ns", label_selector="a in (b, c)", field_selector="spec.nodeName=", limit=5, continue_token="x=/"
        )
        await api.list(PODS)
        await api.create(PODS, b"{}", "ns", name="a", subresource="binding")
        await api.replace(CAPACITIES, "cluster", b"{}", subresource="status")
        await api.patch(RESERVATIONS, "r-1", b"{}", "muster-system")
        await api.apply(LEASES, "l", b"{}", "ns")
        await api.delete(PODS, "a", "ns", uid="u1", resource_version="5", grace_seconds=0)
        await api.delete(PODS, "a", "ns", propagation="Foreground")
        await api.read_path("/version", accept="text/plain")
        sent = [(r.method, r.raw_path) for r in server.requests]
    query = "labelSelector=a%20in%20%28b%2C%20c%29&fieldSelector=spec.nodeName%3D&limit=5&continue=x%3D%2F"
    assert sent == [
        ("GET", "/api/v1/namespaces/ns/pods/a"),
        (
            "GET",
            f"/api/v1/namespaces/ns/pods?{query}",
        ),
        ("GET", "/api/v1/pods"),
        ("POST", "/api/v1/namespaces/ns/pods/a/binding"),
        ("PUT", "/apis/muster.dev/v1alpha1/clustercapacities/cluster/status"),
        ("PATCH", "/apis/muster.dev/v1alpha1/namespaces/muster-system/gangreservations/r-1"),
        ("PATCH", "/apis/coordination.k8s.io/v1/namespaces/ns/leases/l?fieldManager=muster&force=true"),
        ("DELETE", "/api/v1/namespaces/ns/pods/a"),
        ("DELETE", "/api/v1/namespaces/ns/pods/a"),
        ("GET", "/version"),
    ]
    headers = [r.headers for r in server.requests]
    assert {h["User-Agent"] for h in headers} == {AGENT}
    assert {h["Authorization"] for h in headers} == {"Bearer t0"}
    assert headers[5]["Content-Type"] == "application/merge-patch+json"
    assert headers[6]["Content-Type"] == "application/apply-patch+yaml"
    assert headers[3]["Content-Type"] == "application/json"
    assert headers[-1]["Accept"] == "text/plain"
    options = json.loads(server.bodies[7])
    assert options["preconditions"] == {"uid": "u1", "resourceVersion": "5"}
    assert options["gracePeriodSeconds"] == 0
    assert options["propagationPolicy"] == "Background"
    assert json.loads(server.bodies[8])["propagationPolicy"] == "Foreground"
    assert "preconditions" not in json.loads(server.bodies[8])


async def test_a_name_leads_nowhere_else():
    """Names come from other clusters."""
    async with client(answers(ok)) as (api, server):
        await api.get(PODS, "../../secrets/s", "a/b")
        assert server.last.raw_path == "/api/v1/namespaces/a%2Fb/pods/..%2F..%2Fsecrets%2Fs"


async def test_a_server_below_a_path():
    async with serving(answers(ok)) as server:
        connection = Connection(server.url + "/k8s/clusters/c-1/", ssl_context=_trusting())
        async with HttpApi(connection, user_agent=AGENT) as api:
            await api.list(PODS)
        assert server.last.raw_path == "/k8s/clusters/c-1/api/v1/pods"
        assert "Authorization" not in server.last.headers


# What comes back --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("response", "kind", "uncertain"),
    [
        (lambda: status(404, "NotFound", 'pods "a" not found'), NotFound, False),
        (lambda: status(409, "AlreadyExists"), AlreadyExists, False),
        (lambda: status(409, "Conflict"), Conflict, False),
        (lambda: status(410, "Expired"), Gone, False),
        (lambda: status(401, "Unauthorized"), Forbidden, False),
        (lambda: status(403, "Forbidden"), Forbidden, False),
        (lambda: status(400, "BadRequest"), Invalid, False),
        (lambda: status(422, "Invalid"), Invalid, False),
        (lambda: status(429, "TooManyRequests"), TooManyRequests, False),
        (lambda: status(503, "ServiceUnavailable", **{"Retry-After": "1"}), TooManyRequests, True),
        (lambda: status(503, "ServiceUnavailable"), StatusError, True),
        (lambda: status(500, "InternalError", "etcdserver: request timed out"), StatusError, True),
        (lambda: status(504, "Timeout"), StatusError, True),
        (lambda: status(415, "UnsupportedMediaType"), StatusError, False),
        (lambda: web.Response(status=502, text="<html>bad gateway</html>"), StatusError, True),
        (lambda: web.Response(status=404, text="404 page not found"), NotFound, False),
    ],
)
async def test_each_refusal_is_an_error_of_its_own(response, kind, uncertain):
    async with client(answers(response)) as (api, _):
        with pytest.raises(StatusError) as caught:
            await api.create(PODS, b"{}", "ns")
    assert type(caught.value) is kind
    assert caught.value.uncertain == uncertain


async def test_what_a_refusal_says():
    async with client(answers(status(429, "TooManyRequests", "slow\ndown\x1b[31m", **{"Retry-After": "7"}))) as (
        api,
        _,
    ):
        with pytest.raises(TooManyRequests) as caught:
            await api.create(PODS, b"{}", "ns")
    assert (caught.value.code, caught.value.reason, caught.value.retry_after) == (429, "TooManyRequests", 7.0)
    assert caught.value.message == "slow down [31m"


async def test_redirects_are_not_followed():
    async with serving(answers(ok)) as elsewhere:

        async def redirect(_):
            return web.Response(status=302, headers={"Location": elsewhere.url})

        async with client(redirect) as (api, _):
            with pytest.raises(StatusError, match="redirects are not followed"):
                await api.get(PODS, "a", "ns")
        assert elsewhere.requests == []


async def test_a_busy_server_is_asked_again_for_reads_only():
    busy = status(429, "TooManyRequests", **{"Retry-After": "0"})
    async with client(
        answers(lambda: busy.__class__(status=429), lambda: status(503, "x", **{"Retry-After": "0"}), ok)
    ) as (api, server):
        assert json.loads(await api.list(PODS)) == {"kind": "Fine"}
        assert len(server.requests) == 3
    async with client(answers(lambda: status(429, "TooManyRequests"))) as (api, server):
        with pytest.raises(TooManyRequests):
            await api.create(PODS, b"{}", "ns")
        assert len(server.requests) == 1


async def test_retries_of_reads_are_bounded():
    async with client(answers(lambda: status(429)), read_attempts=2) as (api, server):
        with pytest.raises(TooManyRequests):
            await api.list(PODS)
        assert len(server.requests) == 2
    async with client(answers(lambda: status(429, **{"Retry-After": "60"})), call_seconds=5) as (api, server):
        with pytest.raises(TooManyRequests):
            await api.list(PODS)
        assert len(server.requests) == 1, "no use to wait: the call's time would be over"


# Limits -----------------------------------------------------------------------------------------------------------


async def test_no_answer_in_time():
    async def silent(_):
        return await never()

    async with client(silent, call_seconds=30) as (api, _):
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(
            Unreachable, match=r"GET https://127.0.0.1:\d+/api/v1/namespaces/ns/pods/a: no answer within 0.2 s"
        ):
            await api.get(PODS, "a", "ns", timeout=0.2)
        assert loop.time() - began < 2


async def test_an_answer_that_never_ends_is_cut_by_time_and_by_size():
    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 10_000)
            await asyncio.sleep(0.001)

    async with client(endless, max_body_bytes=100_000) as (api, _):
        with pytest.raises(Unreachable, match="more than 100000 bytes"):
            await api.list(PODS)
    async with client(endless) as (api, _):
        with pytest.raises(Unreachable, match="no answer within"):
            await api.list(PODS, timeout=0.3)


async def test_an_announced_size_over_the_limit_is_not_read():
    async with client(answers(lambda: web.Response(body=b"x" * 2000)), max_body_bytes=1000) as (api, _):
        with pytest.raises(Unreachable, match="more than 1000 bytes"):
            await api.list(PODS)


async def test_nobody_listens():
    async with HttpApi(Connection("https://127.0.0.1:1", ssl_context=_trusting()), user_agent=AGENT) as api:
        with pytest.raises(Unreachable, match="Cannot connect"):
            await api.get(PODS, "a", "ns")


async def test_a_server_that_is_not_ours():
    async with serving(answers(ok)) as server:
        other = ssl.create_default_context()
        trustme.CA().configure_trust(other)
        async with HttpApi(Connection(server.url, ssl_context=other), user_agent=AGENT) as api:
            with pytest.raises(Unreachable, match=r"(?i)certificate verify failed"):
                await api.get(PODS, "a", "ns")
        wrong_name = Connection(server.url, ssl_context=_trusting(), tls_server_name="evil.example.com")
        async with HttpApi(wrong_name, user_agent=AGENT) as api:
            with pytest.raises(Unreachable, match=r"(?i)certificate"):
                await api.get(PODS, "a", "ns")
        right_name = Connection(server.url, ssl_context=_trusting(), tls_server_name="api.example.com")
        async with HttpApi(right_name, user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")


async def test_an_answer_that_breaks_off():
    async def breaks(request):
        response = web.StreamResponse(headers={"Content-Length": "1000"})
        await response.prepare(request)
        await response.write(b"half")
        request.transport.close()
        return response

    async with client(breaks) as (api, _):
        with pytest.raises(Unreachable):
            await api.list(PODS)


async def test_a_burst_of_bindings_goes_over_few_connections():
    under_way, most = 0, 0

    async def binding(_):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.002)
        under_way -= 1
        return ok()

    async with client(binding, connections=8) as (api, server):
        await asyncio.gather(*(api.create(PODS, b"{}", "ns", name=f"p{i}", subresource="binding") for i in range(500)))
        assert len(server.requests) == 500
        assert len(server.connections) <= 8
        assert most <= 8


async def test_waiting_for_a_turn_counts_as_time():
    async def silent(_):
        return await never()

    async with client(silent, connections=1) as (api, _):
        first = asyncio.ensure_future(api.get(PODS, "a", "ns", timeout=5))
        await asyncio.sleep(0.05)
        with pytest.raises(Unreachable):
            await api.get(PODS, "b", "ns", timeout=0.1)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


# Watches ----------------------------------------------------------------------------------------------------------


def streaming(*chunks, then=None):
    async def answer(request):
        response = web.StreamResponse()
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
            await asyncio.sleep(0.005)
        if then is not None:
            await then(request)
        return response

    return answer


async def lines_of(api, **query):
    async with api.watch(PODS, "ns", resource_version="7", **query) as lines:
        return [line async for line in lines]


async def test_lines_whatever_the_chunks():
    async with client(streaming(b'{"a"', b':1}\n{"b":2}\n', b"\n", b'{"c":3}', b"\n")) as (api, server):
        assert await lines_of(api, label_selector="x=y") == [b'{"a":1}', b'{"b":2}', b'{"c":3}']
        query = server.last.query
    assert query["watch"] == "1"
    assert query["resourceVersion"] == "7"
    assert query["allowWatchBookmarks"] == "true"
    assert query["labelSelector"] == "x=y"
    assert 48 <= int(query["timeoutSeconds"]) <= 72


async def test_a_watch_that_breaks_off():
    async def cut(request):
        request.transport.abort()

    broken = streaming(b'{"a":1}\n', b'{"b"', then=cut)
    async with client(broken) as (api, _), api.watch(PODS, resource_version="7") as lines:
        assert await anext(aiter(lines)) == b'{"a":1}'
        with pytest.raises(Unreachable):
            await anext(aiter(lines))


async def test_a_silent_watch_is_found():
    async def hang(_):
        await never()

    async with client(streaming(b'{"a":1}\n', then=hang), watch_seconds=0.1, watch_grace_seconds=0.2) as (api, _):
        with pytest.raises(Unreachable, match=r"no answer within 1\.2 s"):
            await lines_of(api)


async def test_a_watch_that_is_never_answered():
    async def silent(_):
        return await never()

    async with client(silent, call_seconds=0.2) as (api, _):
        with pytest.raises(Unreachable, match="WATCH"):
            await lines_of(api)


async def test_a_line_too_long():
    async with client(streaming(b"x" * 3000, b"y" * 3000), max_line_bytes=5000) as (api, _):
        with pytest.raises(Unreachable, match="a line of more than"):
            await lines_of(api)


async def test_a_refused_watch():
    async with client(answers(lambda: status(410, "Expired", "too old"))) as (api, _):
        with pytest.raises(Gone):
            await lines_of(api)


async def test_a_watch_takes_no_turn_of_the_calls():
    async def both(request):
        if "watch" in request.query:
            return await streaming(b'{"a":1}\n', then=lambda _: never())(request)
        return ok()

    async with client(both, connections=1) as (api, _), api.watch(PODS, resource_version="1") as lines:
        assert await anext(aiter(lines)) == b'{"a":1}'
        await api.get(PODS, "a", "ns", timeout=2)


async def test_what_the_reader_raises_is_its_own():
    async def read_and_fail(api):
        async with api.watch(PODS, resource_version="1") as lines:
            async for _line in lines:
                raise OSError("disk full")

    async with client(streaming(b'{"a":1}\n', then=lambda _: never())) as (api, _):
        with pytest.raises(OSError, match="disk full"):
            await read_and_fail(api)


# Who we are -------------------------------------------------------------------------------------------------------


async def test_a_refused_token_is_read_again_once():
    tokens = iter(["Bearer new", "Bearer newer"])

    async def reload():
        return next(tokens), None

    async def only_new(request):
        return ok() if request.headers["Authorization"] == "Bearer new" else status(401, "Unauthorized")

    async with serving(only_new) as server:
        connection = Connection(
            server.url, ssl_context=_trusting(), authorization=Authorization("Bearer old", reload=reload)
        )
        async with HttpApi(connection, user_agent=AGENT) as api:
            await api.create(PODS, b'{"n":1}', "ns")
            assert [r.headers["Authorization"] for r in server.requests] == ["Bearer old", "Bearer new"]
            assert server.bodies == [b'{"n":1}', b'{"n":1}']
            await api.create(PODS, b"{}", "ns")
            assert len(server.requests) == 3


async def test_a_token_that_stays_refused():
    asked = 0

    async def reload():
        nonlocal asked
        asked += 1
        return f"Bearer {asked}", None

    async with serving(answers(lambda: status(401, "Unauthorized", "no"))) as server:
        connection = Connection(
            server.url, ssl_context=_trusting(), authorization=Authorization("Bearer 0", reload=reload)
        )
        async with HttpApi(connection, user_agent=AGENT) as api:
            with pytest.raises(Forbidden):
                await api.get(PODS, "a", "ns")
            assert len(server.requests) == 2
            assert asked == 1


async def test_twenty_calls_refused_at_once_read_the_token_once():
    asked = 0

    async def reload():
        nonlocal asked
        asked += 1
        await asyncio.sleep(0.01)
        return "Bearer new", None

    async def only_new(request):
        return ok() if request.headers["Authorization"] == "Bearer new" else status(401, "Unauthorized")

    async with serving(only_new) as server:
        connection = Connection(
            server.url, ssl_context=_trusting(), authorization=Authorization("Bearer old", reload=reload)
        )
        async with HttpApi(connection, user_agent=AGENT) as api:
            await asyncio.gather(*(api.get(PODS, f"p{i}", "ns") for i in range(20)))
    assert asked == 1


async def test_credentials_that_cannot_be_renewed_leave_the_refusal_as_the_error(caplog):
    async def reload():
        raise KubeconfigRefused("the Secret is gone")

    async with serving(answers(lambda: status(401, "Unauthorized", "expired"))) as server:
        connection = Connection(
            server.url, ssl_context=_trusting(), authorization=Authorization("Bearer s3cret", reload=reload)
        )
        async with HttpApi(connection, user_agent=AGENT) as api:
            with pytest.raises(Forbidden, match="expired"):
                await api.get(PODS, "a", "ns")
    assert "the Secret is gone" in caplog.text
    assert "s3cret" not in caplog.text


async def test_a_token_due_is_renewed_before_it_is_refused():
    async def reload():
        return "Bearer new", 100.0

    authorization = Authorization("Bearer old", valid_seconds=0.05, reload=reload)
    assert await authorization.current() == "Bearer old"
    await asyncio.sleep(0.06)
    assert await authorization.current() == "Bearer new"


async def test_a_client_certificate_from_a_kubeconfig_file(tmp_path):
    cert, key = client_pair()
    (tmp_path / "client.crt").write_bytes(cert)
    (tmp_path / "client.key").write_bytes(key)
    async with serving(answers(ok), demand_client=True) as server:
        document = server.kubeconfig(**{"client-certificate": "client.crt", "client-key": "client.key"})
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        async with await HttpApi.from_kubeconfig(tmp_path / "config", user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")
        peer = server.last.transport.get_extra_info("peercert") if server.last.transport else None
        assert peer is None or "muster-extender" in str(peer)


async def test_a_members_client_certificate():
    cert, key = client_pair()
    async with serving(answers(ok), demand_client=True) as server:
        credentials = MemberCredentials(
            server=server.url,
            ca_pem=CA.cert_pem.bytes().decode(),
            client_cert_pem=cert.decode(),
            client_key_pem=key.decode(),
            allow_loopback=True,
        )
        async with await HttpApi.for_member(credentials, user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")
            assert repr(api) == f"HttpApi('{server.url}')"


async def test_a_member_by_kubeconfig_secret_end_to_end():
    async with serving(answers(ok)) as server:
        secret = yaml.safe_dump(server.kubeconfig(token="s3cret")).encode()
        credentials = validate_member_kubeconfig(secret, allow_loopback=True)
        async with await HttpApi.for_member(credentials, user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")
        assert server.last.headers["Authorization"] == "Bearer s3cret"


async def test_a_member_whose_name_now_leads_to_loopback():
    async with serving(answers(ok)) as server:
        credentials = MemberCredentials(
            server=server.url.replace("127.0.0.1", "localhost"), ca_pem=CA.cert_pem.bytes().decode(), token="t"
        )
        async with await HttpApi.for_member(credentials, user_agent=AGENT) as api:
            with pytest.raises(Unreachable, match="loopback"):
                await api.get(PODS, "a", "ns")
        assert server.requests == []


async def test_a_members_token_is_read_again_from_its_secret():
    async def only_new(request):
        return ok() if request.headers["Authorization"] == "Bearer new" else status(401, "Unauthorized")

    async with serving(only_new) as server:

        def credentials(token):
            return MemberCredentials(
                server=server.url, ca_pem=CA.cert_pem.bytes().decode(), token=token, allow_loopback=True
            )

        async def reload():
            return credentials("new")

        async with await HttpApi.for_member(credentials("old"), user_agent=AGENT, reload=reload) as api:
            await api.get(PODS, "a", "ns")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ca_pem": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"}, "certificate-authority-data"),
        ({"client_cert_pem": "-----BEGIN X-----", "client_key_pem": "-----BEGIN SECRET-----"}, "no usable pair"),
    ],
)
def test_pem_that_is_none(fields, words):
    with pytest.raises(KubeconfigRefused, match=words) as caught:
        member_connection(MemberCredentials(server="https://m.example.com", **fields))
    assert "SECRET" not in str(caught.value)


def test_a_pair_that_does_not_belong_together():
    cert, _ = client_pair()
    _, key = client_pair()
    with pytest.raises(KubeconfigRefused, match="no usable pair"):
        member_connection(
            MemberCredentials(
                server="https://m.example.com", client_cert_pem=cert.decode(), client_key_pem=key.decode()
            )
        )


async def test_inline_keys_do_not_stay_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    cert, key = client_pair()
    async with serving(answers(ok), demand_client=True) as server:
        document = server.kubeconfig(
            **{
                "client-certificate-data": base64.b64encode(cert).decode(),
                "client-key-data": base64.b64encode(key).decode(),
            }
        )
        for _ in range(2):
            async with await HttpApi.from_kubeconfig(document, user_agent=AGENT) as api:
                await api.get(PODS, "a", "ns")
    assert list(tmp_path.iterdir()) == []


async def test_a_token_file_is_followed(tmp_path):
    (tmp_path / "token").write_text("one")

    async def only(request):
        return ok() if request.headers["Authorization"] == f"Bearer {expected}" else status(401, "Unauthorized")

    expected = "one"
    async with serving(only) as server:
        (tmp_path / "config").write_text(yaml.safe_dump(server.kubeconfig(tokenFile="token")))
        async with await HttpApi.from_kubeconfig(str(tmp_path / "config"), user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")
            expected = "two"
            (tmp_path / "token").write_text("two")
            await api.get(PODS, "a", "ns")


async def test_our_own_exec_plugin_is_run_again_when_its_token_is_refused(tmp_path):
    counter, script = tmp_path / "count", tmp_path / "plugin.py"
    script.write_text(
        f"import json, pathlib\n"
        f"p = pathlib.Path({str(counter)!r})\n"
        f"n = int(p.read_text()) + 1 if p.exists() else 1\n"
        f"p.write_text(str(n))\n"
        f"print(json.dumps({{'apiVersion': 'client.authentication.k8s.io/v1', 'kind': 'ExecCredential',"
        f" 'status': {{'token': f't{{n}}', 'expirationTimestamp': '2099-01-01T00:00:00Z'}}}}))\n"
    )

    async def only_second(request):
        return ok() if request.headers["Authorization"] == "Bearer t2" else status(401, "Unauthorized")

    async with serving(only_second) as server:
        plugin = {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": [str(script)],
        }
        async with await HttpApi.from_kubeconfig(server.kubeconfig(exec=plugin), user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")
            await api.get(PODS, "a", "ns")
        assert counter.read_text() == "2"


# Configurations that cannot be used -------------------------------------------------------------------------------


async def test_no_kubeconfig(tmp_path, monkeypatch):
    with pytest.raises(ConfigRefused, match=r"no kubeconfig at .*/none: set KUBECONFIG"):
        await HttpApi.from_kubeconfig(tmp_path / "none", user_agent=AGENT)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "unset"))
    with pytest.raises(ConfigRefused, match="unset"):
        await HttpApi.from_kubeconfig(None, user_agent=AGENT)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"current-context": "gone"}, "gone is missing"),
        ({"clusters": [{"name": "other", "cluster": {}}]}, "c is missing"),
        ({"users": [{"name": "u", "user": {"client-certificate": "/no/such"}}]}, "kubeconfig"),
        ({"users": [{"user": {"token": "s3cret"}}]}, "kubeconfig"),
        ({"users": "s3cret"}, "kubeconfig"),
        (
            {"clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": "s3cret"}}]},
            "kubeconfig",
        ),
        (
            {"users": [{"name": "u", "user": {"exec": {"apiVersion": "v1", "command": "/no/such/plugin"}}}]},
            "kubeconfig",
        ),
    ],
)
async def test_a_malformed_kubeconfig_does_not_show_its_secrets(change, words, caplog):
    document = {
        "current-context": "x",
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://x", "certificate-authority-data": ca_data()}}],
        "users": [{"name": "u", "user": {"token": "s3cret"}}],
    } | change
    with pytest.raises(ConfigRefused) as caught:
        await HttpApi.from_kubeconfig(document, user_agent=AGENT)
    assert words in str(caught.value)
    assert "s3cret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert "s3cret" not in caplog.text


async def test_text_that_is_no_yaml(tmp_path):
    (tmp_path / "config").write_text("{s3cret: [")
    with pytest.raises(ConfigRefused, match="not YAML") as caught:
        await HttpApi.from_kubeconfig(tmp_path / "config", user_agent=AGENT)
    assert "s3cret" not in str(caught.value)


# In a pod ---------------------------------------------------------------------------------------------------------


async def test_the_service_account_of_a_pod(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("one\n")
    (tmp_path / "ca.crt").write_bytes(CA.cert_pem.bytes())
    expected = "one"

    async def only(request):
        return ok() if request.headers["Authorization"] == f"Bearer {expected}" else status(401, "Unauthorized")

    async with serving(only) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", server.url.rpartition(":")[2])
        async with HttpApi(in_cluster_connection(tmp_path), user_agent=AGENT) as api:
            await api.get(PODS, "a", "ns")
            expected = "two"  # the kubelet rotated it
            (tmp_path / "token").write_text("two")
            await api.get(PODS, "a", "ns")
            await api.get(PODS, "a", "ns")
        assert len(server.requests) == 4


def test_not_in_a_pod(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigRefused, match="not in a pod"):
        in_cluster_connection(tmp_path)


async def test_no_connection_is_left_behind():
    async with client(answers(ok)) as (api, server):
        await api.get(PODS, "a", "ns")
        await api.close()
        await asyncio.sleep(0.05)
        gc.collect()
        assert all(transport.is_closing() for transport in server.connections)
        with pytest.raises(Unreachable, match="closed"):
            await api.get(PODS, "a", "ns")
        with pytest.raises(Unreachable, match="closed"):
            await lines_of(api)
        await api.close()


def _trusting():
    context = ssl.create_default_context()
    CA.configure_trust(context)
    return context
