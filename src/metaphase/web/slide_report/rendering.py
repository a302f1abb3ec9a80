"""From templates to pages that ask nothing of a network, and run no script but their own."""

from __future__ import annotations

import base64
import hashlib
from typing import Any

import jinja2

from metaphase.web.slide_report.facts import count_text, number, percent, probability_text

POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
    "base-uri 'none'; form-action 'none'"
)
"""What the page may load: pictures and styles inside the file, and the one script with this digest."""


def page_environment(*packages: str) -> jinja2.Environment:
    """Templates of the packages, the first that has one; values are escaped, and missing ones are errors."""
    return jinja2.Environment(
        loader=jinja2.ChoiceLoader([jinja2.PackageLoader(package) for package in packages]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, script: str, **content: Any) -> str:
    """The page of `template` with `script` inside."""
    environment = page_environment("metaphase.web.slide_report")
    environment.filters.update(number=number, percent=percent, count=count_text, probability=probability_text)
    source = environment.get_template(script).render().strip()
    digest = base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
    policy = POLICY.format(digest=digest)
    return environment.get_template(template).render(script=source, policy=policy, **content)
