"""Builds the site of this version into FOLDER/VERSION, as files that any host serves.

    uv run --group docs python docs/publish.py FOLDER

Sites of other versions in FOLDER stay. `index.html` leads to the newest one, and
`versions.json` lists all for the choice of a version at the head of each page.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIRST = '<!doctype html><meta charset="utf-8"><title>gnnkit</title><meta http-equiv="refresh" content="0; url={0}/index.html"><a href="{0}/index.html">gnnkit {0}</a>\n'


def publish(folder: Path) -> str:
    """Builds the site, and returns the version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version: str = project["version"]
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str((folder / version).absolute()),
    ]
    subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "GNNKIT_SITE": "published"})
    listed(folder)
    return version


def listed(folder: Path) -> None:
    """Lists the versions in a folder, the newest first, and leads to that one."""
    found = sorted((each.parent.name for each in folder.glob("*/index.html")), key=_numbers, reverse=True)
    versions = [{"version": name, "title": name, "aliases": ["newest"] if name == found[0] else []} for name in found]
    (folder / "versions.json").write_text(json.dumps(versions, indent=1), encoding="utf-8")
    (folder / "index.html").write_text(FIRST.format(found[0]), encoding="utf-8")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(publish(Path(sys.argv[1])))
