"""`make test-long`: every test, the long ones included, and the result written to tests/LONG.md.

The record holds what was run, when, on what, and each test's outcome and seconds; it is committed with the code.
"""

import platform
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
RECORD = REPOSITORY / "tests" / "LONG.md"
REPORT = REPOSITORY / ".pytest_cache" / "long.xml"
SUITES = ("tests/simulation", "tests/fleet")


def main() -> int:
    REPORT.parent.mkdir(exist_ok=True)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", "-s", f"--junit-xml={REPORT}", *SUITES, *sys.argv[1:]],
        cwd=REPOSITORY,
        check=False,
    )
    if REPORT.exists() and not sys.argv[1:]:  # a part of the tests is no record of the whole
        RECORD.write_text(record(ET.parse(REPORT).getroot(), time.monotonic() - began))  # noqa: S314 - our own file
        print(f"recorded in {RECORD.relative_to(REPOSITORY)}")
    return done.returncode


def record(report: ET.Element, seconds: float) -> str:
    """The Markdown page of a JUnit report."""
    cases = list(report.iter("testcase"))
    rows = [f"| {case.get('classname')}.{case.get('name')} | {outcome(case)} | {case.get('time')} |" for case in cases]
    bad = sum(outcome(case) != "passed" for case in cases)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False
    ).stdout.strip()
    return "\n".join(
        [
            "# The last long run",
            "",
            (
                f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, on {commit}, Python {platform.python_version()}, "
                f"{platform.system()} {platform.machine()}: "
                f"{len(cases)} tests, {bad} not passed, {seconds / 60:.0f} min."
            ),
            "",
            "| test | outcome | seconds |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def outcome(case: ET.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if case.find(kind) is not None:
            return kind
    return "passed"


if __name__ == "__main__":
    sys.exit(main())
