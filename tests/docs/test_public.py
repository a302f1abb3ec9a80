"""docs/public.md lists what is public, as the code has it."""

from __future__ import annotations

import importlib.util

from tests.docs.blocks import ROOT


def test_the_page_of_what_is_public_is_true() -> None:
    path = ROOT / "docs" / "public.py"
    spec = importlib.util.spec_from_file_location("public", path)
    assert spec
    assert spec.loader
    public = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(public)
    assert public.PAGE.read_text(encoding="utf-8") == public.page(), "python docs/public.py writes the page"
