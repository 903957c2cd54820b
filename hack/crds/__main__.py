"""`python -m hack.crds`: writes manifests/crds/hub/kubeflow.org_pytorchjobs.yaml.

Reads the CRD out of the Go module of training-operator that the local fleet builds too, so the two cannot differ.
Needs Go and, the first time, the module proxy. The result is checked in.
"""

import json
import subprocess
import sys
from pathlib import Path

import yaml

from hack.crds.pytorchjob import union
from hack.fleet.versions import TRAINING_OPERATOR

SOURCE = Path("manifests/base/crds/kubeflow.org_pytorchjobs.yaml")
"""Within the module's folder."""
TARGET = Path(__file__).parents[2] / "manifests/crds/hub/kubeflow.org_pytorchjobs.yaml"
GENERATED_FROM = f"{TRAINING_OPERATOR.reference} {TRAINING_OPERATOR.checksum}"
"""What the header of the result names; a test compares it with the fleet's table."""
HEADER = f"""\
# Made by `python -m hack.crds` from {GENERATED_FROM}
# and the legacy dialect's fields (hack/crds/pytorchjob.py). Do not edit.
# Too large for the annotation of a client-side apply: `kubectl apply --server-side -f` this file.
"""


class SourceError(Exception):
    """The module could not be had, or is not the one in the table."""


def module_folder() -> Path:
    """Folder of the module, downloaded if need be. Raises SourceError."""
    command = ["go", "mod", "download", "-json", TRAINING_OPERATOR.reference]
    try:
        done = subprocess.run(command, capture_output=True, check=False, text=True)
    except FileNotFoundError as error:
        raise SourceError("go is not on PATH: install Go to make the CRD") from error
    found = json.loads(done.stdout or "{}")
    if done.returncode or "Dir" not in found:
        raise SourceError(f"{' '.join(command)}: {found.get('Error') or done.stderr.strip()}")
    if found["Sum"] != TRAINING_OPERATOR.checksum:
        raise SourceError(f"{TRAINING_OPERATOR.reference}: checksum {found['Sum']}, not {TRAINING_OPERATOR.checksum}")
    return Path(found["Dir"])


def main() -> int:
    try:
        upstream = yaml.safe_load((module_folder() / SOURCE).read_text())
        crd = union(upstream)
    except (SourceError, ValueError, OSError) as error:
        print(f"hack.crds: {error}", file=sys.stderr)
        return 1
    TARGET.write_text(HEADER + yaml.safe_dump(crd, sort_keys=False, width=116, allow_unicode=True))
    print(f"wrote {TARGET} ({TARGET.stat().st_size // 1000} kB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
