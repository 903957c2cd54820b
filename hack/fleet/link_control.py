"""Asks the link proxy to cut, hang or heal links."""

import json
import socket
from pathlib import Path
from typing import Any

import msgspec

from hack.fleet.layout import Link, link_port, links
from hack.fleet.proxy import LinkConfig, ProxyConfig
from hack.fleet.state import FleetError, State


def write_config(folder: Path, state: State) -> None:
    """Writes proxy.json: the proxy's ports and those behind them."""
    config = ProxyConfig(
        control=state.port("proxy control"),
        token=state.token,
        links=tuple(
            LinkConfig(link.name, link_port(state, link.client, link.target), _server_port(state, link))
            for link in links(state.spec)
        ),
    )
    path = folder / "proxy.json"
    path.touch(mode=0o600)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(config)))


def select(state: State, client: str, target: str = "") -> list[Link]:
    """The links of a component, all of them or the one to `target` (`hub`, `member1`, `extender`).

    Raises FleetError, naming the links there are, when nothing matches.
    """
    known = links(state.spec)
    found = [
        link
        for link in known
        if link.client == client and (not target or target in (link.target, link.target.rpartition("/")[2]))
    ]
    if not found:
        listed = "\n  ".join(f"{link.client} --to {link.target}" for link in known)
        raise FleetError(f"{client} has no link{f' to {target}' if target else ''}; there are:\n  {listed}")
    return found


def set_mode(state: State, link: Link, mode: str) -> None:
    ask(state, {"link": link.name, "mode": mode})


def modes(state: State) -> dict[str, str]:
    """Every link's mode by its name."""
    answer: dict[str, str] = ask(state, {})["links"]
    return answer


def ask(state: State, request: dict[str, Any]) -> dict[str, Any]:
    """One request to the proxy. Raises FleetError when it is not there or refuses."""
    if state.spec.direct:
        raise FleetError("this fleet was made with --direct: it has no link proxy, so nothing can be cut")
    try:
        with socket.create_connection(("127.0.0.1", state.port("proxy control")), timeout=5) as connection:
            connection.sendall(json.dumps(request | {"token": state.token}).encode() + b"\n")
            answer: dict[str, Any] = json.loads(connection.makefile().readline())
    except (OSError, ValueError) as error:
        raise FleetError(f"the link proxy does not answer: {error}") from error
    if "error" in answer:
        raise FleetError(f"the link proxy refused: {answer['error']}")
    return answer


def _server_port(state: State, link: Link) -> int:
    return state.port(link.target if "/" in link.target else f"{link.target}/kube-apiserver")
