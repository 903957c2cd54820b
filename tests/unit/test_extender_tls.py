"""Mutual TLS: who is served, who is not, and certificates that change while calls are held."""

import asyncio
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from extender.arrival import ArrivalClock
from extender.core import FilterAnswer
from extender.metrics import Metrics
from extender.server import ExtenderServer, ServerLimits
from extender.tls import ServerTls, TlsError, TlsFiles, common_name
from tests.unit.extender_doubles import ManualClock, settle

SCHEDULER = "system:kube-scheduler"
FILTER = b'{"Pod":{"metadata":{"name":"p"},"spec":{}},"NodeNames":["n1"]}'


class EchoDecider:
    def filter(self, pod, node_names):
        return FilterAnswer(node_names=list(node_names))

    def preempt(self, pod, victims):
        return {}

    async def bind(self, args, arrived):
        return ""


class Pki:
    """A CA for the extender and its clients, and files as a mounted Secret has them."""

    def __init__(self, folder):
        self.folder = folder
        self.ca = trustme.CA()
        self.files = TlsFiles(cert=folder / "tls.crt", key=folder / "tls.key", client_ca=folder / "ca.crt")
        self.ca.cert_pem.write_to_path(self.files.client_ca)
        self.issue_server()

    def issue_server(self):
        """A new serving pair; returns its serial number."""
        leaf = self.ca.issue_cert("muster-extender", "127.0.0.1", common_name="muster-extender")
        leaf.private_key_pem.write_to_path(self.files.key)
        leaf.cert_chain_pems[0].write_to_path(self.files.cert)
        return leaf

    def client(self, name=None, ca=None):
        context = ssl.create_default_context(cafile=str(self.files.client_ca))
        if name is not None:
            leaf = (ca or self.ca).issue_cert("client.example", common_name=name)
            leaf.configure_cert(context)
        return context


@pytest.fixture
def pki(tmp_path):
    return Pki(tmp_path)


@asynccontextmanager
async def serving(tls):
    clock = ManualClock()
    server = ExtenderServer(
        EchoDecider(),
        clock,
        ArrivalClock(clock),
        Metrics(version="test"),
        ServerLimits(filter_deadline=1.0, body_timeout=5.0, max_body=1 << 20, backlog=64, shutdown_timeout=1.0),
        client_names=frozenset([SCHEDULER]),
    )
    port = await server.start("127.0.0.1", 0, tls.context)
    try:
        yield f"https://127.0.0.1:{port}/filter"
    finally:
        await server.stop()


async def ask(url, context):
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
        session.post(url, data=FILTER, server_hostname="muster-extender") as reply,
    ):
        return reply.status, await reply.text()


async def serial(url, context):
    """Serial number of the certificate that is served to a new connection."""
    port = int(url.split(":")[2].split("/")[0])
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname="muster-extender")
    found = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    return found


async def test_the_scheduler_is_served(pki):
    async with serving(ServerTls(pki.files)) as url:
        assert (await ask(url, pki.client(SCHEDULER)))[0] == 200


async def test_no_client_certificate_is_refused(pki):
    async with serving(ServerTls(pki.files)) as url:
        with pytest.raises(aiohttp.ClientError):
            await ask(url, pki.client())


async def test_a_certificate_of_another_authority_is_refused(pki):
    async with serving(ServerTls(pki.files)) as url:
        with pytest.raises(aiohttp.ClientError):
            await ask(url, pki.client(SCHEDULER, ca=trustme.CA()))


async def test_another_name_of_the_same_authority_is_refused_and_told_why(pki):
    async with serving(ServerTls(pki.files)) as url:
        status, text = await ask(url, pki.client("system:kube-proxy"))
    assert status == 403
    assert "system:kube-proxy" in text


async def test_plain_http_is_refused(pki):
    async with serving(ServerTls(pki.files)) as url, aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ClientError):
            await session.post(url.replace("https", "http"), data=FILTER)


async def test_a_new_certificate_is_taken_over_without_a_restart(pki):
    tls = ServerTls(pki.files)
    clock = ManualClock()
    following = asyncio.ensure_future(tls.follow(clock, every=10.0))
    async with serving(tls) as url:
        first = await serial(url, pki.client(SCHEDULER))
        pki.issue_server()
        await clock.advance(10.0)
        assert await serial(url, pki.client(SCHEDULER)) != first
    following.cancel()
    await settle()


async def test_a_broken_file_leaves_the_old_certificate_serving(pki):
    tls = ServerTls(pki.files)
    async with serving(tls) as url:
        first = await serial(url, pki.client(SCHEDULER))
        pki.files.cert.write_text("not a certificate")
        assert not tls.reload_if_changed()
        assert await serial(url, pki.client(SCHEDULER)) == first
        assert (await ask(url, pki.client(SCHEDULER)))[0] == 200


async def test_a_certificate_whose_key_has_not_come_yet_waits_for_it(pki):
    """Two files are written one after the other: the pair is taken over once it fits."""
    tls = ServerTls(pki.files)
    async with serving(tls) as url:
        first = await serial(url, pki.client(SCHEDULER))
        leaf = pki.ca.issue_cert("muster-extender", common_name="muster-extender")
        leaf.cert_chain_pems[0].write_to_path(pki.files.cert)
        assert not tls.reload_if_changed()
        assert await serial(url, pki.client(SCHEDULER)) == first
        leaf.private_key_pem.write_to_path(pki.files.key)
        assert tls.reload_if_changed()
        assert await serial(url, pki.client(SCHEDULER)) != first


async def test_an_authority_that_is_added_is_trusted_from_then_on(pki):
    tls = ServerTls(pki.files)
    other = trustme.CA()
    pki.client(SCHEDULER)
    async with serving(tls) as url:
        context = pki.client(SCHEDULER, ca=other)
        with pytest.raises(aiohttp.ClientError):
            await ask(url, context)
        with pki.files.client_ca.open("ab") as bundle:
            bundle.write(other.cert_pem.bytes())
        assert tls.reload_if_changed()
        assert (await ask(url, context))[0] == 200


@pytest.mark.parametrize("name", ["cert", "key", "client_ca"])
def test_a_missing_file_is_named_at_start(pki, name):
    path = getattr(pki.files, name)
    path.unlink()
    with pytest.raises(TlsError, match=path.name):
        ServerTls(pki.files)


def test_a_key_with_a_passphrase_is_refused_instead_of_asking_for_it(pki):
    key = serialization.load_pem_private_key(pki.files.key.read_bytes(), None)
    pki.files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsError, match=r"tls\.key"):
        ServerTls(pki.files)


def test_the_common_name_is_read_from_any_place_of_the_subject():
    peer = {"subject": ((("organizationName", "system:masters"),), (("commonName", SCHEDULER),))}
    assert common_name(peer) == SCHEDULER
    assert common_name({}) == ""
    assert common_name(None) == ""
