"""Markup of docstrings on the site."""

from importlib.util import module_from_spec, spec_from_file_location

from tests.docs.pages import ROOT


def load_reference_module():
    spec = spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_escapes_markup_except_in_code():
    text = "|x| of num_features, ``audio_*``, ``a_b`` and `c_d`"
    assert load_reference_module().escape_markup(text) == r"\|x\| of num\_features, ``audio_*``, ``a_b`` and `c_d`"
