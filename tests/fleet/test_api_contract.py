"""The contract of tests/contract on a real kube-apiserver (the hub), through the real client.

MUSTER_CONTRACT_KUBECONFIG runs it on any other server, for work on the client alone.
"""

import os
import uuid
from collections.abc import AsyncIterator

import pytest

from kube.api.api import NAMESPACES, Resource
from kube.api.client import HttpApi
from tests.contract import lists_and_watches, objects, owners, parts, pods  # noqa: F401 - they register their cases
from tests.contract.cases import CASES, encode, ensure_widgets, eventually, gone

SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", "ServiceAccount")


async def present(api, resource, name, namespace):
    return not await gone(api, resource, name, namespace)


@pytest.fixture
async def real_api(request: pytest.FixtureRequest) -> AsyncIterator[HttpApi]:
    kubeconfig = os.environ.get("MUSTER_CONTRACT_KUBECONFIG") or request.getfixturevalue("fleet").hub.kubeconfig
    async with await HttpApi.from_kubeconfig(kubeconfig, user_agent="muster-contract-tests") as api:
        yield api


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
async def test_contract(case, real_api):
    await ensure_widgets(real_api)
    namespace = f"contract-{uuid.uuid4().hex[:8]}"
    await real_api.create(NAMESPACES, encode({"metadata": {"name": namespace}}))
    if "MUSTER_CONTRACT_KUBECONFIG" not in os.environ:
        # Without its default ServiceAccount a namespace takes no pods.
        await eventually(lambda: present(real_api, SERVICE_ACCOUNTS, "default", namespace))
    try:
        await case(real_api, namespace)
    finally:
        await real_api.delete(NAMESPACES, namespace)
