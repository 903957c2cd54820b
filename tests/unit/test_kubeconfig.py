"""A member's kubeconfig is text from a Secret: what of it is taken, and what is refused with which words."""

import base64
import textwrap

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from kube.api.addresses import AddressRefused, GuardedResolver, address_refusal
from kube.api.kubeconfig import KubeconfigRefused, MemberCredentials, validate_member_kubeconfig

CERT = base64.b64encode(b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n").decode()
KEY = base64.b64encode(b"-----BEGIN PRIVATE KEY-----\nSECRETKEY\n-----END PRIVATE KEY-----\n").decode()
ENCRYPTED_KEY = base64.b64encode(
    b"-----BEGIN ENCRYPTED PRIVATE KEY-----\nSECRETKEY\n-----END ENCRYPTED PRIVATE KEY-----\n"
).decode()


def kubeconfig(cluster=None, user=None, **top):
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "m1",
        "contexts": [{"name": "m1", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://m1.example.com:6443"} | (cluster or {})},
        ],
        "users": [{"name": "u", "user": {"token": "SECRETTOKEN"} | (user or {})}],
    } | top
    return yaml.safe_dump(document).encode()


def refusal(data, allow_loopback=False):
    with pytest.raises(KubeconfigRefused) as caught:
        validate_member_kubeconfig(data, allow_loopback)
    message = str(caught.value)
    assert "SECRET" not in message
    assert caught.value.__cause__ is None, "a cause could quote the text"
    return message


def test_server_ca_and_token_are_taken():
    data = kubeconfig(cluster={"certificate-authority-data": CERT, "tls-server-name": "kubernetes"})
    got = validate_member_kubeconfig(data, allow_loopback=False)
    assert got == MemberCredentials(
        server="https://m1.example.com:6443",
        ca_pem="-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n",
        token="SECRETTOKEN",
        tls_server_name="kubernetes",
    )


def test_a_client_certificate_is_taken_and_a_path_in_the_server_kept():
    data = kubeconfig(
        cluster={"server": "https://rancher.example.com/k8s/clusters/c-1/"},
        user={"token": "", "client-certificate-data": CERT, "client-key-data": KEY},
    )
    got = validate_member_kubeconfig(data, allow_loopback=False)
    assert got.server == "https://rancher.example.com/k8s/clusters/c-1"
    assert "BEGIN CERTIFICATE" in got.client_cert_pem
    assert "BEGIN PRIVATE KEY" in got.client_key_pem
    assert got.token == ""


def test_secrets_are_not_in_the_repr():
    data = kubeconfig(user={"client-certificate-data": CERT, "client-key-data": KEY})
    got = validate_member_kubeconfig(data, allow_loopback=False)
    assert repr(got) == str(got) == "MemberCredentials(server='https://m1.example.com:6443')"
    assert f"{got}" == repr(got)


def test_only_the_current_context_counts():
    """What another context holds is neither used nor a reason to refuse."""
    other = {"name": "other", "user": {"exec": {"command": "rm"}}}
    document = yaml.safe_load(kubeconfig())
    document["users"].append(other)
    assert validate_member_kubeconfig(yaml.safe_dump(document).encode(), False).token == "SECRETTOKEN"


@pytest.mark.parametrize(
    ("user", "words"),
    [
        ({"exec": {"command": "aws", "args": ["eks"], "apiVersion": "v1"}}, ["user 'u': exec", "run a program"]),
        ({"auth-provider": {"name": "oidc"}}, ["auth-provider", "plugin"]),
        ({"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}, ["tokenFile", "file of the hub"]),
        ({"client-certificate": "/etc/cert", "client-key-data": KEY}, ["client-certificate ", "file of the hub"]),
        ({"client-key": "/etc/key", "client-certificate-data": CERT}, ["client-key ", "file of the hub"]),
        ({"username": "admin", "password": "SECRET"}, ["username", "basic authentication"]),
        ({"password": "SECRET"}, ["password", "basic authentication"]),
        ({"as": "system:admin"}, ["impersonation"]),
        ({"as-groups": ["system:masters"]}, ["impersonation"]),
        ({"token": ""}, ["no credentials", "put a token"]),
        ({"token": 5}, ["token is not a string"]),
        ({"token": "SECRET\r\nX-Evil: 1"}, ["token has characters"]),
        ({"token": "", "client-certificate-data": CERT}, ["belong together"]),
        ({"client-key-data": KEY}, ["belong together"]),
        ({"client-certificate-data": CERT, "client-key-data": ENCRYPTED_KEY}, ["encrypted", "passphrase"]),
        ({"client-certificate-data": "SECRET not base64!", "client-key-data": KEY}, ["not base64 of PEM"]),
        ({"client-certificate-data": CERT, "client-key-data": base64.b64encode(b"SECRET").decode()}, ["PEM"]),
    ],
)
def test_users_that_are_refused(user, words):
    message = refusal(kubeconfig(user=user))
    for word in words:
        assert word in message


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ({"certificate-authority": "/etc/passwd"}, ["certificate-authority ", "certificate-authority-data"]),
        ({"insecure-skip-tls-verify": True}, ["insecure-skip-tls-verify", "any server"]),
        ({"proxy-url": "http://evil.example.com"}, ["proxy-url"]),
        ({"certificate-authority-data": "AAAA"}, ["PEM"]),
        ({"server": ""}, ["server is empty"]),
        ({"server": None}, ["server is empty"]),
        ({"server": ["https://a"]}, ["server is not a string"]),
        ({"server": "http://m1.example.com"}, ["not https"]),
        ({"server": "m1.example.com:6443"}, ["not https"]),
        ({"server": "file:///etc/passwd"}, ["not https"]),
        ({"server": "https://"}, ["not an address"]),
        ({"server": "https://m1.example.com:99999"}, ["not a URL"]),
        ({"server": "https://m1.example.com/?a=b"}, ["not an address"]),
        ({"server": "https://m1.example.com/ x"}, ["not an address"]),
        ({"server": "https://user:SECRET@m1.example.com"}, ["user name"]),
        ({"server": "https://169.254.169.254/latest"}, ["metadata"]),
        ({"server": "https://169.254.7.7"}, ["link-local"]),
        ({"server": "https://[fe80::1]:6443"}, ["link-local"]),
        ({"server": "https://[fd00:ec2::254]"}, ["metadata"]),
        ({"server": "https://100.100.100.200"}, ["metadata"]),
        ({"server": "https://[::ffff:169.254.169.254]"}, ["metadata"]),
        ({"server": "https://127.0.0.1:6443"}, ["loopback"]),
        ({"server": "https://[::1]:6443"}, ["loopback"]),
        ({"server": "https://[::ffff:127.0.0.1]:6443"}, ["loopback"]),
        ({"server": "https://localhost:6443"}, ["loopback"]),
        ({"server": "https://api.localhost.:6443"}, ["loopback"]),
        ({"server": "https://127.1:6443"}, ["unusual notation"]),
        ({"server": "https://2130706433"}, ["unusual notation"]),
        ({"server": "https://0x7f000001"}, ["unusual notation"]),
        ({"server": "https://0.0.0.0:6443"}, ["unspecified"]),
    ],
)
def test_clusters_that_are_refused(cluster, words):
    message = refusal(kubeconfig(cluster=cluster))
    for word in words:
        assert word in message


@pytest.mark.parametrize("server", ["https://127.0.0.1:6443", "https://[::1]:6443", "https://localhost:6443"])
def test_loopback_is_for_fleets_on_one_machine(server):
    assert validate_member_kubeconfig(kubeconfig(cluster={"server": server}), allow_loopback=True).server == server


@pytest.mark.parametrize("server", ["https://169.254.169.254", "https://[fe80::1]", "https://0.0.0.0"])
def test_metadata_and_link_local_are_refused_even_then(server):
    refusal(kubeconfig(cluster={"server": server}), allow_loopback=True)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a kubeconfig"),
        (b"- a", "not a kubeconfig"),
        (b"{SECRET: [", "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        (b"[" * 100_000, "not YAML"),
        (b"a: !!python/object/apply:os.system ['echo SECRET']", "not YAML"),
        (b"# " + b"x" * 300_000, "larger than 256 KiB"),
        (b"clusters: []", "current-context is empty"),
        (kubeconfig(**{"current-context": "gone"}), "context 'gone' is missing"),
        (kubeconfig(contexts={}), "context 'm1' is missing"),
        (kubeconfig(contexts="SECRET"), "contexts is not a list"),
        (kubeconfig(clusters=[]), "cluster 'c' is missing"),
        (kubeconfig(users=None), "user 'u' is missing"),
        (kubeconfig(users=[{"name": "u", "user": "SECRET"}]), "user 'u' is not a mapping"),
        (kubeconfig(users=[{"name": "u", "user": {}}, {"name": "u", "user": {}}]), "there 2 times"),
    ],
)
def test_documents_that_are_refused(data, words):
    assert words in refusal(data)


def test_insecure_false_says_nothing():
    data = kubeconfig(cluster={"insecure-skip-tls-verify": False, "certificate-authority": ""})
    validate_member_kubeconfig(data, allow_loopback=False)


def test_a_kubectl_written_file_with_comments_is_read():
    data = textwrap.dedent("""\
        # made by kubectl config view --raw
        apiVersion: v1
        kind: Config
        preferences: {}
        current-context: "m1"
        contexts: [{name: m1, context: {cluster: c, user: u, namespace: default}}]
        clusters: [{name: c, cluster: {server: "https://10.0.0.1:6443"}}]
        users: [{name: u, user: {token: abc}}]
    """).encode()
    assert validate_member_kubeconfig(data, allow_loopback=False).server == "https://10.0.0.1:6443"


@given(st.binary(max_size=400) | st.text(max_size=200).map(str.encode))
def test_any_bytes_are_judged_not_crashed_on(data):
    with pytest.raises(KubeconfigRefused):
        validate_member_kubeconfig(data, allow_loopback=False)


def test_an_address_has_a_zone():
    assert address_refusal("fe80::1%eth0", allow_loopback=True) == "a link-local address"


async def test_a_name_that_resolves_to_loopback_is_refused_at_the_dial():
    """DNS rebinding: the name was fine when the kubeconfig was judged."""
    resolver = GuardedResolver(allow_loopback=False)
    with pytest.raises(AddressRefused, match="loopback"):
        await resolver.resolve("localhost", 443)
    assert (await GuardedResolver(allow_loopback=True).resolve("localhost", 443))[0]["host"] in {"127.0.0.1", "::1"}
