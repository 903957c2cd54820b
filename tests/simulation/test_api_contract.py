"""The simulated API server against the contract that the real one is held to in tests/fleet."""

import pytest

from kube.api.api import NAMESPACES
from tests.contract import lists_and_watches, objects, owners, parts, pods  # noqa: F401 - they register their cases
from tests.contract.cases import CASES, encode, ensure_widgets
from tests.simulation.apiserver import ApiServer
from tests.simulation.apiserver_client import SimulatedApi
from tests.simulation.apiserver_controllers import Controllers
from tests.simulation.clock import virtual


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
@virtual
async def test_contract(case):
    server = ApiServer()
    api = SimulatedApi(server)
    await ensure_widgets(api)
    await api.create(NAMESPACES, encode({"metadata": {"name": "story"}}))
    async with Controllers(server).running():
        await case(api, "story")
