"""What the site makes of docstrings."""

from importlib.util import module_from_spec, spec_from_file_location

from tests.docs.pages import ROOT


def reference():
    spec = spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_names_keep_their_underscores_and_code_gets_no_backslash():
    text = "|x| of num_features, ``audio_*``, ``a_b`` and `c_d`"
    assert reference().escape_markup(text) == r"\|x\| of num\_features, ``audio_*``, ``a_b`` and `c_d`"
