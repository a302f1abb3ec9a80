"""Known holes in what is installed, and how much of it could be looked up at all.

python benchmarks/audit.py pip-audit SITE_PACKAGES

Runs pip-audit, which calls what its data base does not know "skipped" and then says that all is well: without
a way to the data base it finds nothing. Ends with 1 where there is a hole, and with 2 where most could not be
looked up.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LEAST_SHARE = 0.9
"""Of the packages, those that must have been looked up; our own and local builds never are."""


def audited(program: str, packages: str) -> list[dict[str, Any]]:
    """What pip-audit says of every package; nothing where it could not ask."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "audit.json"
        quiet = ("--progress-spinner", "off", "--format", "json", "--output", str(report))
        subprocess.run([program, "--path", packages, *quiet], check=False)
        if not report.is_file():
            return []
        found: list[dict[str, Any]] = json.loads(report.read_text(encoding="utf-8"))["dependencies"]
        return found


def main() -> None:
    """Ask, and tell."""
    packages = audited(*sys.argv[1:3])
    asked = [one for one in packages if "skip_reason" not in one]
    holes = [(one, hole) for one in asked for hole in one["vulns"]]
    for one, hole in holes:
        better = ", ".join(hole.get("fix_versions", [])) or "no version"
        print(f"{one['name']} {one['version']}: {hole['id']}, mended in {better}")
    print(f"{len(packages)} packages, {len(asked)} looked up, {len(holes)} known holes")
    if holes:
        sys.exit(1)
    if len(asked) < LEAST_SHARE * len(packages) or not packages:
        print("This says nothing: the data base of holes cannot be reached. Run it on another network.")
        sys.exit(2)


if __name__ == "__main__":
    main()
