"""PyTorchJobs of every kind that public manifests show, and what they add up to.

expected.json, per file: valid; or problem; roles (replicas, effective request of one pod), total_request, gang_min,
dependencies and companions. cpu is in millicores, everything else in units.
"""

import json
from pathlib import Path
from typing import Any

import yaml

_FOLDER = Path(__file__).parent

EXPECTED: dict[str, dict[str, Any]] = json.loads((_FOLDER / "expected.json").read_text())


def documents(name: str) -> list[dict[str, Any]]:
    """All documents of a sample, as the API server would see them (anchors and merge keys resolved)."""
    return [document for document in yaml.safe_load_all((_FOLDER / name).read_text()) if document]


def job(name: str) -> dict[str, Any]:
    """The PyTorchJob of a sample."""
    [found] = [document for document in documents(name) if document["kind"] == "PyTorchJob"]
    return found
