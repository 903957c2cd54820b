"""Which addresses a member's API server may have, before and after DNS."""

import errno
import ipaddress
import socket

from aiohttp.abc import AbstractResolver, ResolveResult
from aiohttp.resolver import ThreadedResolver

METADATA_ADDRESSES = frozenset(
    ipaddress.ip_address(text)
    for text in (
        "169.254.169.254",  # AWS, GCP, Azure, OpenStack
        "fd00:ec2::254",  # AWS over IPv6
        "100.100.100.200",  # Alibaba Cloud
        "168.63.129.16",  # Azure WireServer
        "192.0.0.192",  # Oracle Cloud
    )
)


def address_refusal(address: str, *, allow_loopback: bool) -> str:
    """Why this IP address is not dialled; "" if it is. Raises ValueError if it is not an IP address."""
    ip: ipaddress.IPv4Address | ipaddress.IPv6Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(ip, ipaddress.IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    if ip in METADATA_ADDRESSES:
        return "a cloud's metadata service"
    if ip.is_link_local:
        return "a link-local address"
    if ip.is_multicast:
        return "a multicast address"
    if ip.is_unspecified:
        return "the unspecified address"
    if ip.is_loopback and not allow_loopback:
        return "a loopback address"
    return ""


class AddressRefused(OSError):
    """A name resolves to an address that is never dialled."""


class GuardedResolver(AbstractResolver):
    """The system's resolver, whose answers are judged before any of them is dialled (a name may be repointed after
    its kubeconfig was validated)."""

    def __init__(self, *, allow_loopback: bool) -> None:
        self._allow_loopback = allow_loopback
        self._system = ThreadedResolver()

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await self._system.resolve(host, port, family)
        for result in found:
            refusal = address_refusal(result["host"], allow_loopback=self._allow_loopback)
            if refusal:
                raise AddressRefused(errno.EACCES, f"{host} resolves to {result['host']}, {refusal}")
        return found

    async def close(self) -> None:
        await self._system.close()
